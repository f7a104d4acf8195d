"""Sliding windows: the remaining amount and the time until there is room; durations as OpenAI writes them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.http.limits import Window, duration


def later(window: Window, seconds: float) -> Window:
    """Return the window after this time without requests."""
    rest_s = window.current_left_s - window.period_s if window.current else window.previous_left_s
    if seconds < rest_s:
        return Window(
            period_s=window.period_s,
            previous=window.previous,
            previous_left_s=max(0.0, window.previous_left_s - seconds),
            current=window.current,
            current_left_s=window.current_left_s - seconds,
        )
    left_s = max(0.0, window.current_left_s - seconds)
    return Window(period_s=window.period_s, previous=window.current, previous_left_s=left_s)


@given(
    rest=st.floats(0.01, 59.99),
    previous=st.integers(0, 100),
    current=st.integers(0, 100),
    cost=st.integers(1, 120),
)
def test_there_is_room_after_the_wait_and_not_much_earlier(
    rest: float, previous: int, current: int, cost: int
) -> None:
    window = Window(
        period_s=60,
        previous=previous,
        previous_left_s=rest if previous else 0.0,
        current=current,
        current_left_s=60 + rest if current else 0.0,
    )
    wait_s = window.wait_s(cost, 100)
    if cost > 100:
        assert wait_s is None
        return
    assert wait_s is not None
    assert later(window, wait_s + 0.001).remaining(100) >= cost
    if wait_s > 0:
        assert later(window, max(0.0, wait_s - 0.001)).remaining(100) < cost
    assert wait_s <= window.reset_s


def test_an_unused_window() -> None:
    window = Window(period_s=60)
    assert (window.remaining(5), window.reset_s, window.wait_s(5, 5)) == (5, 0.0, 0.0)
    assert Window(period_s=60, current=9, current_left_s=70).remaining(5) == 0, "more than the limit"


def test_durations() -> None:
    shown = {
        0: "0s",
        0.0121: "13ms",
        1: "1s",
        7.66: "7.66s",
        59.9999: "1m0s",
        360: "6m0s",
        86399.2: "24h0m0s",
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown
