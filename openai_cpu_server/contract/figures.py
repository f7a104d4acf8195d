"""Counts and times of a request for usage, log and metrics. The engine counts per sequence, its client sums a
call, and the API adds the prompt's parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class SequenceFigures(msgspec.Struct, frozen=True, kw_only=True):
    output_tokens: int = 0
    """Tokens, also of an end token or a stop string."""
    thought_tokens: int = 0
    forced_tokens: int = 0
    """Forced by the constraint, counted since the last crash."""
    cached_tokens: int = 0
    preemptions: int = 0
    interruptions: int = 0
    padded_tokens: int = 0
    drafted_tokens: int = 0
    """Counted since the last crash."""
    accepted_tokens: int = 0


_OUTCOME = frozenset({"output_tokens", "thought_tokens"})
NO_WORK = {name: 0 for name in SequenceFigures.__struct_fields__ if name not in _OUTCOME}


class Figures(SequenceFigures, frozen=True, kw_only=True):
    """Counts of an API call with all its sequences. Times are in milliseconds, and the parts add up to the
    latency."""

    prompt_tokens: int = 0
    """Counted once for any number of choices."""
    image_tokens: int = 0
    audio_tokens: int = 0
    audio_s: float = 0.0
    queue_ms: float
    """Time until the first token or input was in a step."""
    prefill_ms: float
    generation_ms: float = 0.0
    latency_ms: float
    tokens_per_second: float

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def of_rounds(rounds: Sequence[Figures]) -> Figures:
    """Add up successive generations for one response, without the time between them."""
    parts = ("prompt_tokens", "image_tokens", "audio_tokens", "audio_s", *_TIMES)
    sums = {name: sum(getattr(one, name) for one in rounds) for name in parts}
    working_ms = sums["prefill_ms"] + sums["generation_ms"]
    tokens = sum(one.output_tokens for one in rounds)
    rate = 1000 * tokens / working_ms if working_ms else 0.0
    return Figures(**added_up(rounds), **sums, tokens_per_second=rate)


def added_up(sequences: Iterable[SequenceFigures]) -> dict[str, int]:
    parts = list(sequences)
    return {name: sum(getattr(part, name) for part in parts) for name in SequenceFigures.__struct_fields__}


_TIMES = ("queue_ms", "prefill_ms", "generation_ms", "latency_ms")


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    requests: int = 0
    """Calls and batch rows, counted when they end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    audio_seconds: float = 0.0
    cpu_ms: float = 0.0
    recalled_requests: int = 0
    """Calls answered from the cache, counted in no other field."""
    recalled_input_tokens: int = 0
    recalled_output_tokens: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        names = self.__struct_fields__
        return Amounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price of a million tokens, in any currency."""

    input: float
    cached: float
    output: float
    audio_minute: float = 0.0
