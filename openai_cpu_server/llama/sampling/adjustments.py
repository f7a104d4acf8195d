"""Changes logits before a token is chosen: bias, penalties, forbidden end tokens."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np

from openai_cpu_server.contract.bounds import REPEAT_PENALTY
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.llama.cells.context import Logits


class Adjustments:
    """The adjustments of one request, with the tokens so far. The order is: bias, penalties, end tokens."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt: Iterable[int],
        output: Iterable[int],
        vocab_size: int,
        end_tokens: frozenset[int],
    ) -> None:
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        assert all(0 <= token < vocab_size for token in sampling.logit_bias), "the API refuses such a bias"
        assert all(bias < math.inf for bias in sampling.logit_bias.values()), "the API refuses such a bias"
        self._repeats = _RepeatPenalty(sampling, prompt) if sampling.repeat_penalty != 1 else None
        self._usage = _UsagePenalty(sampling, vocab_size) if _penalizes_usage(sampling) else None
        self._forbidden = np.array(sorted(end_tokens) if sampling.ignore_eos else [], np.int64)
        for token in output:
            self.accept(token)

    @property
    def is_empty(self) -> bool:
        nothing_static = not len(self._bias_tokens) and not len(self._forbidden)
        return nothing_static and self._repeats is None and self._usage is None

    def apply(self, logits: Logits) -> Logits:
        """(vocabulary,) -> a changed copy, with -inf where a token is forbidden."""
        adjusted = logits.copy()
        adjusted[self._bias_tokens] += self._bias
        if self._repeats is not None:
            self._repeats.apply(adjusted)
        if self._usage is not None:
            self._usage.apply(adjusted)
        adjusted[self._forbidden] = -np.inf
        return adjusted

    def accept(self, token: int) -> None:
        """Record that `token` was chosen."""
        if self._repeats is not None:
            self._repeats.accept(token)
        if self._usage is not None:
            self._usage.accept(token)


class _RepeatPenalty:
    """llama.cpp's repeat penalty: a factor makes tokens among the last n, prompt included, less likely."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int]) -> None:
        self._penalty = np.float32(REPEAT_PENALTY.nearest(sampling.repeat_penalty))
        self._window: deque[int] = deque(maxlen=sampling.repeat_last_n)
        self._counts: Counter[int] = Counter()
        for token in prompt:
            self.accept(token)

    def accept(self, token: int) -> None:
        if self._window.maxlen == 0:
            return
        if len(self._window) == self._window.maxlen:
            self._forget(self._window[0])
        self._window.append(token)
        self._counts[token] += 1

    def _forget(self, token: int) -> None:
        self._counts[token] -= 1
        if not self._counts[token]:
            del self._counts[token]

    def apply(self, logits: Logits) -> None:
        tokens = np.fromiter(self._counts, np.int64, len(self._counts))
        seen = logits[tokens]
        logits[tokens] = np.where(seen > 0, seen / self._penalty, seen * self._penalty)


class _UsagePenalty:
    """OpenAI's presence and frequency penalties, over the whole output and nothing else."""

    def __init__(self, sampling: Sampling, vocab_size: int) -> None:
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._counts = np.zeros(vocab_size, np.float32)

    def accept(self, token: int) -> None:
        self._counts[token] += 1

    def apply(self, logits: Logits) -> None:
        used = np.flatnonzero(self._counts)
        logits[used] -= self._presence + self._frequency * self._counts[used]


def _penalizes_usage(sampling: Sampling) -> bool:
    return sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
