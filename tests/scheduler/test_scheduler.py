"""Stories about admission, preemption and the end of requests."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.contract.replica import ByPriority
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority, Thinking
from openai_cpu_server.scheduler.sequence import FifoPolicy, PriorityPolicy, ShortestFirstPolicy
from tests.scheduler.driver import FAULTY, Driver, KnowingDrafter, SilentDrafter, request

BATCH = Priority.BATCH


def test_a_sequence_that_fails_leaves_the_ledger_consistent() -> None:
    """The driver compares the ledger with the cells after each step."""
    driver = Driver(decoding=16, idle=64, cache_blocks=8, drafter=KnowingDrafter())
    forced = Constraint(grammar="??" + chr(FAULTY - 2) + "??")
    good = [request(f"good{i}", prompt=30, output=20) for i in range(3)]
    late = request("late", tokens=(*range(2, 90), FAULTY))
    early = request("early", tokens=(FAULTY, *range(2, 90)))
    driver.run(*good[:2], late, early, request("forced", output=20, constraint=forced), good[2])
    assert driver.failures.keys() == {"late", "early", "forced"}
    assert driver.backend.cells == {}
    assert driver.ledger.num_used == 0


def test_many_decoding_sequences_leave_a_tile_for_a_newcomer() -> None:
    driver = Driver(slots=16, decoding=4)
    driver.submit(*(request(f"d{i}", output=50) for i in range(15)))
    driver.steps(10)
    assert driver.step(request("new", prompt=100))["new"] == 16


@pytest.mark.parametrize(
    ("policy", "names", "finished"),
    [(PriorityPolicy(), "Bi", "iB"), (PriorityPolicy(), "abc", "abc"), (FifoPolicy(), "Bi", "Bi")],
)
def test_admission_follows_the_policy(policy: PriorityPolicy, names: str, finished: str) -> None:
    driver = Driver(slots=1, policy=policy)
    driver.run(*(request(name, priority=Priority(name.isupper())) for name in names))
    assert driver.finished == list(finished)


def test_batch_work_is_not_preempted_where_that_would_not_help() -> None:
    driver = Driver(slots=2, kv_tokens=256)
    driver.step(request("i", prompt=100, output=100), request("b", prompt=16, output=16, priority=BATCH))
    driver.step()
    assert "b" in driver.step(request("j", prompt=200, output=16))


def test_scoring_needs_no_more_outputs_than_the_backend_has() -> None:
    driver = Driver(slots=4, idle=64, rows=20)
    steps = driver.run(request("s", prompt=100, output=0, prompt_logprobs=True))
    assert max(step.get("s", 0) for step in steps) == 20
    assert driver.num_scores["s"] == 99


def test_a_request_that_can_never_fit_is_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError):
        Driver(kv_tokens=256).submit(request("a", prompt=200, output=100))


Action = tuple[str, int, int, bool, bool]


KINDS = st.sampled_from(["submit", "submit", "step", "step", "step", "cancel", "interrupt", "clear", "crash"])
ACTIONS = st.tuples(KINDS, st.integers(1, 150), st.integers(0, 60), st.booleans(), st.booleans())


def request_of(number: int, action: Action, num_adapters: int) -> GenerationRequest:
    _, prompt, output, is_batch, is_kin = action
    one = request(
        f"r{number}",
        prompt,
        output,
        Priority(is_batch),
        prompt_logprobs=prompt % 5 == 0,
        client=str(prompt % 3),
        cache_namespace="x" * (prompt % 7 == 0),
        constraint=_constraint(prompt),
        adapter=None if output % 3 >= num_adapters else f"adapter{output % 3}",
    )
    if not is_kin:
        return one
    return msgspec.structs.replace(one, tokens=(tuple(range(2, 102)) + one.tokens)[:prompt])


def _constraint(prompt: int) -> Constraint | None:
    """Half of the requests have one of the fake's patterns, half have thoughts."""
    patterns = ["abc?def", "?*?*?x*?" * 4, "{" + 40 * "z" + "?}", "*?" + 30 * "?ab*"]
    pattern = patterns[prompt % 8] if prompt % 8 < len(patterns) else None
    thinking = None
    if prompt % 4 >= 2:
        thinking = Thinking(end="ef", budget=prompt % 9, closing=tuple(2 + byte for byte in b"x.ef"))
    if pattern is None and thinking is None:
        return None
    opening = (7, 8) if prompt % 3 == 0 and pattern is not None else ()
    return Constraint(grammar=pattern, opening=opening, thinking=thinking)


