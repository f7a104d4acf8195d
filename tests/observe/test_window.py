"""Slices of time: what is old goes, and what did not happen takes no room."""

from __future__ import annotations

from openai_cpu_server.observe.recent import SlicedWindow


def window(num_slices: int = 3) -> SlicedWindow[list[str]]:
    return SlicedWindow(list, slice_s=10, num_slices=num_slices, origin_s=100.0)


def test_what_happens_within_a_slice_is_added_up() -> None:
    slices = window()
    for now_s in (100.0, 109.9, 110.0):
        slices.at(now_s).append(f"{now_s}")
    assert slices.between(0, 2) == [["100.0", "109.9"], ["110.0"]]
    assert slices.between(1, 2) == [["110.0"]]
    assert slices.between(0, 1) == [["100.0", "109.9"]]


def test_slices_without_anything_are_missing() -> None:
    slices = window()
    slices.at(100.0).append("early")
    slices.at(190.0).append("late")
    assert slices.number(190.0) == 9
    assert slices.between(0, 10) == [["early"], ["late"]]
    assert slices.between(1, 9) == []


def test_only_so_many_are_kept() -> None:
    slices = window(num_slices=3)
    for number in range(100):
        slices.at(100.0 + 10 * number).append(f"{number}")
    assert slices.between(0, 100) == [["97"], ["98"], ["99"]]
