"""Facts about a finished request for all observers."""

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
"""Upper bounds of buckets. A CPU takes milliseconds per token and minutes for a long prompt."""
_PARTS = 8
"""Parts of a bucket, for quantiles."""
_LOWEST_S = 0.0001
_FINE_S = tuple(
    low * (high / low) ** (part / _PARTS) if part < _PARTS else high
    for low, high in pairwise((_LOWEST_S, *BOUNDS_S))
    for part in range(1, _PARTS + 1)
)


class Distribution:
    """Histogram of durations. Not thread-safe."""

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self.sum_s = 0.0
        self._counts: dict[int, int] = {}
        """Counts by fine bucket. The last one holds all values above the last bound."""

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
        """Return a quantile with an error of at most a third; values above the last bound count as it."""
        wanted = share * self.num
        below = 0
        for index, count in sorted(self._counts.items()):
            if below + count >= wanted and index == len(_FINE_S):
                return _FINE_S[-1]
            if below + count >= wanted:
                low = _FINE_S[index - 1] if index else 0.0
                return low + (wanted - below) / count * (_FINE_S[index] - low)
            below += count
        return None

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each of `BOUNDS_S` with the number of values up to it."""
        entries = sorted(self._counts.items())
        below, position = 0, 0
        for number, bound in enumerate(BOUNDS_S, start=1):
            while position < len(entries) and entries[position][0] < number * _PARTS:
                below += entries[position][1]
                position += 1
            yield bound, below


class RequestOrigin(enum.Enum):
    HTTP = "http"
    BATCH = "batch"
    WEBSOCKET = "websocket"
    BACKGROUND = "background"
    """The client need not listen."""


class TraceParent(msgspec.Struct, frozen=True):
    """Headers of W3C's trace context; `traceparent` is well-formed."""

    parent: str
    state: str = ""

    @property
    def trace_id(self) -> str:
        return self.parent[3:35]


class EndedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that generated, embedded or scored, perhaps cut short."""

    figures: Figures
    model: str
    finish_reasons: tuple[str, ...] = ()
    submitted_s: float
    """Begin of the three phases, on the monotonic clock."""
    ttft_s: float | None = None
    """Time from the request's arrival to the first token, or None without one."""
    gaps: Distribution
    adapter: str | None = None
    """`MODEL:NAME`, or None."""
    inputs: int | None = None
    """Embedded or scored inputs; 0 if the call ended early, None for a generation."""


def ended_rounds(calls: Sequence[EndedCall]) -> EndedCall:
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
    router: str
    model: str
    reason: str
    """Label from a small set."""


class AnswerUse(enum.Enum):
    EXACT = "exact"
    SEMANTIC = "semantic"
    MISS = "miss"
    BYPASS = "bypass"
    """The client opted out, or answers are random."""

    @property
    def is_hit(self) -> bool:
        return self in (AnswerUse.EXACT, AnswerUse.SEMANTIC)


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    origin: RequestOrigin
    method: str
    route: str
    """Pattern, such as `/v1/models/{id}`, or `other`."""
    priority: str
    """A rejected body has that of header, key and server. `none`: not a generation, failed before its key was
    known, or an unknown priority."""
    status: int
    code: str | None
    started_s: float
    """Time on the monotonic clock, as `ended_s`."""
    ended_s: float
    key: str = ""
    """Name of the API key, or ""."""
    is_quiet: bool = False
    """True for routes that machines poll."""
    call: EndedCall | None = None
    """Absent if nothing was generated."""
    trace: TraceParent | None = None
    routed: RouteTaken | None = None
    answer: AnswerUse | None = None
    """Absent if the answer cache was not used."""

    @property
    def seconds(self) -> float:
        return self.ended_s - self.started_s


def amounts_of(request: EndedRequest, call: EndedCall) -> Amounts:
    """Return a key's usage. Tokens count once the first token exists."""
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
