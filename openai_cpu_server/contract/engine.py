"""The `Engine` protocol that the API and the jobs use, local or remote, and the error that keeps one
request's failure from the others."""

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
    """The message is for the request's client. `is_own_fault`: the request's grammar is to blame, so that it
    fails wherever it is sent."""

    def __init__(self, message: str, *, is_own_fault: bool = False) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turn exceptions of the body into `RequestFailed`. A panic of Rust code arrives as a `BaseException`, so
    everything is caught but what ends a process or a generator."""
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
    """Requests are accepted and wait."""
    DRAINING = "draining"
    FAILED = "failed"
    ASLEEP = "asleep"
    """No process exists. A request starts one and waits for it."""
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
    """Clause for people."""
    age_s: float


SeeStep = Callable[[Union[StepFigures, None], StepTrace], None]
"""Observer of steps. Figures are None without a step. Then the trace has only the state of the memory."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    state: EngineState
    reason: str | None
    loaded: float
    timed: float | None
    """Share of the calibration steps that are timed, or None before it begins or if it is not needed."""
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
    """The engine process's part of `rss_bytes`, or 0 without a process."""
    kernels: dict[str, str] = {}
    """Table of `ModelInfo.computed_by`; empty until the model is loaded."""
    placement: DevicePlacement | None = None
    draft_placement: DevicePlacement | None = None
    drafting: tuple[DraftingState, ...] = ()
    deaths: tuple[LastDeath, ...] = ()
    """Most recent ones, the oldest first."""
    threads: int = 0
    threads_computing: int = 0
    """Threads of the last step: fewer than `threads` while other processes use the cores."""
    is_throttled: bool = False
    """A cgroup's quota of CPU time takes cores away."""
    nodes: dict[str, EngineStatus] = {}
    """Status by NUMA node, where each has its own engine. All other fields are sums of these."""


class RequestState(enum.Enum):
    WAITING = "waiting"
    """The request has no slot because it is new or preempted, or because the engine is restarting."""
    RUNNING = "running"


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Id of the API call and number of the sequence: `CALL/0`."""
    priority: Priority
    state: RequestState
    prompt_tokens: int
    output_tokens: int
    """Tokens whose text has been released."""
    age_s: float
    client: str
    position: int | None
    """1 is next. None if the request runs, or is not near the head of the queue."""
    first_token_ms: float | None
    """Estimate from now, if there is a position, until the first token or the first computed input."""
    num_inputs: int | None = None
    num_embedded: int = 0
    adapter: str | None = None


class ComputedCall(Protocol):
    """API call that is being computed. Leaving its context cancels its remaining requests."""

    @property
    def figures(self) -> Figures: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """End the call with this error after a delay, unless it has ended by then."""


class Generation(ComputedCall, Protocol):
    @property
    def arrived_s(self) -> float:
        """Monotonic time at which the event that was read last arrived."""

    async def __aenter__(self) -> Generation: ...

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Yield the events until all sequences have ended, or raise the error that the call failed with."""

    def progress(self) -> AsyncIterator[Union[TokenEvent, QueuePlace, ModelLoading]]:
        """Yield the events and, while the whole call waits, its place in the queue or the progress of the
        model's loading."""


class Embedding(ComputedCall, Protocol):
    async def __aenter__(self) -> Embedding: ...

    async def vectors(self) -> bytes:
        """Return all rows in the format of `Embedded.vectors`. Raises the error that the call failed with."""


class Engine(Protocol):
    """Engine that generates or embeds. Its methods belong to one event loop's thread, and none blocks."""

    @property
    def info(self) -> ModelInfo | None:
        """Facts about the model, or None before the first load unless they were known in advance."""

    @property
    def state(self) -> EngineState: ...

    @property
    def is_ending(self) -> bool:
        """True if the engine drains or has stopped, and begins nothing new."""

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Submit the sequences of one API call. Raises `EngineUnavailable`, `QueueFull`, `AdapterNotFound`,
        and `InvalidRequest` for more sequences than may ever wait or a wrong kind of model."""

    def embed(self, request: EmbedRequest) -> Embedding:
        """Submit the inputs of one API call. Raises `EngineUnavailable`, `QueueFull`, and `InvalidRequest`
        for an empty or too long input or a wrong kind of model."""

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        """Return the prompt tokens and rows of media of these sizes. Raises `EngineUnavailable`, and
        `InvalidRequest` for media or sizes that the model does not take."""

    def cancel(self, name: str) -> bool:
        """End an API call by its id, or one of its sequences; return False if there is none. Its reader gets
        `RequestCancelled`."""

    def stop(self, name: str) -> bool:
        """Finish what `cancel` would end, of this process, as if the model had ended it."""

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        """End the reasoning of one sequence behind its output so far, with the `closing` tokens of `ending`,
        its new constraint. Return False if the sequence does not exist or is about to end."""

    def requests(self) -> list[LiveRequest]: ...

    def status(self) -> EngineStatus: ...

    def kv_stats(self) -> KVStats | None:
        """Return the last step's statistics, or None before the first one of the present process."""

    def show_steps(self, see: SeeStep) -> None:
        """Send a trace of each step to `see`, the only observer, which must be quick. An engine without
        traces sends nothing."""

    def hide_steps(self) -> None: ...

    def clear_cache(self) -> None:
        """Drop the prefix cache but its pinned part, or the cache file of a model that sleeps or has failed.
        Raises `EngineUnavailable`."""

    def adapters(self) -> tuple[AdapterStatus, ...]:
        """Return adapters that requests may name, and those that were rejected at the start."""

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter for new requests; running requests keep an older one of the same name. Raises
        `AdapterFailed` or `EngineUnavailable`, and then nothing has changed."""

    def unload_adapter(self, name: str) -> bool:
        """Withhold the adapter from new requests and free it when the running ones end. Return False if there
        is none of this name."""


def unavailable(status: EngineStatus) -> EngineUnavailable:
    state, reason = status.state, status.reason or "no requests yet"
    if state is not EngineState.LOADING:
        return EngineUnavailable(f"The engine is {state.value}: {reason.rstrip('.')}.", state.retry_after_s)
    if status.timed is None:
        return EngineUnavailable(f"The model is loading ({status.loaded:.0%}).")
    return EngineUnavailable(
        f"The model is loaded; the cost of its steps is being measured ({status.timed:.0%})."
    )
