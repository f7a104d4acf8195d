"""llama.cpp's samplers in its order, on the few tokens that matter.

A draw depends only on (seed, output position), whatever else is computed, interrupted or replayed.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from openai_cpu_server.contract.request import COLDEST, REPEAT_PENALTY, DryPenalty, Sampling
from openai_cpu_server.contract.step import Open, TokenLogprob
from openai_cpu_server.errors import ServerError
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import Logits
from openai_cpu_server.llama.grammar.constraints import Allowed
from openai_cpu_server.llama.model.model import NativeObject

_Spelling = Callable[[int], bytes]
_MOST_EXPONENT = 80.0
"""Larger powers of e would overflow float32."""
_MORE_TOKENS = 256


class Adjustments:
    """Bias, penalties, end tokens, in this order. They change logits (vocabulary,) in place; -inf forbids."""

    def __init__(
        self, opened: Open, *, vocab_size: int, end_tokens: Collection[int], piece: _Spelling
    ) -> None:
        sampling, prompt, output = opened.sampling, opened.prompt, opened.output
        self._bias_tokens = np.fromiter(sampling.logit_bias.keys(), np.int64)
        self._bias = np.fromiter(sampling.logit_bias.values(), np.float32)
        assert all(0 <= token < vocab_size for token in sampling.logit_bias), "the API refuses such a bias"
        assert all(bias < math.inf for bias in sampling.logit_bias.values()), "the API refuses such a bias"
        self._parts: list[_RepeatPenalty | _UsagePenalty | BadWords | DryRepetitions] = []
        if sampling.repeat_penalty != 1:
            self._parts.append(_RepeatPenalty(sampling, prompt))
        if sampling.presence_penalty != 0 or sampling.frequency_penalty != 0:
            self._parts.append(_UsagePenalty(sampling))
        if rows := [row for row in sampling.bad_words if len(row) > 1]:
            self._parts.append(BadWords(rows))
        for token in output:
            for part in self._parts:
                part.accept(token)
        if sampling.dry is not None:
            self._parts.append(DryRepetitions(sampling.dry, (*prompt, *output), piece))
        single = {row[0] for row in sampling.bad_words if len(row) == 1}
        self._never = np.array(sorted(single | {*end_tokens} if sampling.ignore_eos else single), np.int64)
        self._not_yet = np.array(sorted({*single, *end_tokens, *sampling.stop_tokens}), np.int64)
        self._num_left = sampling.min_tokens - len(output)

    @property
    def is_empty(self) -> bool:
        return not (self._parts or len(self._bias_tokens) or len(self._forbidden))

    @property
    def _forbidden(self) -> NDArray[np.int64]:
        return self._not_yet if self._num_left > 0 else self._never

    def apply(self, adjusted: Logits) -> None:
        adjusted[self._bias_tokens] += self._bias
        for part in self._parts:
            part.apply(adjusted)
        adjusted[self._forbidden] = -np.inf

    def accept(self, token: int) -> None:
        for part in self._parts:
            part.accept(token)
        self._num_left -= 1


class _RepeatPenalty:
    """Tokens among the last n, including the prompt, as in llama.cpp."""

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
    """OpenAI's penalties, over the output only."""

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
    """Sequences of several tokens, over the output only."""

    def __init__(self, rows: Sequence[tuple[int, ...]]) -> None:
        self._rows = rows
        self._last: deque[int] = deque(maxlen=max(map(len, rows)) - 1)

    def accept(self, token: int) -> None:
        self._last.append(token)

    def apply(self, logits: Logits) -> None:
        last = tuple(self._last)
        ends = [row[-1] for row in self._rows if last[1 - len(row) :] == row[:-1]]
        logits[ends] = -np.inf


class DryRepetitions:
    """Penalties of `llama_sampler_init_dry`, whose breakers are found by text.

    Construction takes linear time, a token one pass of numpy.
    """

    def __init__(self, penalty: DryPenalty, tokens: Sequence[int], piece: _Spelling) -> None:
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
    """Count equal last tokens at each place (Z algorithm)."""
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


