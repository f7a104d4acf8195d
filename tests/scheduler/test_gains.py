"""Steps with drafts are compared with what the same tokens take without; drafts that lose are paused."""

from __future__ import annotations

from openai_cpu_server.scheduler.speculation.speculator import ComparedStep, DraftGains, DraftingKind

QUOTES, BY_MODEL = DraftingKind.of(1, uses_model=False), DraftingKind.of(1, uses_model=True)


def step(
    elapsed_ms: float, accepted: int = 0, *, plain_ms: float = 10.0, predicted_ms: float = 20.0
) -> ComparedStep:
    return ComparedStep(1, accepted, plain_ms, predicted_ms, elapsed_ms)


def learn(gains: DraftGains, kind: DraftingKind, *steps: ComparedStep, times: int = 1) -> int:
    """How many rounds of these steps were learned before such drafts were paused; `times` if never."""
    for number in range(times):
        for done in steps:
            if not gains.allows(kind):
                return number
            gains.learn(kind, done)
            gains.pass_time(done.elapsed_ms)
    return times


def test_what_gains_is_kept_and_one_large_gain_makes_up_for_many_small_losses() -> None:
    """The sum of the times counts, not the number of gains and losses."""
    gains = DraftGains()
    win, loss = step(20.0, 11), step(20.0)
    assert learn(gains, QUOTES, step(20.0, 1), times=500) == 500
    assert learn(gains, QUOTES, win, *[loss] * 4, times=100) == 100
    assert learn(gains, BY_MODEL, win, *[loss] * 15, times=100) < 100


def test_what_loses_is_left_after_a_trial_and_tried_again_ever_later() -> None:
    gains, pauses = DraftGains(), []
    for _ in range(8):
        assert learn(gains, QUOTES, step(20.0), times=100) == 32
        pause = 0
        while not gains.allows(QUOTES):
            gains.pass_time(1000.0)
            pause += 1
        pauses.append(pause)
    assert pauses == [10, 20, 40, 80, 160, 320, 320, 320]


def test_a_gain_makes_the_next_pause_short_again() -> None:
    gains = DraftGains()
    for _ in range(3):
        learn(gains, QUOTES, step(20.0), times=32)
        gains.pass_time(10**6)
    learn(gains, QUOTES, step(10.0, 1), times=100)
    learn(gains, QUOTES, step(20.0), times=1000)
    assert not gains.allows(QUOTES)
    gains.pass_time(10_000.0)
    assert gains.allows(QUOTES)


def test_kinds_of_steps_are_apart() -> None:
    gains = DraftGains()
    learn(gains, BY_MODEL, step(20.0), times=32)
    assert not gains.allows(BY_MODEL)
    assert gains.allows(QUOTES)
    assert gains.allows(DraftingKind.of(2, uses_model=True))
    four, seven, eight = (DraftingKind.of(number, uses_model=True) for number in (4, 7, 8))
    assert four == seven != eight


def test_steps_without_drafts_say_what_would_have_been() -> None:
    """They are slower than predicted, so drafts that keep their promise gain."""
    for plain_elapsed_ms, gain in ((10.0, False), (25.0, True)):
        gains = DraftGains()
        for _ in range(20):
            gains.learn_plain(step(plain_elapsed_ms, predicted_ms=10.0))
        assert (learn(gains, QUOTES, step(30.0, 1), times=100) == 100) == gain


def test_a_noisy_neighbour_does_not_decide() -> None:
    assert learn(DraftGains(), QUOTES, *[step(20.0, 2)] * 9, step(5000.0, 2), times=50) == 50
