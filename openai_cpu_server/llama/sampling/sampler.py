"""How one request chooses its tokens."""

from __future__ import annotations

import numpy as np

from openai_cpu_server.contract.step import Open
from openai_cpu_server.llama.cells.context import Logits
from openai_cpu_server.llama.grammar.constrained import Allowed
from openai_cpu_server.llama.sampling.adjustments import Adjustments
from openai_cpu_server.llama.sampling.draw import draw, uniform
from openai_cpu_server.llama.sampling.logprobs import BadLogits
from openai_cpu_server.llama.sampling.truncation import Candidates, Truncation, truncates

_LARGEST = float(np.finfo(np.float32).max)


class Sampler:
    """The sampler of one open slot: bias and penalties, then truncation, then the draw of its output
    position.

    A free request whose parameters forbid every token gets the model's end token: its output ends there (what
    the model would have chosen freely, if it knows no end).
    """

    def __init__(self, opened: Open, candidates: Candidates, *, vocab_size: int, end_tokens: frozenset[int]):
        self._sampling = opened.sampling
        self._position = len(opened.output)
        self._end_tokens = end_tokens
        self._adjustments = Adjustments(
            opened.sampling,
            prompt=opened.prompt,
            output=opened.output,
            vocab_size=vocab_size,
            end_tokens=end_tokens,
        )
        is_random = opened.sampling.temperature > 0
        narrows = is_random and truncates(opened.sampling)
        self._truncation = Truncation(opened.sampling, candidates) if narrows else None

    def choose(self, logits: Logits, allowed: Allowed | None = None) -> int:
        """(vocabulary,) -> one of the allowed tokens for the next output position. Raises `BadLogits`."""
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise BadLogits(
                f"The model's largest logit is {logits[best]} at output position {self._position}."
            )
        with np.errstate(all="ignore"):  # what is no number any more is one again before anything reads it
            return self._choose(best, logits, allowed)

    def _choose(self, best: int, logits: Logits, allowed: Allowed | None) -> int:
        adjusted = logits if self._adjustments.is_empty else finite(self._adjustments.apply(logits))
        if allowed is not None:
            adjusted = _masked(adjusted, logits, allowed)
        if adjusted is not logits:
            still_best = int(adjusted.argmax())
            if adjusted[still_best] == -np.inf:
                return min(self._end_tokens, default=best)
            best = still_best
        return best if self._sampling.temperature <= 0 else self._draw(adjusted)

    def accept(self, token: int) -> None:
        """Record that `token` stands at the next output position, sampled or forced."""
        self._adjustments.accept(token)
        self._position += 1

    def close(self) -> None:
        if self._truncation is not None:
            self._truncation.close()

    def _draw(self, logits: Logits) -> int:
        chance = uniform(self._sampling.seed, self._position)
        temperature = self._sampling.temperature
        if self._truncation is None:
            return draw(logits, temperature, chance)
        survivors = self._truncation.apply(logits)
        return int(survivors.tokens[draw(survivors.logits, temperature, chance)])


def finite(adjusted: Logits) -> Logits:
    """The logits with numbers for what an adjustment has made of them beyond float32; -inf, which forbids,
    stays.

    Neither native samplers nor a draw can cope with NaN, or with an infinity as the largest.
    """
    largest = adjusted.max()
    if np.isfinite(largest) or largest == -np.inf:
        return adjusted
    return np.nan_to_num(adjusted, nan=-np.inf, posinf=_LARGEST, neginf=-np.inf)


def _masked(adjusted: Logits, logits: Logits, allowed: Allowed) -> Logits:
    """The logits, -inf where not allowed. The grammar wins over parameters that forbid all that it allows."""
    forbidden = ~allowed
    for preferred in (adjusted, logits):
        masked = preferred.copy()
        np.copyto(masked, -np.inf, where=forbidden)  # a third of `np.where`'s time
        if masked.max() > -np.inf:
            return masked
    return np.where(allowed, np.float32(0), np.float32(-np.inf))