@given(
    st.lists(ACTIONS, max_size=60),
    st.integers(1, 5),
    st.sampled_from([224, 256, 512]),
    st.integers(0, 6),
    st.sampled_from([PriorityPolicy, FifoPolicy, ShortestFirstPolicy]),
    st.sampled_from([(), (16,), (16, 32)]),
    st.none() | st.builds(KnowingDrafter, st.integers(0, 99)) | st.builds(SilentDrafter),
    st.integers(0, 3),
    st.sampled_from([None, 0, 7]),
)
@settings(max_examples=300)
def test_whatever_happens_every_request_ends_with_its_own_output(
    script: list[Action],
    slots: int,
    kv_tokens: int,
    cache_blocks: int,
    policy: type[PriorityPolicy],
    tiles: tuple[int, ...],
    drafter: KnowingDrafter | SilentDrafter | None,
    num_adapters: int,
    snapshots: int | None,
) -> None:
    """`snapshots` is None for a memory without a state."""
    stateful = snapshots is not None
    driver = Driver(
        slots=slots,
        kv_tokens=kv_tokens,
        decoding=24,
        idle=32,
        rows=30,
        cache_bytes=cache_blocks * (101 if stateful else 1),
        policy=policy(),
        tiles=tiles,
        drafter=drafter,
        stateful=stateful,
        snapshots=snapshots or 0,
    )
    requests = {}
    cancelled = set()
    for number, action in enumerate(script):
        kind = action[0]
        if kind == "submit":
            one = request_of(number, action, num_adapters)
            requests[one.id] = one
            driver.submit(one)
        elif kind == "cancel" and requests:
            name = sorted(requests)[action[1] % len(requests)]
            driver.cancel(name)
            cancelled.add(name)
        elif kind == "clear":
            driver.scheduler.clear_cache()
        elif kind == "crash":
            driver.crash(lost=action[1] % 4)
        elif kind != "cancel":
            driver.step(interrupt=kind == "interrupt")
    driver.run()
    assert driver.backend.cells == {}
    assert driver.ledger.num_used == 0
    assert len(driver.backend.blocks) == len(driver.cache)
    assert len(driver.backend.saved_states) == driver.cache.totals.cache_states
    assert driver.cache.totals.cache_bytes <= driver.cache.totals.cache_capacity_bytes
    assert len(driver.finished) == len(set(driver.finished))
    names = set(requests)
    assert snapshots == 0 or not isinstance(drafter, KnowingDrafter) or set(drafter.forgotten) == names
    assert set(driver.finished) - driver.failures.keys() >= names - cancelled
    for name in names - cancelled:
        assert driver.num_scores[name] == (len(requests[name].tokens) - 1) * requests[name].prompt_logprobs


def test_the_time_of_verbs_is_not_learned_as_the_price_of_tokens() -> None:
    driver = Driver(elapsed_ms=lambda step: 7.0)
    driver.backend.verbs_ms = 5.0
    driver.run(request("a", prompt=10, output=2))
    assert {ms for _, ms in driver.cost.learned} == {2.0}


def test_sequences_are_counted_by_priority_until_they_finish() -> None:
    driver = Driver(slots=2)
    sequences = driver.scheduler.sequences
    assert (len(sequences), sequences.best_priority) == (0, None)
    driver.submit(request("b", output=9, priority=BATCH), request("i", output=2))
    assert (len(sequences), sequences.counts) == (2, ByPriority(1, 1))
    assert sequences.best_priority is Priority.INTERACTIVE
    driver.run_until(lambda: "i" in driver.finished)
    assert sequences.best_priority is BATCH
    assert sequences.get("i") is None
    driver.cancel("b")
    assert (len(sequences), sequences.counts) == (0, ByPriority(0, 0))


def test_waiting_sequences_that_were_preempted_are_listed_apart() -> None:
    driver = Driver(slots=4, kv_tokens=128)
    driver.step(request("b", prompt=60, output=60, priority=BATCH))
    driver.step(request("i", prompt=60, output=60), request("j", prompt=60, output=60))
    sequences = driver.scheduler.sequences
    assert [sequence.request.id for sequence in sequences.preempted] == ["b"]
    assert sequences.num_waiting == 2


def test_adapters_are_used_until_the_last_sequence_ends() -> None:
    driver = Driver()
    driver.submit(request("a", adapter="one", output=3))
    assert driver.scheduler.sequences.uses_adapter("one")
    driver.run()
    assert not driver.scheduler.sequences.uses_adapter("one")


def test_newcomers_are_sequences_with_a_slot_at_once_and_no_step_yet() -> None:
    driver = Driver(slots=3)
    sequences = driver.scheduler.sequences
    driver.step(request("a", adapter="one", output=20))
    assert sequences.groups_of_newcomers == frozenset()
    driver.submit(request("b", adapter="two"), request("c", output=20, priority=BATCH), request("d"))
    assert sequences.groups_of_newcomers == frozenset(), "no sequence has a slot yet"
    driver.step()
    assert sequences.groups_of_newcomers == frozenset(), "b had its step, and d had to wait for a slot"
