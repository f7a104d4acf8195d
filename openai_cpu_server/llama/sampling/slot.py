"""An open slot: how its request chooses tokens, and under which constraint."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import Open, Sample, TokenLogprob, num_right
from openai_cpu_server.llama.cells.context import Logits
from openai_cpu_server.llama.grammar.constrained import Allowed, ConstrainedOutput
from openai_cpu_server.llama.sampling.logprobs import score
from openai_cpu_server.llama.sampling.sampler import Sampler


class Sampled(NamedTuple):
    """The result of a span and its draft."""

    samples: tuple[Sample, ...]
    num_accepted: int
    """How many tokens of the draft, from its beginning on, belong to the output."""
    error: RequestFailed | None = None
    """Why nothing could be sampled behind them; None: something could."""


class OpenSlot:
    """A slot that is in use. It owns its sampler. `constrained` may still be starting in another thread."""

    def __init__(
        self, opened: Open, sampler: Sampler, constrained: Future[ConstrainedOutput] | None = None
    ) -> None:
        self.constrained = constrained
        self.constraint: Constraint | None = opened.constraint
        self.tokens = [*opened.prompt, *opened.output]
        """The tokens of the sequence, as far as they are known."""
        self._sampler = sampler
        self._top_logprobs = opened.top_logprobs
        self._scored = opened.sampling.scored

    @property
    def num_top(self) -> int:
        return self._top_logprobs or 0

    def num_allowed(self, draft: Sequence[int]) -> int:
        """How many of the draft's tokens, from its beginning on, the constraint allows."""
        if self.constrained is None:
            return len(draft)
        try:
            with contained():
                return self.constrained.result().num_allowed(draft)
        except RequestFailed:
            return 0  # it fails again, and is told, when a token is sampled

    def sample_along(self, draft: Sequence[int], logits: Logits) -> Sampled:
        """Sample from (1 + draft, vocabulary): after the span's last token and each draft token that was
        right.

        Every token is chosen as without a draft, by the same draw; the draft only says which rows of logits
        are there already. So a draft token x is accepted with the target's own p(x), and what is chosen in
        its place is distributed as p without x: rejection sampling, whose output knows nothing of drafts.
        """
        samples: list[Sample] = []
        output: list[int] = []
        while len(output) <= len(draft) and output == list(draft[: len(output)]):
            try:
                with contained():
                    sample = self.sample(logits[len(output)])
            except RequestFailed as error:
                return Sampled(tuple(samples), len(output), error)
            samples.append(sample)
            output += (sample.token, *sample.forced)
        self.tokens += output
        return Sampled(tuple(samples), num_right(draft, output))

    def sample(self, logits: Logits) -> Sample:
        """(vocabulary,) -> the next token and the forced ones behind it. Raises `ConstraintFailed`.

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
        if self._top_logprobs is None:
            return None
        return score(logits, token, self._top_logprobs, self._scored)


def _without(token: int, allowed: Allowed | None, vocab_size: int) -> Allowed:
    left = np.ones(vocab_size, np.bool_) if allowed is None else allowed
    left[token] = False
    return left
