"""The `Engine` that the API and the jobs know, here or elsewhere; and how the failure of one request stays
its own."""

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
from openai_cpu_server.contract.messages import KVStats, ModelLoading, QueuePlace, StepFigures, TokenEvent
from openai_cpu_server.contract.model_info import Adapter, AdapterStatus, ModelInfo
from openai_cpu_server.contract.offload import Placement
from openai_cpu_server.contract.request import Constraint, GenerationRequest, Priority
from openai_cpu_server.contract.step import StepTrace
from openai_cpu_server.errors import ConstraintFailed, EngineUnavailable, ServerError

logger = logging.getLogger(__name__)


class RequestFailed(ServerError):
    """One request could not be served; the message is for its client.

    `is_own_fault`: its grammar is to blame, and it fails again wherever it is sent.
    """

    def __init__(self, message: str, *, is_own_fault: bool = False) -> None:
        super().__init__(message)
        self.is_own_fault = is_own_fault


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Turns whatever the body raises into `RequestFailed`.

    A panic of Rust code arrives as a `BaseException` that is no `Exception`, so everything is caught but
    what ends a process or a generator.
    """
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
    """The process has died; a new one is loading. Requests are accepted and wait."""
    DRAINING = "draining"
    """The server is about to end: what was accepted goes on, nothing new is accepted."""
    FAILED = "failed"
    """It died too often, or its model cannot be loaded; nothing is accepted."""
    ASLEEP = "asleep"
    """There is no process. A request wakes it, and waits for that."""
    STOPPED = "stopped"

    def may_become(self, other: EngineState) -> bool:
        return other in _MOVES[self]

    @property
    def retry_after_s(self) -> int:
        """When who is refused may try again: later where it takes another server, not a little patience."""
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
    """The last death of an engine process; another was started, unless they died too often."""

    cause: str
    """One of few words: a signal's name, `exit_1`, `hang`, `out_of_memory`, ..."""
    message: str
    """A clause for people."""
    age_s: float


SeeStep = Callable[[Union[StepFigures, None], StepTrace], None]
"""It is told what a step was; without figures, only how the memory stands."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for health routes. Requests are counted by their priority's label."""

    state: EngineState
    reason: str | None
    loaded: float
    """Share of the model that is loaded, 0 to 1."""
    timed: float | None
    """Share of the steps that are timed, before it is ready; None: not begun, or not needed."""
    running: dict[str, int]
    waiting: dict[str, int]
    kv_tokens: int
    kv_tokens_used: int
    restarts: int
    last_death: LastDeath | None
    rss_bytes: int
    """Resident memory of this process and the engine's, the mapped model file included."""
    engine_rss_bytes: int = 0
    """The part of it that is the engine's; 0 while there is no process."""
    kernels: dict[str, str] = {}
    """By kernel of ours: its instruction set, or why it is off; `weights`: how they lie in memory; empty
    until the model is loaded."""
    placement: Placement | None = None
    """What of the model is on a device; None: nothing, or it is not loaded."""
    draft_placement: Placement | None = None
    """The same of its draft model."""
    deaths: tuple[LastDeath, ...] = ()
    """The last few, the oldest first."""
    threads: int = 0
    """So many compute where each gets its core; 0 while there is no model."""
    threads_computing: int = 0
    """Those of the last step: fewer where others use the cores."""
    is_throttled: bool = False
    """A control group's quota of CPU time takes cores."""
    nodes: dict[str, EngineStatus] = {}
    """By NUMA node, its engine's, where there is one on each; all else are sums of these."""


class RequestState(enum.Enum):
    WAITING = "waiting"
    """It is not in the engine's slots: new, preempted, or the engine is restarting."""
    RUNNING = "running"


class LiveRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot for those who watch."""

    id: str
    """The API call's id and its sequence's number: `CALL/0`."""
    priority: Priority
    state: RequestState
    prompt_tokens: int
    """Those of all inputs, where texts are embedded."""
    output_tokens: int
    """Tokens so far whose text is out."""
    age_s: float
    client: str
    position: int | None
    """1 is next; None: it runs, or it is not among the first that wait."""
    first_token_ms: float | None
    """Estimate from now, where there is a position. Where texts are embedded: until the first is computed."""
    num_inputs: int | None = None
    """How many texts it embeds; None: it generates."""
    num_embedded: int = 0
    """How many of these have their vectors."""
    adapter: str | None = None
    """The name of its adapter; None: it wants the model as it is."""


class ComputedCall(Protocol):
    """One API call, being computed. Leaving its context cancels what has not ended."""

    @property
    def figures(self) -> Figures:
        """Up to now, or to its end. What of its prompt was computed is for the API to say."""
        ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def fail_in(self, seconds: float, error: ServerError) -> None:
        """End it with this error unless it has ended by then."""
        ...


class Generation(ComputedCall, Protocol):
    """The sequences of one API call, being generated."""

    @property
    def arrived_s(self) -> float:
        """When the event that was taken last came in, on the monotonic clock."""
        ...

    async def __aenter__(self) -> Generation: ...

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        """Its events, until all sequences have ended. Raises what it failed with."""
        ...

    def progress(self) -> AsyncIterator[Union[TokenEvent, QueuePlace, ModelLoading]]:
        """Its events and, while it waits as a whole, now and then its place in the queue, or how far the
        model that it waits for is loaded."""
        ...


class Embedding(ComputedCall, Protocol):
    """The vectors of one API call, being computed. Its figures are times alone."""

    async def __aenter__(self) -> Embedding: ...

    async def vectors(self) -> bytes:
        """All rows, in the order of the inputs: `ModelInfo.embedding_size` float32 (little-endian) each,
        pooled but not normalised. A reranker's row holds its scores. Raises what it failed with.
        """
        ...


class Engine(Protocol):
    """Generates, or embeds. All methods belong to one event loop's thread, and none of them blocks."""

    @property
    def info(self) -> ModelInfo | None:
        """Facts about the model; None until it was loaded for the first time, unless they were foretold."""
        ...

    @property
    def state(self) -> EngineState: ...

    @property
    def is_ending(self) -> bool:
        """It drains, or has stopped: nothing new is begun, whatever state its process is in."""
        ...

    def generate(self, requests: Sequence[GenerationRequest]) -> Generation:
        """Submit the sequences of one API call.

        Raises `EngineUnavailable`, `QueueFull`, `AdapterNotFound`, `InvalidRequest` for more sequences than
        may ever wait, and where the model does not generate text.
        """
        ...

    def embed(self, request: EmbedRequest) -> Embedding:
        """Submit the inputs of one API call.

        Raises `EngineUnavailable`, `QueueFull`, and `InvalidRequest` for an input that is empty or too long,
        and where the model does not embed.
        """
        ...

    async def shapes(self, sizes: Sequence[MediaSize]) -> tuple[MediaShape, ...]:
        """What stands in a prompt for pictures and sounds of these sizes. It wakes an engine that sleeps.

        Raises `InvalidRequest` where the model takes no pictures or no sound, or none of such a size, and
        `EngineUnavailable`.
        """
        ...

    def cancel(self, name: str) -> bool:
        """End an API call, named by its id or by that of one of its sequences; False if there is none.

        Whoever reads its generation gets `RequestCancelled`.
        """
        ...

    def stop(self, name: str) -> bool:
        """End an API call of this process, named likewise, with what there is of it: each of its sequences
        finishes as if the model had ended it. False if there is none."""
        ...

    def end_thinking(self, request_id: str, ending: Constraint) -> bool:
        """End the thoughts of one sequence behind the output that it has: by the `closing` tokens of this
        constraint's thinking, which takes the place of its own. False if there is none, or it is to end
        anyway."""
        ...

    def requests(self) -> list[LiveRequest]:
        """All that live, in the order of their arrival."""
        ...

    def status(self) -> EngineStatus: ...

    def kv_stats(self) -> KVStats | None:
        """As of the last step; None while the present engine process has not made any."""
        ...

    def show_steps(self, see: SeeStep) -> None:
        """Tell of each step who was in it, also when the process has been replaced. There is one who sees; it
        must be quick. An engine that cannot tell tells nothing.
        """
        ...

    def hide_steps(self) -> None: ...

    def clear_cache(self) -> None:
        """Drop all of the prefix cache but what is pinned, with the next step; of a model that sleeps, what
        is kept of it. Raises `EngineUnavailable`."""
        ...

    def adapters(self) -> tuple[AdapterStatus, ...]:
        """Those that requests may name, and those that were refused at the start."""
        ...

    async def load_adapter(self, adapter: Adapter) -> AdapterStatus:
        """Load an adapter beside the others; new requests get it for its name once it is loaded, and those
        that run with an older one of that name end with that. It is loaded again after a crash.

        Raises `AdapterFailed`, `EngineUnavailable`; then nothing has changed.
        """
        ...

    def unload_adapter(self, name: str) -> bool:
        """No new request gets it, those that run end with it; False if there is none of that name."""
        ...


def unavailable(status: EngineStatus) -> EngineUnavailable:
    """Why nothing can be generated now."""
    state, reason = status.state, status.reason or "no requests yet"
    if state is not EngineState.LOADING:
        return EngineUnavailable(f"The engine is {state.value}: {reason.rstrip('.')}.", state.retry_after_s)
    if status.timed is None:
        return EngineUnavailable(f"The model is loading ({status.loaded:.0%}).")
    return EngineUnavailable(
        f"The model is loaded; the cost of its steps is being measured ({status.timed:.0%})."
    )
