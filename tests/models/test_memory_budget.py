"""Choice of models to unload when another one needs memory."""

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
    ("num_bytes", "loaded", "names"),
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
        "none is unloaded while there is room",
        "none is loaded",
        "the least recently used is unloaded first",
        "as many are unloaded as necessary",
        "one too small to help stays if a larger one is unloaded",
        "one that is pinned or in use stays",
        "it is impossible",
    ],
)
def test_models_to_unload(num_bytes: int, loaded: list[ResidentModel], names: tuple[str, ...] | None) -> None:
    indices = MemoryBudget(100).to_unload(num_bytes, loaded)
    assert names == (None if indices is None else tuple(loaded[index].name for index in indices))


def test_the_reason_why_a_model_can_never_fit_has_the_arithmetic() -> None:
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
def test_any_choice_makes_enough_room_and_unloads_no_model_in_vain(
    limit: int, num_bytes: int, loaded: list[ResidentModel]
) -> None:
    indices = MemoryBudget(limit).to_unload(num_bytes, loaded)
    if indices is None:  # no choice makes enough room
        assert num_bytes + sum(model.num_bytes for model in loaded if not model.is_evictable) > limit
        return
    unloaded = [loaded[index] for index in indices]
    assert all(model.is_evictable for model in unloaded)
    left = sum(model.num_bytes for model in loaded) - sum(model.num_bytes for model in unloaded)
    assert not indices or left + num_bytes <= limit
    assert all(left + num_bytes + model.num_bytes > limit for model in unloaded)


@given(limit=_SIZES, num_bytes=_SIZES, loaded=_RESIDENTS)
def test_never_means_that_unloading_all_others_does_not_help(
    limit: int, num_bytes: int, loaded: list[ResidentModel]
) -> None:
    pinned = [model for model in loaded if not model.is_evictable]
    reason = MemoryBudget(limit).why_never("new", MemoryNeed(weights=num_bytes, cells=0, buffers=0), pinned)
    assert (reason is None) == (MemoryBudget(limit).to_unload(num_bytes, loaded) is not None)
