"""What a request changes of logits before it chooses: biases, penalties, and what may not come."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable

import numpy as np

from openai_cpu_server.contract.request import REPEAT_PENALTY, DryPenalty, Sampling
from openai_cpu_server.llama.cells.context import Logits

Spelling = Callable[[int], bytes]
"""The text of a token, of control tokens too."""
_MOST_EXPONENT = 80.0
"""Powers above e to this are so many: more would be infinite as float32."""


class Adjustments:
    """The adjustments of one request, with the tokens so far. The order is: bias, penalties, end tokens."""

    def __init__(
        self,
        sampling: Sampling,
        *,
        prompt: Iterable[int],
        output: Iterable[int],
        vocab_size: int,
        end_tokens: Collection[int],
        piece: Spelling,
    ) -> None:
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        assert all(0 <= token < vocab_size for token in sampling.logit_bias), "the API refuses such a bias"
        assert all(bias < math.inf for bias in sampling.logit_bias.values()), "the API refuses such a bias"
        self._repeats = _RepeatPenalty(sampling, prompt) if sampling.repeat_penalty != 1 else None
        penalizes_usage = sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
        self._usage = _UsagePenalty(sampling) if penalizes_usage else None
        self._dry = DryRepetitions(sampling.dry, prompt, piece) if sampling.dry is not None else None
        self._ends = np.array(sorted({*end_tokens, *sampling.stop_tokens}), np.int64)
        self._may_not_end = sampling.ignore_eos
        self._num_left = sampling.min_tokens
        """Tokens that must come before the end."""
        for token in output:
            self.accept(token)

    @property
    def is_empty(self) -> bool:
        nothing_static = not len(self._bias_tokens) and not self._forbids_ends
        return nothing_static and self._repeats is None and self._usage is None and self._dry is None

    @property
    def _forbids_ends(self) -> bool:
        return bool(len(self._ends)) and (self._may_not_end or self._num_left > 0)

    def apply(self, adjusted: Logits) -> None:
        """(vocabulary,) -> the same, changed, with -inf where a token is forbidden."""
        adjusted[self._bias_tokens] += self._bias
        if self._repeats is not None:
            self._repeats.apply(adjusted)
        if self._usage is not None:
            self._usage.apply(adjusted)
        if self._dry is not None:
            self._dry.apply(adjusted)
        if self._forbids_ends:
            adjusted[self._ends] = -np.inf

    def accept(self, token: int) -> None:
        """Record that `token` was chosen."""
        if self._repeats is not None:
            self._repeats.accept(token)
        if self._usage is not None:
            self._usage.accept(token)
        if self._dry is not None:
            self._dry.accept(token)
        self._num_left -= 1


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

    def __init__(self, sampling: Sampling) -> None:
        self._presence = np.float32(sampling.presence_penalty)
        self._frequency = np.float32(sampling.frequency_penalty)
        self._counts: Counter[int] = Counter()

    def accept(self, token: int) -> None:
        self._counts[token] += 1

    def apply(self, logits: Logits) -> None:
        used = np.fromiter(self._counts, np.int64, len(self._counts))
        counts = np.fromiter(self._counts.values(), np.float32, len(self._counts))
        logits[used] -= self._presence + self._frequency * counts


class DryRepetitions:
    """Where the sequence's last tokens have stood before, and how many of them, token by token.

    Penalties are those of `llama_sampler_init_dry`: a repetition ends at a breaker. A breaker of several
    tokens is found by the text that they spell.
    """

    def __init__(self, penalty: DryPenalty, prompt: Iterable[int], piece: Spelling) -> None:
        self._penalty = penalty
        self._piece = piece
        self._breakers = [breaker.encode() for breaker in penalty.breakers]
        self._longest = max(map(len, self._breakers), default=1)
        self._tail = b""
        """The end of the text: a breaker may lie over several tokens."""
        self._tokens: list[int] = []
        self._places: dict[int, list[int]] = {}
        """By token, where it stands."""
        self._lengths: dict[int, int] = {}
        """By a place where the last token has stood before: so many tokens up to there are those up to the
        end."""
        power = math.log(penalty.base)
        self._most_above = int(_MOST_EXPONENT / power) if power > 0 else 0
        for token in prompt:
            self.accept(token)

    def accept(self, token: int) -> None:
        before, places = self._lengths, self._places.setdefault(token, [])
        goes_on = not self._ends_with_breaker(token)
        self._lengths = {at: before.get(at - 1, 0) + 1 for at in places} if goes_on else {}
        places.append(len(self._tokens))
        self._tokens.append(token)

    def apply(self, logits: Logits) -> None:
        allowed, last_n = self._penalty.allowed_length, self._penalty.last_n
        first = 0 if last_n is None else len(self._tokens) - last_n
        longest: dict[int, int] = {}
        for at, length in self._lengths.items():
            length = min(length, at - first + 1)
            follower = self._tokens[at + 1]
            if length >= max(allowed, 1) and longest.get(follower, 0) < length:
                longest[follower] = length
        for token, length in longest.items():
            if not self._has_breaker(self._piece(token)):
                above = min(length - allowed, self._most_above)
                logits[token] -= np.float32(self._penalty.multiplier * self._penalty.base**above)

    def _ends_with_breaker(self, token: int) -> bool:
        piece = self._piece(token)
        text = self._tail + piece
        self._tail = text[len(text) - self._longest + 1 :] if len(text) >= self._longest else text
        return self._has_breaker(text)

    def _has_breaker(self, text: bytes) -> bool:
        return any(breaker in text for breaker in self._breakers)
