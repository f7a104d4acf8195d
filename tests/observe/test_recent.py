"""The window of `/v1/stats` moves with the clock."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.observe.ended import Distribution, EndedCall, EndedRequest, RequestOrigin
from openai_cpu_server.observe.telemetry import RecentActivity, SlicedWindow
from tests.api.calls import FIGURES
from tests.clock import Clock


def ended_request(seconds: float, status: int = 200, code: str | None = None) -> EndedRequest:
    call = EndedCall(
        model="m",
        figures=FIGURES,
        submitted_s=0.0,
        ttft_s=0.2,
        gaps=Distribution(),
    )
    return EndedRequest(
        id="a",
        origin=RequestOrigin.HTTP,
        method="POST",
        route="/v1/completions",
        priority="batch",
        status=status,
        code=code,
        started_s=0.0,
        ended_s=seconds,
        call=call,
    )


STEP = StepFigures(sequences=2, tokens=10, sampled=2, forced=3, predicted_ms=1.0, elapsed_ms=1.0)


def test_old_requests_leave_the_window_and_stay_in_the_total() -> None:
    clock = Clock(100.0)
    recent = RecentActivity(clock)
    recent.ended(ended_request(1.0))
    recent.step_done(STEP)
    clock.now_s += 200
    recent.ended(ended_request(3.0, status=499))
    assert (recent.window().sums.calls, recent.window().sums.failed) == (2, 1)
    assert recent.window().seconds == pytest.approx(200)
    clock.now_s += 150
    assert recent.window().sums.latency.mean_s == pytest.approx(3.0)
    assert 290 <= recent.window().seconds <= 300
    clock.now_s += 1000
    assert recent.window().sums.calls == 0
    assert (recent.total.calls, recent.total.output_tokens) == (2, 5)


def test_throughput_covers_the_last_seconds() -> None:
    clock = Clock(100.0)
    recent = RecentActivity(clock)
    for _ in range(100):
        clock.now_s += 1
        recent.step_done(STEP)
    moment = recent.moment()
    assert moment.sums.output_tokens / moment.seconds == pytest.approx(5, rel=0.11)
    assert moment.sums.computed_tokens / moment.seconds == pytest.approx(10, rel=0.11)
    clock.now_s += 30
    assert recent.moment().sums.output_tokens == 0


def test_errors_within_a_stream_are_failures() -> None:
    recent = RecentActivity(Clock(100.0))
    recent.ended(ended_request(1.0, status=200, code="request_timeout"))
    assert recent.total.failed == 1


# -- slices of time: old ones are removed, and empty ones are not stored -----------------------------------


def window(num_slices: int = 3) -> SlicedWindow[list[str]]:
    return SlicedWindow(list, slice_s=10, num_slices=num_slices, origin_s=100.0)


def test_events_of_a_slice_are_collected() -> None:
    slices = window()
    for now_s in (100.0, 109.9, 110.0):
        slices.at(now_s).append(f"{now_s}")
    assert slices.between(0, 2) == [["100.0", "109.9"], ["110.0"]]
    assert slices.between(1, 2) == [["110.0"]]
    assert slices.between(0, 1) == [["100.0", "109.9"]]


def test_empty_slices_are_not_stored() -> None:
    slices = window()
    slices.at(100.0).append("early")
    slices.at(190.0).append("late")
    assert slices.number(190.0) == 9
    assert slices.between(0, 10) == [["early"], ["late"]]
    assert slices.between(1, 9) == []


def test_only_the_last_slices_are_stored() -> None:
    slices = window(num_slices=3)
    for number in range(100):
        slices.at(100.0 + 10 * number).append(f"{number}")
    assert slices.between(0, 100) == [["97"], ["98"], ["99"]]
