"""Who goes when another model needs the room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.models.keeper import MemoryBudget, MemoryNeed, ResidentModel

_MIB = 1024 * 1024


def resident(
    name: str, num_bytes: int, last_use_s: float = 0.0, *, is_evictable: bool = True
) -> ResidentModel:
    return ResidentModel(name=name, num_bytes=num_bytes, last_use_s=last_use_s, is_evictable=is_evictable)


OLD, NEW = resident("old", 40, 1.0), resident("new", 40, 9.0)
PINNED, IDLE = resident("pinned", 60, 1.0, is_evictable=False), resident("idle", 30, 2.0)


@pytest.mark.parametrize(
    ("num_bytes", "loaded", "gone"),
    [
        (50, [resident("a", 50)], ()),
        (100, [], ()),
        (30, [NEW, OLD], ("old",)),
        (100, [OLD, NEW], ("old", "new")),
        (90, [resident("small", 5, 1.0), resident("large", 80, 2.0)], ("large",)),
        (40, [PINNED, IDLE], ("idle",)),
        (50, [PINNED, IDLE], None),
    ],
    ids=[
        "nobody goes while there is room",
        "nobody is there",
        "the least recently used goes first",
        "as many go as it takes",
        "who is too small to help stays once a larger one goes",
        "who is pinned or in use stays",
        "it is impossible",
    ],
)
def test_who_goes(num_bytes: int, loaded: list[ResidentModel], gone: tuple[str, ...] | None) -> None:
    indices = MemoryBudget(100).to_unload(num_bytes, loaded)
    names = None if indices is None else tuple(loaded[index].name for index in indices)
    assert names == gone


def test_what_can_never_fit_is_told_with_the_arithmetic() -> None:
    budget = MemoryBudget(8000 * _MIB)
    large = MemoryNeed(weights=5000 * _MIB, cells=1500 * _MIB, buffers=300 * _MIB, cache=200 * _MIB)
    pinned = [
        resident("chat", 2000 * _MIB, is_evictable=False),
        resident("large", 7000 * _MIB, is_evictable=False),
    ]
    assert budget.why_never("large", large, []) is None
    assert budget.why_never("large", large, pinned) == (
        "the model 'large' needs 7,000 MiB (weights 5,000 MiB, KV cells 1,500 MiB, buffers 300 MiB, "
        "prefix cache 200 MiB), and there are 6,000 MiB (--memory 8000 MiB - 2,000 MiB of 'chat', which is "
        "pinned)"
    )


_SIZES = st.integers(0, 120)
_RESIDENTS = st.lists(st.tuples(_SIZES, st.integers(0, 5), st.booleans()), max_size=6).map(
    lambda facts: [
        resident(str(number), size, float(used), is_evictable=is_evictable)
        for number, (size, used, is_evictable) in enumerate(facts)
    ]
)


@given(limit=_SIZES, num_bytes=_SIZES, loaded=_RESIDENTS)
def test_whatever_is_loaded(limit: int, num_bytes: int, loaded: list[ResidentModel]) -> None:
    """It fits afterwards, nobody goes in vain or who must not, and None means that it is impossible."""
    indices = MemoryBudget(limit).to_unload(num_bytes, loaded)
    if indices is None:
        assert num_bytes + sum(one.num_bytes for one in loaded if not one.is_evictable) > limit
        return
    gone = [loaded[index] for index in indices]
    assert all(one.is_evictable for one in gone)
    left = sum(one.num_bytes for one in loaded) - sum(one.num_bytes for one in gone)
    assert not indices or left + num_bytes <= limit
    assert all(left + num_bytes + one.num_bytes > limit for one in gone)


@given(limit=_SIZES, num_bytes=_SIZES, loaded=_RESIDENTS)
def test_never_means_that_unloading_all_others_does_not_help(
    limit: int, num_bytes: int, loaded: list[ResidentModel]
) -> None:
    pinned = [one for one in loaded if not one.is_evictable]
    why = MemoryBudget(limit).why_never("new", MemoryNeed(weights=num_bytes, cells=0, buffers=0), pinned)
    assert (why is None) == (MemoryBudget(limit).to_unload(num_bytes, loaded) is not None)