_Tokens = npt.NDArray[np.int32]
_Forbidden = npt.NDArray[np.intp]
_FEW_ALLOWED = 0.25
"""Share of a vocabulary up to which taking tokens out of a row is faster."""


class Survivors(NamedTuple):
    tokens: _Tokens
    logits: Logits


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
"""`llama_token_data`."""

_GROUPS = 64
_DEPTHS = (8.0, 16.0)
"""Distances below the largest logit at which a nucleus is searched before all is sorted."""


class Scratch:
    """Buffers shared by all samplers. Mapping numpy's temporaries takes longer than the arithmetic
    (docs/measurements.md)."""

    def __init__(self, vocab_size: int) -> None:
        assert _CANDIDATE.itemsize == ctypes.sizeof(llama_cpp.llama_token_data)
        self._copy = np.empty(vocab_size, np.float32)
        self._weights = np.empty(vocab_size, np.float32)
        self._records = np.zeros(vocab_size, _CANDIDATE)
        self._data = self._records.ctypes.data_as(llama_cpp.llama_token_data_p)

    def copy(self, logits: Logits) -> Logits:
        """Valid until the next copy."""
        copy = self._copy[: len(logits)]
        np.copyto(copy, logits)
        return copy

    def weights(self, logits: Logits, temperature: float = 1.0) -> Logits:
        """exp((logits - largest) / temperature), valid until the next call. The largest must be finite."""
        weights: Logits = np.subtract(logits, logits.max(), out=self._weights[: len(logits)])
        if temperature != 1:
            with np.errstate(over="ignore"):  # what a cold division sends to -inf has weight 0
                weights /= np.float32(temperature)
        np.exp(weights, out=weights)
        return weights

    def narrowed(self, chain: object, tokens: _Tokens, logits: Logits) -> Survivors:
        count = len(tokens)
        self._records["id"][:count] = tokens
        self._records["logit"][:count] = logits[tokens]
        array = llama_cpp.llama_token_data_array(self._data, count, -1, False)
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        left = self._records[: array.size]
        return Survivors(left["id"].copy(), left["logit"].copy())


def above(logits: Logits, floor: float) -> _Tokens:
    return np.flatnonzero(logits > floor).astype(np.int32)


def best_tokens(logits: Logits, count: int) -> _Tokens:
    """Return the `count` best tokens, and perhaps others."""
    width = len(logits) // _GROUPS
    if not 0 < count <= width:
        return above(logits, -math.inf)
    grouped = logits[: width * _GROUPS].reshape(_GROUPS, width)
    bests = grouped.max(axis=0)
    bound = np.partition(bests, width - count)[width - count]
    if bound == -math.inf:
        return above(logits, -math.inf)
    columns = np.flatnonzero(bests >= bound)  # the others have nothing, and need not be looked through
    rows, places = np.divmod(np.flatnonzero(grouped.take(columns, axis=1) >= bound), len(columns))
    behind = width * _GROUPS + np.flatnonzero(logits[width * _GROUPS :] >= bound)
    return np.concatenate((rows * width + columns[places], behind)).astype(np.int32)


def nucleus(logits: Logits, share: float, scratch: Scratch) -> _Tokens:
    """Return the top-p tokens; of equal ones at the edge the first. The largest logit must be finite."""
    weights = scratch.weights(logits)
    wanted = share * float(_block_sums(weights).sum(dtype=np.float64))
    for depth in (*_DEPTHS, math.inf):  # few tokens, so that sorting them is cheap
        tokens = above(weights, math.exp(-depth))
        if weights[tokens].sum(dtype=np.float64) >= wanted:
            break
    heavy = weights[tokens]
    heaviest = np.sort(heavy)[::-1]
    count = int(heaviest.cumsum(dtype=np.float64).searchsorted(wanted)) + 1
    least = heaviest[min(count, len(heaviest)) - 1]
    is_inside = heavy >= least
    tokens, heavy = tokens[is_inside], heavy[is_inside]
    excess = len(tokens) - count
    return np.delete(tokens, np.flatnonzero(heavy == least)[-excess:]) if excess > 0 else tokens


