"""Adjustments of logits by a request: biases, penalties, and forbidden tokens."""

from __future__ import annotations

import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from openai_cpu_server.contract.request import REPEAT_PENALTY, DryPenalty, Sampling
from openai_cpu_server.llama.cells.context import Logits

Spelling = Callable[[int], bytes]
"""Text of a token, also of control tokens."""
_MOST_EXPONENT = 80.0
"""Larger powers of e would overflow float32."""
_MORE_TOKENS = 256


class Adjustments:
    """Adjustments of one request in the order bias, penalties, end tokens."""

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
        dry = sampling.dry
        self._dry = DryRepetitions(dry, (*prompt, *output), piece) if dry is not None else None
        single = {row[0] for row in sampling.bad_words if len(row) == 1}
        rows = [row for row in sampling.bad_words if len(row) > 1]
        self._bad_words = BadWords(rows) if rows else None
        self._never = np.array(sorted(single | {*end_tokens} if sampling.ignore_eos else single), np.int64)
        self._not_yet = np.array(sorted({*single, *end_tokens, *sampling.stop_tokens}), np.int64)
        self._num_left = sampling.min_tokens
        """Tokens that must come before the end."""
        for token in output:
            self._count(token)

    @property
    def is_empty(self) -> bool:
        nothing_static = not len(self._bias_tokens) and not len(self._forbidden)
        parts = (self._repeats, self._usage, self._dry, self._bad_words)
        return nothing_static and not any(part is not None for part in parts)

    @property
    def _forbidden(self) -> NDArray[np.int64]:
        return self._not_yet if self._num_left > 0 else self._never

    def apply(self, adjusted: Logits) -> None:
        """Change logits (vocabulary,) in place; -inf forbids."""
        adjusted[self._bias_tokens] += self._bias
        if self._repeats is not None:
            self._repeats.apply(adjusted)
        if self._usage is not None:
            self._usage.apply(adjusted)
        if self._dry is not None:
            self._dry.apply(adjusted)
        adjusted[self._forbidden] = -np.inf
        if self._bad_words is not None:
            adjusted[self._bad_words.next_ones()] = -np.inf

    def accept(self, token: int) -> None:
        self._count(token)
        if self._dry is not None:
            self._dry.accept(token)

    def _count(self, token: int) -> None:
        if self._repeats is not None:
            self._repeats.accept(token)
        if self._usage is not None:
            self._usage.accept(token)
        if self._bad_words is not None:
            self._bad_words.accept(token)
        self._num_left -= 1


class _RepeatPenalty:
    """llama.cpp's: a factor for tokens among the last n, including the prompt."""

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
            oldest = self._window[0]
            self._counts[oldest] -= 1
            if not self._counts[oldest]:
                del self._counts[oldest]
        self._window.append(token)
        self._counts[token] += 1

    def apply(self, logits: Logits) -> None:
        tokens = np.fromiter(self._counts, np.int64, len(self._counts))
        seen = logits[tokens]
        logits[tokens] = np.where(seen > 0, seen / self._penalty, seen * self._penalty)


class _UsagePenalty:
    """OpenAI's presence and frequency penalties, over the output only."""

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


class BadWords:
    """Forbidden sequences of several tokens, over the output only."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self._rows = rows
        self._last: deque[int] = deque(maxlen=max(map(len, rows)) - 1)

    def accept(self, token: int) -> None:
        self._last.append(token)

    def next_ones(self) -> NDArray[np.int64]:
        last = tuple(self._last)
        ends = [row[-1] for row in self._rows if last[1 - len(row) :] == row[:-1]]
        return np.array(ends, np.int64)


class DryRepetitions:
    """Earlier occurrences of the last tokens.

    Penalties are those of `llama_sampler_init_dry`: a repetition ends at a breaker, which is found by its
    text. Construction takes linear time, a token one pass of numpy.
    """

    def __init__(self, penalty: DryPenalty, tokens: Sequence[int], piece: Spelling) -> None:
        self._penalty = penalty
        self._piece = functools.cache(piece)
        self._breakers = [breaker.encode() for breaker in penalty.breakers]
        self._longest = max(map(len, self._breakers), default=1)
        power = math.log(penalty.base)
        self._most_above = int(_MOST_EXPONENT / power) if power > 0 else 0
        if penalty.last_n is not None:
            tokens = tokens[max(len(tokens) - penalty.last_n, 0) :]
        self._count = len(tokens)
        self._tokens = np.array(tokens, np.int32)
        self._lengths = common_suffixes(tokens)
        """Number of tokens up to each place that equal the last ones, since the last breaker."""
        self._tail = b""
        """A breaker may span tokens."""
        self._stop_at_breaker()

    def _stop_at_breaker(self) -> None:
        matters = int(self._lengths[:-1].max(initial=0)) + self._longest
        pieces = [self._piece(token) for token in self._tokens[max(self._count - matters, 0) :].tolist()]
        text = b"".join(pieces)
        end = max((at + len(each) for each in self._breakers if (at := text.rfind(each)) >= 0), default=0)
        ends = np.cumsum([len(piece) for piece in pieces])
        num_behind = len(pieces) - 1 - int(ends.searchsorted(end, "left")) if end else self._count
        np.minimum(self._lengths, num_behind, out=self._lengths)
        self._tail = self._end_of(text)

    def accept(self, token: int) -> None:
        if self._count == len(self._tokens):
            room = np.zeros(_MORE_TOKENS, np.int32)
            self._tokens = np.concatenate([self._tokens, room])
            self._lengths = np.concatenate([self._lengths, room])
        before = self._lengths[: self._count]
        tail, text = self._tail, self._tail + self._piece(token)
        self._tail = self._end_of(text)
        if any(text.find(each, max(len(tail) - len(each) + 1, 0)) >= 0 for each in self._breakers):
            before[:] = 0
        else:
            before[1:] = before[:-1] + 1
            before[:1] = 1
            before *= self._tokens[: self._count] == token
        self._tokens[self._count] = token
        self._count += 1

    def apply(self, logits: Logits) -> None:
        allowed, last_n = self._penalty.allowed_length, self._penalty.last_n
        places = np.flatnonzero(self._lengths[: max(self._count - 1, 0)] >= max(allowed, 1))
        lengths = self._lengths[places]
        if last_n is not None:
            lengths = np.minimum(lengths, places - (self._count - last_n) + 1)
        followers, which = np.unique(self._tokens[places + 1], return_inverse=True)
        longest = np.zeros(len(followers), np.int32)
        np.maximum.at(longest, which, lengths)
        for token, length in zip(followers.tolist(), longest.tolist(), strict=True):
            if length < max(allowed, 1):
                continue
            piece = self._piece(token)
            if not any(breaker in piece for breaker in self._breakers):
                above = min(length - allowed, self._most_above)
                logits[token] -= np.float32(self._penalty.multiplier * self._penalty.base**above)

    def _end_of(self, text: bytes) -> bytes:
        return text[max(len(text) - self._longest + 1, 0) :]


def common_suffixes(tokens: Sequence[int]) -> NDArray[np.int32]:
    """Return how many tokens up to each place equal the last ones (Z algorithm backwards)."""
    backwards = tokens[::-1]
    count = len(backwards)
    lengths = [0] * count
    first = last = 0
    for at in range(1, count):
        length = min(lengths[at - first], last - at) if at < last else 0
        while at + length < count and backwards[length] == backwards[at + length]:
            length += 1
        lengths[at] = length
        if at + length > last:
            first, last = at, at + length
    return np.array(lengths[::-1], np.int32)
