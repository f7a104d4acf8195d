"""What is added up by API key, model and day: what was used, and what that costs."""

from __future__ import annotations

import msgspec


class Amounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was used; amounts can be added."""

    requests: int = 0
    """Calls and rows of batches that were computed, counted when they end."""
    input_tokens: int = 0
    """Tokens of prompts and of inputs, the cached ones included."""
    cached_tokens: int = 0
    """How many of these were not computed, because another request had."""
    output_tokens: int = 0
    cpu_ms: float = 0.0
    """CPU time of the engine's steps, of all its threads."""
    recalled_requests: int = 0
    """Calls whose answer the cache of answers had. They count nowhere else."""
    recalled_input_tokens: int = 0
    recalled_output_tokens: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            requests=self.requests + other.requests,
            input_tokens=self.input_tokens + other.input_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cpu_ms=self.cpu_ms + other.cpu_ms,
            recalled_requests=self.recalled_requests + other.recalled_requests,
            recalled_input_tokens=self.recalled_input_tokens + other.recalled_input_tokens,
            recalled_output_tokens=self.recalled_output_tokens + other.recalled_output_tokens,
        )


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a million tokens of one model cost, in any currency."""

    input: float
    """For those that were computed."""
    cached: float
    output: float
