"""Decides which setting to measure next: one factor at a time, starting from the best so far. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Union

import msgspec

from openai_cpu_server.commands.tune.workload import Failure, Goal, Part, Timings
from openai_cpu_server.llama.measure.profile import Profile

_CLEARLY = 0.97
"""A setting is better only if it costs at most this share of the best so far: less is noise."""

Value = Union[int, str, bool]
Measure = Callable[[Profile, tuple[Part, ...]], Union[Timings, Failure]]


@dataclass(frozen=True)
class Factor:
    """A field of the profile, and the values to try for it."""

    field: str
    values: tuple[Value, ...]
    parts: tuple[Part, ...]
    """The parts of the work that it has an influence on."""


@dataclass(frozen=True)
class Row:
    """One measured setting: the best so far with one factor changed."""

    factor: str | None
    """The changed factor; None: this is the first setting."""
    value: Value | None
    profile: Profile
    timings: Timings | None
    cost_ms: float | None
    note: str
    """Why there are no timings; "" if there are."""
    is_better: bool = False
    """Whether it is better than the best before it."""


def factors(goal: Goal, *, threads: Sequence[int], prefill_tokens: Sequence[int]) -> list[Factor]:
    """The factors to try, the most important first, as time may run out."""
    repack = Factor("repack", (True, False), goal.parts)
    kv_type = Factor("kv_type", ("f16", "f32", "bf16", "q8_0"), goal.parts)
    flash = Factor("flash_attention", (True, False), goal.parts)
    alone = Factor("threads", tuple(threads), (Part.DECODE_ONE,))
    together = Factor("threads_batch", tuple(threads), tuple(p for p in goal.parts if p != Part.DECODE_ONE))
    chunks = Factor("prefill_tokens", tuple(prefill_tokens), (Part.PREFILL,))
    if goal is Goal.LATENCY:
        return [alone, repack, together, kv_type, chunks, flash]
    return [repack, kv_type, together, chunks, flash, alone]


def num_trials(start: Profile, plan: Sequence[Factor]) -> int:
    """The most settings to measure."""
    return 1 + sum(len(_others(start, factor)) for factor in plan)


def search(start: Profile, plan: Sequence[Factor], goal: Goal, measure: Measure) -> Iterator[Row]:
    """Yield each row as soon as it is measured. The last row that `is_better` wins, else the first row."""
    best = _first_row(start, goal, measure)
    yield best
    if best.timings is None:
        return
    for factor in plan:
        for value in _others(start, factor):
            row = _row(best, factor, value, goal, measure)
            yield row
            best = row if row.is_better else best


def winner(rows: Sequence[Row]) -> Row:
    return next((row for row in reversed(rows) if row.is_better), rows[0])


def _others(start: Profile, factor: Factor) -> list[Value]:
    return [value for value in factor.values if value != getattr(start, factor.field)]


def _first_row(start: Profile, goal: Goal, measure: Measure) -> Row:
    result = measure(start, goal.parts)
    if isinstance(result, Failure):
        return Row(None, None, start, None, None, result.message)
    return Row(None, None, start, result, goal.cost_ms(result), "")


def _row(best: Row, factor: Factor, value: Value, goal: Goal, measure: Measure) -> Row:
    assert best.timings is not None
    assert best.cost_ms is not None
    profile = msgspec.structs.replace(best.profile, **{factor.field: value})
    if not _is_possible(profile):
        return Row(factor.field, value, profile, None, None, "needs flash attention")
    result = measure(profile, factor.parts)
    if isinstance(result, Failure):
        return Row(factor.field, value, profile, None, None, result.message)
    timings = best.timings.updated(result)
    cost_ms = goal.cost_ms(timings)
    is_better = cost_ms <= _CLEARLY * best.cost_ms
    return Row(factor.field, value, profile, timings, cost_ms, "", is_better)


def _is_possible(profile: Profile) -> bool:
    """Whether llama.cpp can have these settings: quantised keys and values need flash attention."""
    return profile.flash_attention or profile.kv_type != "q8_0"
