"""Counts and times of a request, from the engine to usage, log and metrics.

The engine counts per sequence; its client adds up the sequences of a call and the times; the API adds the
parts of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class SequenceFigures(msgspec.Struct, frozen=True, kw_only=True):
    output_tokens: int = 0
    """Includes those of an end token or a stop string."""
    thought_tokens: int = 0
    forced_tokens: int = 0
    """Output tokens that the constraint forced; after a crash only those since then."""
    cached_tokens: int = 0
    preemptions: int = 0
    interruptions: int = 0
    """Discarded steps."""
    padded_tokens: int = 0
    drafted_tokens: int = 0
    """After a crash only those since then."""
    accepted_tokens: int = 0


_OUTCOME = frozenset({"output_tokens", "thought_tokens"})
NO_WORK = {name: 0 for name in SequenceFigures.__struct_fields__ if name not in _OUTCOME}
"""Figures, beside those of the output, of an answer from the cache that was not computed."""


class Figures(SequenceFigures, frozen=True, kw_only=True):
    """Counts of an API call with all its sequences. Times are in milliseconds, and the parts add up to the
    latency. A call that embeds has no output, and its prefill is its whole computation."""

    prompt_tokens: int = 0
    """A prompt counts once for any number of choices."""
    image_tokens: int = 0
    audio_tokens: int = 0
    audio_s: float = 0.0
    queue_ms: float
    """Time until the first token or input was in a step; `prefill_ms` is that until the first output
    token."""
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
    """Calls and batch rows that were computed, counted when they end."""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    audio_seconds: float = 0.0
    cpu_ms: float = 0.0
    """CPU time of the engine's steps on all threads."""
    recalled_requests: int = 0
    """Calls answered from the answer cache, counted in no other field."""
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
