"""Search over settings, one factor at a time. Pure."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Union

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.measure.measurements import Profile

SHORT_PROMPT = 64
FEW, MANY = 16, 32


class WorkloadPart(enum.Enum):
    PREFILL = "prefill"
    """A long prompt in chunks of `prefill_tokens`, then a short one beside it."""
    DECODE_ONE = "decode_one"
    """A sequence after the long prompt, alone in the pool."""
    DECODE_MANY = "decode_many"
    """16 and 32 sequences with separate cells."""


class TuneTrial(msgspec.Struct, frozen=True, kw_only=True):
    options: EngineOptions
    parts: tuple[WorkloadPart, ...]
    context: int


class TuneTimings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Times, or None for parts that were not measured."""

    context: int
    prefill_ms: float | None = None
    """Time per token of the long prompt."""
    short_prompt_ms: float | None = None
    decode_one_ms: float | None = None
    decode_few_ms: float | None = None
    """Time per sequence, in a step of as many as fit, up to 16."""
    decode_many_ms: float | None = None

    def updated(self, newer: TuneTimings) -> TuneTimings:
        changes = {name: v for name, v in msgspec.structs.asdict(newer).items() if v is not None}
        return msgspec.structs.replace(self, **changes)


class TuneFailure(msgspec.Struct, frozen=True, tag=True):
    message: str


class TuneGoal(enum.Enum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"

    @property
    def parts(self) -> tuple[WorkloadPart, ...]:
        if self is TuneGoal.LATENCY:
            return (WorkloadPart.PREFILL, WorkloadPart.DECODE_ONE)
        return (WorkloadPart.PREFILL, WorkloadPart.DECODE_ONE, WorkloadPart.DECODE_MANY)

    def cost_ms(self, timings: TuneTimings) -> float:
        """Weigh a chat's turn alone (256 tokens of prompt in chunks, 64 more, 64 of output). For throughput,
        weigh one request of many (256 tokens of prompt, 96 of output) and a little of one alone."""
        return sum(weight * float(getattr(timings, name)) for name, weight in _WEIGHTS[self].items())


_WEIGHTS: Mapping[TuneGoal, Mapping[str, float]] = {
    TuneGoal.LATENCY: {"prefill_ms": 256, "short_prompt_ms": 1, "decode_one_ms": 64},
    TuneGoal.THROUGHPUT: {"prefill_ms": 256, "decode_few_ms": 48, "decode_many_ms": 48, "decode_one_ms": 2},
}


_CLEARLY = 0.97
"""Most cost of a better setting, as a share of the best; smaller gains are noise."""

_Value = Union[int, str, bool]
_Measure = Callable[[Profile, tuple[WorkloadPart, ...]], Union[TuneTimings, TuneFailure]]


@dataclass(frozen=True)
class TuneFactor:
    field: str
    values: tuple[_Value, ...]
    parts: tuple[WorkloadPart, ...]


@dataclass(frozen=True)
class TuneRow:
    """Best so far with one factor changed."""

    factor: str | None
    """Changed factor, or None for the first setting."""
    value: _Value | None
    profile: Profile
    timings: TuneTimings | None
    cost_ms: float | None
    note: str
    is_better: bool = False


def factors(goal: TuneGoal, *, threads: Sequence[int], prefill_tokens: Sequence[int]) -> list[TuneFactor]:
    """Order by importance, because time may run out."""
    repack = TuneFactor("repack", (True, False), goal.parts)
    kv_type = TuneFactor("kv_type", ("f16", "f32", "bf16", "q8_0"), goal.parts)
    flash = TuneFactor("flash_attention", (True, False), goal.parts)
    alone = TuneFactor("threads", tuple(threads), (WorkloadPart.DECODE_ONE,))
    together = TuneFactor(
        "threads_batch", tuple(threads), tuple(p for p in goal.parts if p != WorkloadPart.DECODE_ONE)
    )
    chunks = TuneFactor("prefill_tokens", tuple(prefill_tokens), (WorkloadPart.PREFILL,))
    if goal is TuneGoal.LATENCY:
        return [alone, repack, together, kv_type, chunks, flash]
    return [repack, kv_type, together, chunks, flash, alone]


def num_trials(start: Profile, plan: Sequence[TuneFactor]) -> int:
    return 1 + sum(len(_others(start, factor)) for factor in plan)


def search(
    start: Profile, plan: Sequence[TuneFactor], goal: TuneGoal, measure: _Measure
) -> Iterator[TuneRow]:
    """Yield each measured row. The last that `is_better` wins, otherwise the first."""
    result = measure(start, goal.parts)
    if isinstance(result, TuneFailure):
        yield TuneRow(None, None, start, None, None, result.message)
        return
    best = TuneRow(None, None, start, result, goal.cost_ms(result), "")
    yield best
    for factor in plan:
        for value in _others(start, factor):
            row = _row(best, factor, value, goal, measure)
            yield row
            best = row if row.is_better else best


def winner(rows: Sequence[TuneRow]) -> TuneRow:
    return next((row for row in reversed(rows) if row.is_better), rows[0])


def _others(start: Profile, factor: TuneFactor) -> list[_Value]:
    return [value for value in factor.values if value != getattr(start, factor.field)]


def _row(best: TuneRow, factor: TuneFactor, value: _Value, goal: TuneGoal, measure: _Measure) -> TuneRow:
    assert best.timings is not None
    assert best.cost_ms is not None
    profile = msgspec.structs.replace(best.profile, **{factor.field: value})
    if profile.kv_type == "q8_0" and not profile.flash_attention:  # llama.cpp needs it for quantised cells
        return TuneRow(factor.field, value, profile, None, None, "needs flash attention")
    result = measure(profile, factor.parts)
    if isinstance(result, TuneFailure):
        return TuneRow(factor.field, value, profile, None, None, result.message)
    timings = best.timings.updated(result)
    cost_ms = goal.cost_ms(timings)
    is_better = cost_ms <= _CLEARLY * best.cost_ms
    return TuneRow(factor.field, value, profile, timings, cost_ms, "", is_better)
