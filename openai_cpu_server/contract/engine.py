"""The `Engine` protocol of the API and the jobs, local or remote."""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Protocol, Union

import msgspec

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.media import MediaShape, MediaSize
from openai_cpu_server.contract.messages import (
    DraftingState,
    KVStats,
    ModelLoading,
    QueuePlace,
    StepFigures,
    TokenEvent,
)
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus, ModelInfo
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.contract.step import StepTrace
from openai_cpu_server.errors import ConstraintFailed, EngineUnavailable, ServerError

logger = logging.getLogger(__name__)


class RequestFailed(ServerError):
    """The message is for the request's client. `is_own_fault`: the request's grammar is to blame, wherever it
    is sent."""

    def __init__(self, message: str, *, is_own_fault: bool = False) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turn exceptions of the body into `RequestFailed`. A panic of Rust code arrives as a `BaseException`."""
    try:
        yield
    except ConstraintFailed as error:
        raise RequestFailed(str(error), is_own_fault=True) from None
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        logger.exception("a request could not be handled")
        raise RequestFailed(f"The engine could not handle this request ({type(error).__name__}).") from error


_SOON_S = 1
_NEXT_SERVER_S = 10


class EngineState(enum.Enum):
    LOADING = "loading"
    READY = "ready"
    RESTARTING = "restarting"
    DRAINING = "draining"
    FAILED = "failed"
    ASLEEP = "asleep"
    """A request starts a process and waits for it."""
    STOPPED = "stopped"

    def may_become(self, other: EngineState) -> bool:
        return other in _MOVES[self]

    @property
    def retry_after_s(self) -> int:
        """Seconds until a rejected client may retry: more in states where only another server can help."""
        goes_on = self not in (EngineState.DRAINING, EngineState.FAILED, EngineState.STOPPED)
        return _SOON_S if goes_on else _NEXT_SERVER_S


_OFF = {EngineState.FAILED, EngineState.ASLEEP, EngineState.STOPPED}
_MOVES: dict[EngineState, set[EngineState]] = {
    EngineState.LOADING: {EngineState.READY, EngineState.RESTARTING, *_OFF},
    EngineState.READY: {EngineState.RESTARTING, *_OFF},
    EngineState.RESTARTING: {EngineState.READY, *_OFF},
    EngineState.FAILED: {EngineState.LOADING, EngineState.STOPPED},
    EngineState.ASLEEP: {EngineState.LOADING, EngineState.FAILED, EngineState.STOPPED},
    EngineState.STOPPED: set(),
}


class LastDeath(msgspec.Struct, frozen=True, kw_only=True):
    cause: str
    """Signal's name, `exit_1`, `hang`, `out_of_memory`, ..."""
    message: str
    age_s: float


SeeStep = Callable[[Union[StepFigures, None], StepTrace], None]
"""Figures are None without a step. Then the trace has only the state of the memory."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: EngineState
    reason: str | None
    loaded: float
    timed: float | None
    """Share of the calibration steps, or None before it begins or if it is not needed."""
    running: dict[str, int]
    """Requests by the label of their priority, as in `waiting`."""
    waiting: dict[str, int]
    kv_tokens: int
    kv_tokens_used: int
    restarts: int
    last_death: LastDeath | None
    rss_bytes: int
    """Resident memory of this process and the engine's, with the mapped model file."""
    engine_rss_bytes: int = 0
    """Part of `rss_bytes`, or 0 without a process."""
    kernels: dict[str, str] = {}
    """Empty until the model is loaded."""
    placement: DevicePlacement | None = None
    draft_placement: DevicePlacement | None = None
    drafting: tuple[DraftingState, ...] = ()
    deaths: tuple[LastDeath, ...] = ()
    """Most recent ones, the oldest first."""
    threads: int = 0
    threads_computing: int = 0
    """Threads of the last step: fewer than `threads` while other processes use the cores."""
    is_throttled: bool = False
    """A cgroup's quota takes cores away."""
    nodes: dict[str, EngineStatus] = {}
    """Status by NUMA node, where each has its own engine. Other fields are sums of these."""


