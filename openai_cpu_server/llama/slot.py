"""An open slot: how its request chooses tokens, and under what constraint."""

from __future__ import annotations

from concurrent.futures import Future

import numpy as np

from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import Open, Sample, TokenLogprob
from openai_cpu_server.llama.constrained import Allowed, ConstrainedOutput
from openai_cpu_server.llama.context import Logits
from openai_cpu_server.llama.logprobs import score
from openai_cpu_server.llama.sampling import Sampler


class OpenSlot:
    """Owns its sampler. `constrained` is being started, perhaps in another thread."""

    def __init__(
        self, opened: Open, sampler: Sampler, constrained: Future[ConstrainedOutput] | None = None
    ) -> None:
        self.constrained = constrained
        self.constraint: Constraint | None = opened.constraint
        self._sampler = sampler
        self._top_logprobs = opened.top_logprobs

    @property
    def num_top(self) -> int:
        return self._top_logprobs or 0

    def sample(self, logits: Logits) -> Sample:
        """(vocabulary,) -> the next token, with all that are forced behind it. Raises `ConstraintFailed`.

        Where log-probabilities are asked for, forced tokens come one at a time: each has its own.
        """
        if self.constrained is None:
            token = self._sampler.choose(logits)
            self._sampler.accept(token)
            return Sample(token, self._score(logits, token))
        output = self.constrained.result()
        token = output.take_one_forced() if output.is_forced else self._choose(logits, output)
        self._sampler.accept(token)
        if self._top_logprobs is not None:
            return Sample(token, self._score(logits, token))
        forced = output.take_forced()
        for follower in forced:
            self._sampler.accept(follower)
        return Sample(token, forced=forced)

    def close(self) -> None:
        self._sampler.close()

    def _choose(self, logits: Logits, output: ConstrainedOutput) -> int:
        allowed = output.allowed()
        token = self._sampler.choose(logits, allowed)
        while not output.takes(token):
            allowed = _without(token, allowed, len(logits))
            token = self._sampler.choose(logits, allowed)
        output.accept(token)
        return token

    def _score(self, logits: Logits, token: int) -> TokenLogprob | None:
        return None if self._top_logprobs is None else score(logits, token, self._top_logprobs)


def _without(token: int, allowed: Allowed | None, vocab_size: int) -> Allowed:
    left = np.ones(vocab_size, np.bool_) if allowed is None else allowed
    left[token] = False
    return left
