"""The steps of a piece of work under a policy, and the time that they should take. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from bench.limit.work import Policy, Request, Work


@dataclass(frozen=True)
class Part:
    """Consecutive tokens of one lane."""

    lane: int
    start: int
    tokens: int
    samples: bool
    """Whether logits are wanted after the last token."""


@dataclass(frozen=True)
class Shape:
    """One step. Lanes that begin hold the shared prefix before it; lanes that end are empty after it."""

    begins: tuple[int, ...]
    parts: tuple[Part, ...]
    ends: tuple[int, ...]
    padding: int

    @property
    def num_tokens(self) -> int:
        return sum(part.tokens for part in self.parts) + self.padding

    @property
    def is_decoding(self) -> bool:
        return all(part.tokens == 1 and part.samples for part in self.parts)


class Prices:
    """Milliseconds of a step by its tokens, in straight lines between the measured points."""

    def __init__(self, step_ms: Sequence[tuple[int, float]]) -> None:
        self._points = sorted(step_ms)
        self._sizes = [size for size, _ in self._points]

    @property
    def largest(self) -> int:
        return self._sizes[-1]

    @property
    def fastest(self) -> int:
        """The size at which a token costs least."""
        return min(self._points, key=lambda point: point[1] / point[0])[0]

    def ms(self, num_tokens: int) -> float:
        at = bisect_left(self._sizes, num_tokens)
        if at == len(self._sizes):
            size, ms = self._points[-1]
            return ms * num_tokens / size
        size, ms = self._points[at]
        if size == num_tokens or at == 0:
            return ms
        below, below_ms = self._points[at - 1]
        return below_ms + (ms - below_ms) * (num_tokens - below) / (size - below)

    def cheapest(self, num_tokens: int) -> int:
        """The size, from this one on, that takes the least time: some larger steps are faster."""
        larger = [(ms, size) for size, ms in self._points if size > num_tokens]
        return min([(self.ms(num_tokens), num_tokens), *larger])[1]


class _Lane:
    """A client, and the request that it has taken."""

    def __init__(self, number: int, request: Request, shared: int) -> None:
        self.number = number
        self.position = shared
        self.unread = request.prompt
        self.unwritten = request.output

    def part(self, tokens: int) -> Part:
        """Take the next tokens of the lane."""
        samples = tokens >= self.unread
        part = Part(self.number, self.position, tokens, samples)
        self.position += tokens
        self.unread = max(0, self.unread - tokens)
        self.unwritten -= samples
        return part


def shapes(work: Work, policy: Policy, prices: Prices) -> Iterator[Shape]:
    """All steps behind the shared prefix, with the padding that makes them faster."""
    waiting = iter(work.requests)
    lanes: dict[int, _Lane] = {}
    while True:
        begins = _fill(lanes, waiting, work)
        if not lanes:
            return
        parts = _parts(list(lanes.values()), policy)
        ends = tuple(number for number, lane in lanes.items() if lane.unwritten == 0)
        for number in ends:
            del lanes[number]
        yield Shape(begins, parts, ends, _padding(parts, policy, prices))


def latencies(
    shapes: Iterable[Shape], times_s: Iterable[float], *, begun_s: float = 0.0
) -> tuple[list[float], list[float]]:
    """The times to the first token and between tokens. All clients came `begun_s` ago, for the prefix."""
    now, since = 0.0, defaultdict[int, float](lambda: -begun_s)
    first, gaps = [], []
    is_begun: set[int] = set()
    for shape, seconds in zip(shapes, times_s, strict=True):
        is_begun.difference_update(shape.begins)
        now += seconds
        for lane in (part.lane for part in shape.parts if part.samples):
            (gaps if lane in is_begun else first).append(now - since[lane])
            is_begun.add(lane)
            since[lane] = now
    return first, gaps


def prefix_sizes(work: Work, prices: Prices) -> list[int]:
    """The steps for the shared prefix.
    They are the same under every policy, as nothing can be mixed with them."""
    size = prices.fastest
    return [min(size, work.shared - start) for start in range(0, work.shared, size)]


def predict_s(work: Work, policy: Policy, prices: Prices) -> float:
    """The predicted seconds, without attention."""
    prefix = [] if work.is_warm else prefix_sizes(work, prices)
    steps = [n for shape in shapes(work, policy, prices) for n in passes(shape, policy)]
    return sum(map(prices.ms, prefix + steps)) / 1000


def passes(shape: Shape, policy: Policy) -> list[int]:
    """The tokens of each pass over the weights. With cells apart, only neighbours are computed together."""
    if policy.unified:
        return [shape.num_tokens]
    found: list[int] = []
    last = None
    for part in shape.parts:
        if last is None or part.lane != last + 1:
            found.append(0)
        found[-1] += part.tokens
        last = part.lane
    return found


def _fill(lanes: dict[int, _Lane], waiting: Iterator[Request], work: Work) -> tuple[int, ...]:
    """Give the next requests to free clients."""
    begins = []
    for number in range(work.clients):
        if number not in lanes:
            request = next(waiting, None)
            if request is None:
                break
            lanes[number] = _Lane(number, request, work.shared)
            begins.append(number)
    return tuple(begins)


def _padding(parts: Sequence[Part], policy: Policy, prices: Prices) -> int:
    """The padding; 0 with cells apart, where it would be computed by itself."""
    num_tokens = sum(part.tokens for part in parts)
    if not policy.unified or num_tokens > prices.largest:
        return 0
    return prices.cheapest(num_tokens) - num_tokens


def _parts(lanes: Sequence[_Lane], policy: Policy) -> tuple[Part, ...]:
    if policy.readers is not None:
        return _equal_parts(lanes, policy.size, policy.readers)
    reading = [lane for lane in lanes if lane.unread]
    decoding = [lane for lane in lanes if not lane.unread]
    if reading and not policy.mixes:
        decoding = []
    parts = [lane.part(1) for lane in decoding]
    room = max(policy.size - len(parts), 1)
    for lane in reading:
        tokens = min(lane.unread, room)
        if tokens:
            parts.append(lane.part(tokens))
            room -= tokens
    return tuple(parts)


def _equal_parts(lanes: Sequence[_Lane], size: int, readers: int) -> tuple[Part, ...]:
    """The first lanes that read, as far as they are neighbours;
    else all lanes that decode, in their order."""
    ordered = sorted(lanes, key=lambda lane: lane.number)
    reading = [lane for lane in ordered if lane.unread]
    if not reading:
        return tuple(lane.part(1) for lane in ordered)
    first = reading[0].number
    together = [lane for n, lane in enumerate(reading[: min(readers, size)]) if lane.number == first + n]
    tokens = min(size // len(together), *(lane.unread for lane in together))
    return tuple(lane.part(tokens) for lane in together)
