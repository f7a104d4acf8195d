"""Defines what is timed for a setting, and the cost that a goal computes from the times. Plain data."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from openai_cpu_server.contract.messages import EngineOptions

SHORT_PROMPT = 64
"""The tokens of the newcomer's prompt."""
FEW, MANY = 16, 32
"""The numbers of sequences that decode together."""


class Part(enum.Enum):
    PREFILL = "prefill"
    """A long prompt in chunks of `prefill_tokens`, then a short one beside it."""
    DECODE_ONE = "decode_one"
    """One sequence behind the long prompt, alone in the pool."""
    DECODE_MANY = "decode_many"
    """16 and 32 sequences, each behind cells of its own."""


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The order to the process that measures one setting."""

    options: EngineOptions
    parts: tuple[Part, ...]
    context: int
    """The tokens of the long prompt."""


class Timings(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The times in milliseconds; None for parts that were not asked for."""

    context: int
    prefill_ms: float | None = None
    """Milliseconds per token of the long prompt."""
    short_prompt_ms: float | None = None
    decode_one_ms: float | None = None
    decode_few_ms: float | None = None
    """Milliseconds per sequence, of a step with as many as there was room for, up to 16."""
    decode_many_ms: float | None = None
    """The same with up to 32."""

    def updated(self, newer: Timings) -> Timings:
        """These timings, replaced by the newer ones where those were measured."""
        changes = {name: v for name, v in msgspec.structs.asdict(newer).items() if v is not None}
        return msgspec.structs.replace(self, **changes)


class Failure(msgspec.Struct, frozen=True, tag=True):
    """Why a setting cannot be used, in one line."""

    message: str


class Goal(enum.Enum):
    LATENCY = "latency"
    THROUGHPUT = "throughput"

    @property
    def parts(self) -> tuple[Part, ...]:
        if self is Goal.LATENCY:
            return (Part.PREFILL, Part.DECODE_ONE)
        return (Part.PREFILL, Part.DECODE_ONE, Part.DECODE_MANY)

    def cost_ms(self, timings: Timings) -> float:
        """The milliseconds of a unit of work. Everything that it consists of must have been timed.

        Latency: one turn of a chat alone, with 256 tokens of prompt in chunks, 64 more, and 64 of output.
        Throughput: one request of many, with 256 tokens of prompt and 96 of output, and a little of one
        alone.
        """
        return sum(weight * _known(timings, name) for name, weight in _WEIGHTS[self].items())


_WEIGHTS: Mapping[Goal, Mapping[str, float]] = {
    Goal.LATENCY: {"prefill_ms": 256, "short_prompt_ms": 1, "decode_one_ms": 64},
    Goal.THROUGHPUT: {"prefill_ms": 256, "decode_few_ms": 48, "decode_many_ms": 48, "decode_one_ms": 2},
}


def _known(timings: Timings, name: str) -> float:
    value = getattr(timings, name)
    assert isinstance(value, float), f"{name} was not timed"
    return value