class RequestState(enum.Enum):
    WAITING = "waiting"
    """New or preempted, or the engine is restarting."""
    RUNNING = "running"


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """`CALL/0`: id of the API call and number of the sequence."""
    priority: Priority
    state: RequestState
    prompt_tokens: int
    output_tokens: int
    """Tokens whose text has been released."""
    age_s: float
    client: str
    position: int | None
    """1 is next. None if running, or not near the head of the queue."""
    first_token_ms: float | None
    """Estimate from now, None without a position."""
    num_inputs: int | None = None
    num_embedded: int = 0
    adapter: str | None = None


class ComputedCall(Protocol):
    """Leaving the context cancels the remaining requests."""

    @property
    def figures(self) -> Figures: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def fail_in(self, seconds: float, error: ServerError) -> None: ...


class Generation(ComputedCall, Protocol):
    @property
    def arrived_s(self) -> float:
        """Monotonic time of the last read event."""

    async def __aenter__(self) -> Generation: ...

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Yield the events until all sequences end. Raises the call's error."""

    def progress(self) -> AsyncIterator[Union[TokenEvent, QueuePlace, ModelLoading]]:
        """Yield the events and, while the whole call waits, its queue place or the model's loading
        progress."""


class Embedding(ComputedCall, Protocol):
    async def __aenter__(self) -> Embedding: ...

    async def vectors(self) -> bytes:
        """Return all rows in the format of `Embedded.vectors`. Raises the call's error."""


class Engine(Protocol):
    """Engine that generates or embeds. Its methods belong to one event loop's thread, and none blocks."""

    @property
    def info(self) -> ModelInfo | None:
        """Facts about the model, or None before the first load unless known in advance."""

    @property
    def state(self) -> EngineState: ...

    @property
    def is_ending(self) -> bool: ...

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Submit the sequences of one API call. Raises `EngineUnavailable`, `QueueFull`, `AdapterNotFound`,
        `InvalidRequest`."""

    def embed(self, request: EmbedRequest) -> Embedding:
        """Submit the inputs of one API call. Raises `EngineUnavailable`, `QueueFull`, `InvalidRequest`."""

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        """Return prompt tokens and rows by media size. Raises `EngineUnavailable`, `InvalidRequest`."""

    def cancel(self, name: str) -> bool:
        """End an API call by its id, or one of its sequences, with `RequestCancelled`. Return False if there
        is none."""

    def stop(self, name: str) -> bool:
        """Finish what `cancel` would end, as if the model had ended it."""

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        """End one sequence's reasoning with the `closing` tokens of `ending`, its new constraint. Return
        False if the sequence has ended or is about to."""

    def requests(self) -> list[LiveRequest]: ...

    def status(self) -> EngineStatus: ...

    def kv_stats(self) -> KVStats | None:
        """Return None before the process's first step."""

    def show_steps(self, see: SeeStep) -> None:
        """Send a trace of each step to `see`, the only observer, which must be quick."""

    def hide_steps(self) -> None: ...

    def clear_cache(self) -> None:
        """Drop all but the pinned prefixes, or the cache file of an unloaded model. Raises
        `EngineUnavailable`."""

    def adapters(self) -> tuple[AdapterStatus, ...]:
        """Return adapters that requests may name, and those rejected at the start."""

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter; running requests keep an older one of the same name. Raises `AdapterFailed`,
        `EngineUnavailable`, and then nothing has changed."""

    def unload_adapter(self, name: str) -> bool:
        """Free the adapter when the running requests end. Return False if there is none."""


def unavailable(status: EngineStatus) -> EngineUnavailable:
    state, reason = status.state, status.reason or "no requests yet"
    if state is not EngineState.LOADING:
        return EngineUnavailable(f"The engine is {state.value}: {reason.rstrip('.')}.", state.retry_after_s)
    if status.timed is None:
        return EngineUnavailable(f"The model is loading ({status.loaded:.0%}).")
    return EngineUnavailable(
        f"The model is loaded; the cost of its steps is being measured ({status.timed:.0%})."
    )
