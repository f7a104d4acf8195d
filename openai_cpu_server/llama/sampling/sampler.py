"""How one request chooses its tokens: logits are adjusted, cut down and drawn from; and natural log-
probabilities."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.request import COLDEST, REPEAT_PENALTY, Sampling
from openai_cpu_server.contract.step import Open, TokenLogprob
from openai_cpu_server.errors import ServerError
from openai_cpu_server.llama.cells.context import Logits
from openai_cpu_server.llama.grammar.constrained import Allowed
from openai_cpu_server.llama.sampling.truncation import Candidates, Truncation, truncates


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


_MASK = 2**64 - 1
_BLOCK = 256
_FEW = 1024


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1). Neighbouring seeds and positions give as good as independent numbers."""
    return (_splitmix64(_splitmix64(seed) + position) >> 11) * 2.0**-53


def _splitmix64(state: int) -> int:
    """The 64-bit mixer of Steele, Lea and Flood (2014)."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def draw(logits: Logits, temperature: float, chance: float) -> int:
    """Index into `logits` at the quantile `chance` of their softmax at `temperature`.

    `logits` may hold -inf (never drawn), but its largest must be finite. A temperature below `COLDEST` counts
    as that.
    """
    if len(logits) <= _FEW:
        return _one_of_a_few(logits.astype(np.float64), temperature, chance)
    scale = np.float32(max(temperature, COLDEST))
    with np.errstate(over="ignore"):  # what a cold division sends to -inf has weight 0
        weights = np.exp((logits - logits.max()) / scale)
    return _index_at(weights, chance)


def _one_of_a_few(logits: npt.NDArray[np.float64], temperature: float, chance: float) -> int:
    """The same draw for few tokens, with half of the overhead. Nothing overflows float32 here."""
    weights = np.exp((logits - logits.max()) / max(temperature, COLDEST))
    sums = weights.cumsum()
    return int(sums.searchsorted(min(chance * sums[-1], np.nextafter(sums[-1], 0)), "right"))


def _index_at(weights: Logits, chance: float) -> int:
    """The first index at which the cumulated weight exceeds `chance` of the whole.

    Cumulated in two levels: sums of blocks, then inside one of them (20 times faster than one `cumsum`).
    """
    starts = np.arange(0, len(weights), _BLOCK)
    sums = np.add.reduceat(weights, starts, dtype=np.float64).cumsum()
    goal = min(chance * sums[-1], np.nextafter(sums[-1], 0))
    block = int(sums.searchsorted(goal, "right"))
    before = sums[block - 1] if block else 0.0
    first = block * _BLOCK
    inside = weights[first : first + _BLOCK].cumsum(dtype=np.float64)
    index = int(inside.searchsorted(goal - before, "right"))
    if index == len(inside):  # the two levels round differently
        index = int(np.flatnonzero(weights[first : first + _BLOCK])[-1])
    return first + index


class BadLogits(ServerError):
    """The model computed something that is no distribution (NaN, or nothing above minus infinity)."""


def score(logits: Logits, token: int, num_top: int, also: tuple[int, ...] = ()) -> TokenLogprob:
    """(vocabulary,) before any sampling parameter -> the token's score, and those of the `num_top` best and
    of the tokens in `also`.

    Raises `BadLogits`.
    """
    offset = _log_sum_exp(logits)
    top = tuple((best, float(logits[best]) - offset) for best in (*_best(logits, num_top), *also))
    return TokenLogprob(token=token, logprob=float(logits[token]) - offset, top=top)


def _log_sum_exp(logits: Logits) -> float:
    largest = logits.max()
    if not np.isfinite(largest):
        raise BadLogits(f"The largest logit is {largest}.")
    return float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))


def _best(logits: Logits, count: int) -> list[int]:
    """The tokens with the largest logits, best first."""
    count = min(count, len(logits))
    if count == 0:
        return []
    found = np.argpartition(logits, -count)[-count:]
    return [int(token) for token in sorted(found, key=lambda token: (-logits[token], token))]


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
