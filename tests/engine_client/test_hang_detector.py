"""Silence that counts as a hang, causes of deaths and records of crashes. The test sets the time."""

from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.engine_client.child import TICK_S, HangDetector, HangLimits
from openai_cpu_server.engine_client.deaths import CrashRecord, Death, DeathKind, MemoryKiller
from openai_cpu_server.errors import UNLOADABLE


class Story:
    def __init__(self, limits: HangLimits) -> None:
        self.now_s = 1000.0
        self.detector = HangDetector(limits, now_s=self.now_s)

    def hung_after(
        self, seconds: float, *, is_loading: bool = False, is_pending: bool = True, is_waiting: bool = False
    ) -> bool:
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            if self.detector.is_hung(
                self.now_s, is_loading=is_loading, is_pending=is_pending, is_waiting=is_waiting
            ):
                return True
        return False


@pytest.mark.parametrize("is_loading", [True, False])
@pytest.mark.parametrize(
    ("limits", "state", "limits_s"),
    [
        (HangLimits(step_s=10, load_s=100), {}, (10, 100)),
        (HangLimits(step_s=10, load_s=100), {"is_pending": False}, (None, 100)),
        (
            HangLimits(step_s=10, load_s=10),
            {"is_waiting": True},
            (None, None),
        ),  # the engine waits for its turn
        (HangLimits(step_s=None, load_s=None), {}, (None, None)),
    ],
)
def test_silence_beyond_the_limit_is_a_hang(
    limits: HangLimits, state: dict[str, bool], limits_s: tuple[float | None, ...], is_loading: bool
) -> None:
    story, limit_s = Story(limits), limits_s[is_loading]
    assert not story.hung_after(limit_s or 1000, is_loading=is_loading, **state)
    assert story.hung_after(1, is_loading=is_loading, **state) == (limit_s is not None)
    if limit_s is None:
        assert story.hung_after(11, is_loading=is_loading) == (limits.step_s is not None)


def test_news_restart_the_time_and_a_long_step_gets_300_times_its_expected_time() -> None:
    story = Story(HangLimits(step_s=10))
    for _ in range(5):
        assert not story.hung_after(9)
        story.detector.news()
    story.detector.step_begins(expected_ms=1000)
    assert not story.hung_after(300)
    assert story.hung_after(1)


def test_a_request_that_is_handled_for_too_long_is_a_hang_beside_running_steps() -> None:
    """Constraints are compiled beside the steps of other requests."""
    story = Story(HangLimits(step_s=10))
    for request_id in ("a", "b", None):
        story.detector.handling(request_id)
        story.detector.news()
        assert not story.hung_after(9)
    story.detector.handling("c")
    story.detector.news()
    assert not story.hung_after(6)
    story.detector.news()
    assert story.hung_after(6)
    assert story.detector.stuck_s == 10.5


def test_time_in_which_this_process_did_not_run_is_not_held_against_the_engine() -> None:
    story = Story(HangLimits(step_s=10))
    story.now_s += 3600
    assert not story.hung_after(8)


@pytest.mark.parametrize(
    ("status", "kind", "words", "cause"),
    [
        (-9, DeathKind.KILL, "the kernel's OOM killer", "SIGKILL"),
        (-15, DeathKind.KILL, "SIGTERM", "SIGTERM"),
        (-11, DeathKind.FAULT, "crashed in native code (SIGSEGV)", "SIGSEGV"),
        (-6, DeathKind.FAULT, "crashed in native code (SIGABRT)", "SIGABRT"),
        (-7, DeathKind.FAULT, "crashed in native code (SIGBUS)", "SIGBUS"),
        (1, DeathKind.FAULT, "exit status 1", "exit_1"),
        (0, DeathKind.FAULT, "exit status 0", "exit_0"),
        (-60, DeathKind.KILL, "60", "signal_60"),
        (None, DeathKind.FAULT, "exit status None", "unknown"),
        (UNLOADABLE, DeathKind.FAULT, "llama.cpp cannot be loaded: the log has the reason", "exit_72"),
    ],
)
def test_what_an_exit_status_means(status: int | None, kind: DeathKind, words: str, cause: str) -> None:
    death = Death.of(status, hang_s=None)
    assert (death.kind, death.cause) == (kind, cause)
    assert words in death.message


def test_a_kill_while_memory_ran_out_is_a_death_by_memory_unless_the_engine_had_hung() -> None:
    hang = Death.of(-9, hang_s=61.2, ran_out_of_memory=True)
    assert (hang.kind, hang.cause, "61 s" in hang.message) == (DeathKind.HANG, "hang", True)
    death = Death.of(-9, hang_s=None, ran_out_of_memory=True)
    assert (death.kind, death.cause) == (DeathKind.MEMORY, "out_of_memory")
    assert "--cache-mb" in death.message
    assert Death.of(-11, hang_s=None, ran_out_of_memory=True).kind is DeathKind.FAULT


def test_a_rise_of_the_oom_kill_count_holds_for_a_while(tmp_path: Path) -> None:
    vmstat = tmp_path / "vmstat"
    killer = MemoryKiller(vmstat)
    for content in ("", "pgfault 3\n", "pgfault 9\noom_kill 3\nthp_oom_kill 8\n"):
        killer.look()
        assert not killer.has_struck
        vmstat.write_text(content)
    for _ in range(50):
        killer.look()
    vmstat.write_text("pgfault 9\noom_kill 4\nthp_oom_kill 8\n")
    for _ in range(2):
        assert killer.has_struck
        killer.look()
    for _ in range(50):
        killer.look()
    assert not killer.has_struck


def test_crashes_of_the_last_minute_count_and_the_wait_doubles() -> None:
    now_s = 0.0
    record = CrashRecord(max_a_minute=5, clock=lambda: now_s)
    waits = []
    for _ in range(4):
        record.note()
        waits.append(record.backoff_s)
        now_s += 10
    assert waits == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert record.why_too_many is None
    record.excuse()
    assert record.backoff_s == pytest.approx(0.1)
    record.note()
    assert record.backoff_s == pytest.approx(0.1), "the engine had served well in between"
    assert record.why_too_many == "5 crashes within a minute"
    now_s += 30  # the first crash is older than a minute now
    assert record.why_too_many is None


def test_starts_that_fail_count_in_a_row_however_long_each_takes() -> None:
    now_s = 0.0
    record = CrashRecord(max_a_minute=3, clock=lambda: now_s)
    for number in range(1, 6):
        now_s += 300
        record.note()
        record.start_failed()
        assert record.backoff_s == pytest.approx(0.1 * 2 ** ((number - 1) % 3))
        assert record.why_too_many == ("3 starts in a row that failed" if number == 3 else None)
        if number == 3:
            record.started()