_MIN_KEEP = 1
_NEGLIGIBLE = 80.0
"""Probabilities under 1e-34, for which `typical` would compute 0 * log(0)."""


_ROUNDING = 1e-3


class Truncation(NativeObject):
    def __init__(self, sampling: Sampling, scratch: Scratch) -> None:
        params = llama_cpp.llama_sampler_chain_default_params()
        super().__init__(llama_cpp.llama_sampler_chain_init(params), llama_cpp.llama_sampler_free)
        self._scratch = scratch
        self._sampling = sampling
        samplers = [] if sampling.top_k is None else [llama_cpp.llama_sampler_init_top_k(sampling.top_k)]
        is_nucleus = sampling.top_k is None and sampling.typical_p >= 1  # `_keepable` has cut it out already
        samplers += [
            llama_cpp.llama_sampler_init_typical(sampling.typical_p, _MIN_KEEP),
            llama_cpp.llama_sampler_init_top_p(1.0 if is_nucleus else sampling.top_p, _MIN_KEEP),
            llama_cpp.llama_sampler_init_min_p(sampling.min_p, _MIN_KEEP),
        ]
        for sampler in samplers:  # the chain owns them; inactive parameters change nothing
            llama_cpp.llama_sampler_chain_add(self.handle, sampler)

    def apply(self, logits: Logits) -> Survivors:
        tokens = _keepable(self._sampling, logits, self._scratch)
        return self._scratch.narrowed(self.handle, tokens, logits)


def _keepable(sampling: Sampling, logits: Logits, scratch: Scratch) -> _Tokens:
    if sampling.top_k is not None:
        tokens = best_tokens(logits, sampling.top_k)
        return tokens[logits[tokens] > _below(logits, _NEGLIGIBLE)] if sampling.typical_p < 1 else tokens
    if sampling.typical_p < 1:
        return above(logits, _below(logits, _NEGLIGIBLE))
    if sampling.top_p < 1:
        return nucleus(logits, sampling.top_p, scratch)
    return above(logits, _below(logits, _ROUNDING - math.log(sampling.min_p)))


def _below(logits: Logits, depth: float) -> float:
    """Large float32 have no small steps, but the result is always below the largest."""
    largest = logits.max()
    return float(min(largest - np.float32(depth), np.nextafter(largest, np.float32(-np.inf))))


_MASK = 2**64 - 1
_OF_XTC = 0x585443
"""Separates XTC's random numbers from the draws."""
_BLOCK = 256
_FEW = 1024


def uniform(seed: int, position: int) -> float:
    """Return a number in [0, 1), practically independent for neighbouring seeds and positions."""
    return (_splitmix64(_splitmix64(seed) + position) >> 11) * 2.0**-53


