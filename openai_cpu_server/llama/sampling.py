"""How one request chooses its tokens."""

from __future__ import annotations

import numpy as np

from openai_cpu_server.contract.step import Open
from openai_cpu_server.llama.adjustments import Adjustments
from openai_cpu_server.llama.context import Logits
from openai_cpu_server.llama.draw import draw, uniform
from openai_cpu_server.llama.logprobs import BadLogits
from openai_cpu_server.llama.truncation import Candidates, Truncation, truncates


class Sampler:
    """Of one open slot: bias and penalties, then truncation, then the draw of its output position.

    A request whose parameters forbid every token gets the model's end token: its output ends there (what the
    model would have chosen freely, if it knows no end).
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

    def sample(self, logits: Logits) -> int:
        """(vocabulary,) -> the token of the next output position. Raises `BadLogits`."""
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise BadLogits(
                f"The model's largest logit is {logits[best]} at output position {self._position}."
            )
        token = self._choose(logits, best)
        self._adjustments.accept(token)
        self._position += 1
        return token

    def close(self) -> None:
        if self._truncation is not None:
            self._truncation.close()

    def _choose(self, logits: Logits, best: int) -> int:
        if not self._adjustments.is_empty:
            logits = self._adjustments.apply(logits)
            allowed = int(logits.argmax())
            if logits[allowed] == -np.inf:
                return min(self._end_tokens, default=best)
            best = allowed
        if self._sampling.temperature <= 0:
            return best
        return self._draw(logits)

    def _draw(self, logits: Logits) -> int:
        chance = uniform(self._sampling.seed, self._position)
        temperature = self._sampling.temperature
        if self._truncation is None:
            return draw(logits, temperature, chance)
        survivors = self._truncation.apply(logits)
        return int(survivors.tokens[draw(survivors.logits, temperature, chance)])
