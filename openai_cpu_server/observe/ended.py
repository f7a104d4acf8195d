"""The facts about a request that has ended, with the times between its tokens.

They are collected once, and all observers read them.
"""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

from openai_cpu_server.contract.figures import Amounts, Figures, of_rounds

BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
"""Upper bounds of the buckets. A CPU takes milliseconds for a token and minutes for a long prompt."""
_PARTS = 8
"""The parts of each bucket, for quantiles."""
_LOWEST_S = 0.0001


def _fine(low: float, high: float) -> list[float]:
    return [low * (high / low) ** (part / _PARTS) for part in range(1, _PARTS)] + [high]


_FINE_S = tuple(bound for low, high in pairwise((_LOWEST_S, *BOUNDS_S)) for bound in _fine(low, high))


class Distribution:
    """Counts durations. It is not thread-safe."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts: dict[int, int] = {}
        """The counts by index of the fine bucket.
        The bucket behind the last bound takes everything larger."""

    def add(self, seconds: float, count: int = 1) -> None:
        index = bisect_left(_FINE_S, seconds)
        self._counts[index] = self._counts.get(index, 0) + count
        self.sum_s += seconds * count

    def merge(self, other: Distribution) -> None:
        for index, count in other._counts.items():
            self._counts[index] = self._counts.get(index, 0) + count
        self.sum_s += other.sum_s

    @property
    def num(self) -> int:
        return sum(self._counts.values())

    @property
    def mean_s(self) -> float | None:
        return self.sum_s / self.num if self._counts else None

    def quantile_s(self, share: float) -> float | None:
        """A quantile in seconds; None if empty.
        It is at most a third off, usually far less. Larger values count as the last bound."""
        wanted = share * self.num
        below = 0
        for index, count in sorted(self._counts.items()):
            if below + count >= wanted:
                return _between(index, (wanted - below) / count)
            below += count
        return None

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """The (upper bound, how many are not above it) for each of `BOUNDS_S`."""
        entries = sorted(self._counts.items())
        below, position = 0, 0
        for number, bound in enumerate(BOUNDS_S, start=1):
            while position < len(entries) and entries[position][0] < number * _PARTS:
                below += entries[position][1]
                position += 1
            yield bound, below


def _between(index: int, share: float) -> float:
    """The value at this share of the fine bucket."""
    if index == len(_FINE_S):
        return _FINE_S[-1]
    low = _FINE_S[index - 1] if index else 0.0
    return low + share * (_FINE_S[index] - low)


class RequestOrigin(enum.Enum):
    """The way in which a request came in."""

    HTTP = "http"
    BATCH = "batch"
    """The request is a row of a batch."""
    WEBSOCKET = "websocket"
    BACKGROUND = "background"
    """A response that is made while its client need not listen."""


class TraceParent(msgspec.Struct, frozen=True):
    """The headers of W3C's trace context; `traceparent` is surely well-formed."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]


class EndedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call that generated, embedded or scored; it may have ended early."""

    figures: Figures
    model: str
    """The name of the one that has answered."""
    finish_reasons: tuple[str, ...] = ()
    """The reasons of all its sequences."""
    submitted_s: float
    """The start on the monotonic clock. The three phases follow one another from there."""
    ttft_s: float | None = None
    """The time from the request's arrival to its first token; None: there was none."""
    gaps: Distribution
    """The times between tokens of a sequence."""
    adapter: str | None = None
    """`MODEL:NAME`; None: the model as it is."""
    inputs: int | None = None
    """Inputs that were embedded or scored; 0 if it ended early. None: it generated."""


def ended_rounds(calls: Sequence[EndedCall]) -> EndedCall:
    """Generations that followed one another for one answer, as one call."""
    first, last = calls[0], calls[-1]
    gaps = Distribution()
    for call in calls:
        gaps.merge(call.gaps)
    return msgspec.structs.replace(
        last,
        figures=of_rounds([call.figures for call in calls]),
        submitted_s=first.submitted_s,
        ttft_s=first.ttft_s,
        gaps=gaps,
    )


class RouteTaken(msgspec.Struct, frozen=True, kw_only=True):
    """Which way a router has sent a request."""

    router: str
    model: str
    reason: str
    """One of few words."""


class AnswerUse(enum.Enum):
    """What the cache of answers did for a request."""

    EXACT = "exact"
    """It told the answer to the same question."""
    SEMANTIC = "semantic"
    """It told the answer to a similar question."""
    MISS = "miss"
    BYPASS = "bypass"
    """The client wants none of it, or each answer is drawn anew."""

    @property
    def is_hit(self) -> bool:
        return self in (AnswerUse.EXACT, AnswerUse.SEMANTIC)


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    origin: RequestOrigin
    method: str
    route: str
    """The route as the server defines it (`/v1/models/{id}`), one of few; `other` for unknown ones."""
    priority: str
    """The label of the priority; for a request whose body is refused, what header, key and server say without
    it. `none` for a request that was not meant to generate, was refused before its key was known, or whose
    header names no known priority.
    """
    status: int
    code: str | None
    """The code in the error object; None: there was no error."""
    started_s: float
    """The start on the monotonic clock."""
    ended_s: float
    key: str = ""
    """The name of the API key; "" for one without a name, and where none is needed."""
    is_quiet: bool = False
    """Whether machines ask this all the time."""
    call: EndedCall | None = None
    """None: nothing was generated."""
    trace: TraceParent | None = None
    routed: RouteTaken | None = None
    """None: it named its model itself, or came to no model."""
    answer: AnswerUse | None = None
    """None: there is no cache of answers, or it was not asked."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


def amounts_of(request: EndedRequest, call: EndedCall) -> Amounts:
    """What a call came to for its key. Tokens count from the first token on that it has brought."""
    has_brought = bool(call.inputs) if call.inputs is not None else call.ttft_s is not None
    if not has_brought:
        return Amounts(requests=1)
    if request.answer is not None and request.answer.is_hit:
        return Amounts(
            recalled_requests=1,
            recalled_input_tokens=call.figures.prompt_tokens,
            recalled_output_tokens=call.figures.output_tokens,
        )
    return Amounts(
        requests=1,
        input_tokens=call.figures.prompt_tokens,
        cached_tokens=call.figures.cached_tokens,
        output_tokens=call.figures.output_tokens,
        audio_seconds=call.figures.audio_s,
    )