def _splitmix64(state: int) -> int:
    """Mixer of Steele, Lea and Flood (2014)."""
    state = (state + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def draw(
    logits: Logits, temperature: float, chance: float, scratch: Scratch, forbidden: _Forbidden | None = None
) -> int:
    """Return the index at the quantile `chance` of the softmax. The largest logit must be finite, and not
    forbidden."""
    if len(logits) <= _FEW:  # half of the overhead, and nothing overflows
        exact = logits.astype(np.float64)
        weights = np.exp((exact - exact.max()) / max(temperature, COLDEST))
        if forbidden is not None:
            weights[forbidden] = 0
        sums = weights.cumsum()
        return int(sums.searchsorted(min(chance * sums[-1], np.nextafter(sums[-1], 0)), "right"))
    all_weights = scratch.weights(logits, max(temperature, COLDEST))
    if forbidden is not None:
        all_weights[forbidden] = 0
    return _index_at(all_weights, chance)


def _index_at(weights: Logits, chance: float) -> int:
    """Cumulation in two levels is 20 times faster than one `cumsum`."""
    sums = _block_sums(weights).cumsum(dtype=np.float64)
    goal = min(chance * sums[-1], np.nextafter(sums[-1], 0))
    block = int(sums.searchsorted(goal, "right"))
    before = sums[block - 1] if block else 0.0
    first = block * _BLOCK
    inside = weights[first : first + _BLOCK].cumsum(dtype=np.float64)
    index = int(inside.searchsorted(goal - before, "right"))
    if index == len(inside):  # the two levels round differently
        index = int(np.flatnonzero(weights[first : first + _BLOCK])[-1])
    return first + index


def _block_sums(weights: Logits) -> Logits:
    whole = len(weights) // _BLOCK * _BLOCK
    sums = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    return np.append(sums, weights[whole:].sum()) if whole < len(weights) else sums


class BadLogits(ServerError):
    """Logits have NaN, or nothing above minus infinity."""


def _best(logits: Logits, count: int) -> list[int]:
    if count == 0:
        return []
    found = best_tokens(logits, count)
    if len(found) < count:  # others are at -inf
        found = np.arange(len(logits), dtype=np.int32)
    return [int(token) for token in found[np.argsort(-logits[found], kind="stable")[:count]]]


_LARGEST = float(np.finfo(np.float32).max)


class Sampler:
    """Adjustments, then truncation, then the draw. Methods raise `BadLogits`.

    If an unconstrained request forbids every token, its output ends with the model's end token, or continues
    with the best token.
    """

    def __init__(
        self, opened: Open, scratch: Scratch, *, vocab_size: int, end_tokens: frozenset[int], piece: _Spelling
    ) -> None:
        self._scratch = scratch
        self._sampling = sampling = opened.sampling
        self._position = len(opened.output)
        self._end_tokens = end_tokens
        self._adjustments = Adjustments(opened, vocab_size=vocab_size, end_tokens=end_tokens, piece=piece)
        truncates = min(sampling.typical_p, sampling.top_p) < 1 or sampling.min_p > 0
        narrows = sampling.temperature > 0 and (truncates or sampling.top_k is not None)
        self._truncation = Truncation(sampling, scratch) if narrows else None

    def choose(self, logits: Logits, allowed: Allowed | None = None) -> int:
        best = int(logits.argmax())
        if not np.isfinite(logits[best]):
            raise BadLogits(
                f"The model's largest logit is {logits[best]} at output position {self._position}."
            )
        with np.errstate(all="ignore"):  # NaNs are replaced before anything reads them
            return self._choose(best, logits, allowed)

    def _choose(self, best: int, logits: Logits, allowed: Allowed | None) -> int:
        adjusted = logits
        if not self._adjustments.is_empty:
            adjusted = self._scratch.copy(logits)
            self._adjustments.apply(adjusted)
            adjusted = finite_logits(adjusted)
        if allowed is not None:
            return self._choose_allowed(best, logits, adjusted, allowed)
        if adjusted is not logits:
            still_best = int(adjusted.argmax())
            if adjusted[still_best] == -np.inf:
                return min(self._end_tokens, default=best)
            best = still_best
        return best if self._sampling.temperature <= 0 else self._draw(adjusted)

    def _choose_allowed(self, best: int, logits: Logits, adjusted: Logits, allowed: Allowed) -> int:
        """The grammar overrides adjustments that forbid all it allows.

        Few allowed tokens are taken out of the row; few forbidden ones get no weight, without a copy.
        """
        is_cold = self._sampling.temperature <= 0
        if np.count_nonzero(allowed) <= len(allowed) * _FEW_ALLOWED:
            tokens = np.flatnonzero(allowed)
            row = adjusted[tokens]
            if not row.max() > -np.inf:
                row = logits[tokens]
                row = row if row.max() > -np.inf else np.zeros_like(row)
            return int(tokens[row.argmax() if is_cold else self._draw(row)])
        is_best_allowed = adjusted is logits and allowed[best]
        if is_best_allowed and is_cold:
            return best
        forbidden = np.flatnonzero(~allowed)
        is_cut = self._truncation is not None or self._sampling.top_n_sigma > 0
        if is_best_allowed and not is_cut and not self._excludes_top_choices:
            return self._draw(logits, forbidden)
        masked = self._scratch.copy(logits) if adjusted is logits else adjusted
        masked[forbidden] = -np.inf
        if not masked.max() > -np.inf:
            masked = self._scratch.copy(logits)
            masked[forbidden] = -np.inf
            if not masked.max() > -np.inf:
                masked[allowed] = 0
        return int(masked.argmax()) if is_cold else self._draw(masked)

    @property
    def _excludes_top_choices(self) -> bool:
        probability = self._sampling.xtc_probability
        return probability > 0 and uniform(self._sampling.seed ^ _OF_XTC, self._position) < probability

    def accept(self, token: int) -> None:
        self._adjustments.accept(token)
        self._position += 1

    def score(self, logits: Logits, token: int, num_top: int, also: tuple[int, ...] = ()) -> TokenLogprob:
        """Return log-probabilities before adjustments."""
        largest = logits.max()
        if not np.isfinite(largest):
            raise BadLogits(f"The largest logit is {largest}.")
        weights = self._scratch.weights(logits)
        offset = float(largest) + math.log(_block_sums(weights).sum(dtype=np.float64))
        top = tuple((best, float(logits[best]) - offset) for best in (*_best(logits, num_top), *also))
        return TokenLogprob(token=token, logprob=float(logits[token]) - offset, top=top)

    def close(self) -> None:
        if self._truncation is not None:
            self._truncation.close()

    def _draw(self, logits: Logits, forbidden: _Forbidden | None = None) -> int:
        """`forbidden`: only if all others can be drawn."""
        chance = uniform(self._sampling.seed, self._position)
        temperature = self._sampling.temperature
        if self._sampling.top_n_sigma > 0:
            logits = within_sigmas(logits, self._sampling.top_n_sigma)
        if self._truncation is None and not self._excludes_top_choices:
            return draw(logits, temperature, chance, self._scratch, forbidden)
        if self._truncation is None:
            tokens = above(logits, -math.inf)
            survivors = Survivors(tokens, logits[tokens])
        else:
            survivors = self._truncation.apply(logits)
        if self._excludes_top_choices:
            survivors = without_top_choices(survivors, self._sampling.xtc_threshold)
        return int(survivors.tokens[draw(survivors.logits, temperature, chance, self._scratch)])


def within_sigmas(logits: Logits, sigmas: float) -> Logits:
    finite_ones = logits[logits > -np.inf]
    floor = float(logits.max()) - sigmas * float(finite_ones.std(dtype=np.float64))
    return np.where(logits >= np.float32(floor), logits, np.float32(-np.inf))


def without_top_choices(candidates: Survivors, threshold: float) -> Survivors:
    """XTC: of the tokens above the threshold only the least likely stays."""
    weights = np.exp(candidates.logits.astype(np.float64) - float(candidates.logits.max()))
    is_top = weights >= threshold * weights.sum()
    if is_top.sum() < 2:
        return candidates
    tops = np.flatnonzero(is_top)
    is_top[tops[np.argmin(candidates.logits[tops])]] = False
    return Survivors(candidates.tokens[~is_top], candidates.logits[~is_top])


def finite_logits(adjusted: Logits) -> Logits:
    """Replace NaN and infinities; -inf, which forbids, stays."""
    largest = adjusted.max()
    if np.isfinite(largest) or largest == -np.inf:
        return adjusted
    return np.nan_to_num(adjusted, nan=-np.inf, posinf=_LARGEST, neginf=-np.inf)
