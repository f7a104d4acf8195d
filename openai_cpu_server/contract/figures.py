"""The figures of a request, from the engine's end of it to usage, log and metrics.

The engine counts what one sequence came to. The engine's client adds up those of a call, and puts their times
beside them; the API adds what the prompt was. Observers and the families of routes only show that, each in
words of their own. A new figure is a field here, is counted where the engine ends an output, and is shown.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class SequenceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What one sequence came to. Numbers of several can be added."""

    output_tokens: int = 0
    """Tokens sampled or forced, those of an end token or a stop string included."""
    thought_tokens: int = 0
    """How many of these are thoughts, marks included."""
    forced_tokens: int = 0
    """How many of these the constraint forced: they were not sampled. After a crash: those since then."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, for another request had computed them."""
    preemptions: int = 0
    """Times that it gave up its cells for somebody else."""
    interruptions: int = 0
    """How many of its steps were thrown away for somebody else."""
    padded_tokens: int = 0
    """Throw-away tokens in the steps that it took part in."""
    drafted_tokens: int = 0
    """Tokens computed ahead in the hope that they are what comes. After a crash: those since then."""
    accepted_tokens: int = 0
    """How many of these came: they are in the output."""


_OUTCOME = frozenset({"output_tokens", "thought_tokens"})
NO_WORK = {name: 0 for name in SequenceFigures.__struct_fields__ if name not in _OUTCOME}
"""The figures, beside those of the output itself, of one that is told once more and was not computed."""


class Figures(SequenceFigures, frozen=True, kw_only=True):
    """What an API call came to, all its sequences together. Times are in milliseconds; the parts add up to
    the latency.

    A call that embeds or scores has no tokens of output, and its prefill is all of its computing.
    """

    prompt_tokens: int = 0
    """The length of its prompts or inputs; a prompt counts once, however many choices."""
    image_tokens: int = 0
    """How many of these are rows of pictures."""
    audio_tokens: int = 0
    """How many of these are rows of sounds."""
    audio_s: float = 0.0
    """So long these sounds take."""
    queue_ms: float
    """Time until its first token, or input, was in a step."""
    prefill_ms: float
    """Time from then to its first output token."""
    generation_ms: float = 0.0
    latency_ms: float
    tokens_per_second: float
    """Rate over the time after the queue."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.output_tokens


def of_rounds(rounds: Sequence[Figures]) -> Figures:
    """Of generations that followed one another for one answer. What was between them is no part of it."""
    parts = ("prompt_tokens", "image_tokens", "audio_tokens", "audio_s", *_TIMES)
    sums = {name: sum(getattr(one, name) for one in rounds) for name in parts}
    working_ms = sums["prefill_ms"] + sums["generation_ms"]
    tokens = sum(one.output_tokens for one in rounds)
    rate = 1000 * tokens / working_ms if working_ms else 0.0
    return Figures(**added_up(rounds), **sums, tokens_per_second=rate)


def added_up(sequences: Iterable[SequenceFigures]) -> dict[str, int]:
    """By the names of the figures."""
    parts = list(sequences)
    return {name: sum(getattr(part, name) for part in parts) for name in SequenceFigures.__struct_fields__}


_TIMES = ("queue_ms", "prefill_ms", "generation_ms", "latency_ms")


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was used; amounts can be added."""

    requests: int = 0
    """Calls and rows of batches that were computed, counted when they end."""
    input_tokens: int = 0
    """Tokens of prompts and of inputs, the cached ones included."""
    cached_tokens: int = 0
    """How many of these were not computed, because another request had."""
    output_tokens: int = 0
    audio_seconds: float = 0.0
    """How long the sounds in these prompts take."""
    cpu_ms: float = 0.0
    """CPU time of the engine's steps, of all its threads."""
    recalled_requests: int = 0
    """Calls whose answer the cache of answers had. They count nowhere else."""
    recalled_input_tokens: int = 0
    recalled_output_tokens: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        names = self.__struct_fields__
        return Amounts(**{name: getattr(self, name) + getattr(other, name) for name in names})


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of one model cost, in any currency."""

    input: float
    """For those that were computed."""
    cached: float
    output: float
    audio_minute: float = 0.0
    """For a minute of sound, beside its tokens."""
