"""Messages between the API process and the engine process, and their encoding."""

from __future__ import annotations

import enum
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import BinaryIO, Literal, NamedTuple, Union

import msgspec

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.figures import SequenceFigures
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, ModelInfo
from openai_cpu_server.contract.offload import ON_CPU, Offload
from openai_cpu_server.contract.replica import Forecast, PrefixNews
from openai_cpu_server.contract.request import GenerationRequest, OutputPart, Priority
from openai_cpu_server.contract.step import CacheFileLimit, StepTrace, TokenLogprob


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """Features that benchmarks and tests turn off."""

    tile_filling: bool = True
    """Grow steps until they fill a kernel's tile, where that is almost free or saves time."""
    mixed_steps: bool = True
    continuous_batching: bool = True
    prefix_sharing: bool = True
    always_drafts: bool = False


AS_SERVED = Experiment()


class Scheduling(msgspec.Struct, frozen=True, kw_only=True):
    policy: Literal["priority", "fifo", "sjf"] = "priority"
    stream_rate: float = 2.5
    """Minimum tokens per second of an interactive stream while other prompts are computed."""
    stall_ms: float = 520.0
    """Longest gap between two tokens of such a stream."""
    batch_stall_ms: float = 800.0
    """Longest step while no interactive stream waits for it."""
    batch_floor: float = 0.1
    """Share of slots and time, 0 to 1, reserved for batch work."""
    preempt_threshold_ms: float = 60.0
    """Longest wait of a new interactive request for batch work. It interrupts a longer batch step; beside
    interactive streams batch work makes no step longer."""

    @property
    def pace_ms(self) -> float:
        return min(1000 / self.stream_rate, self.stall_ms)

    @property
    def batch_beside_ms(self) -> float:
        """Longest step for batch work beside interactive work."""
        return min(self.preempt_threshold_ms, self.pace_ms)

    def without_interruption(self) -> Scheduling:
        """Return settings for steps that cannot be discarded: shorter batch steps, for the same wait."""
        return msgspec.structs.replace(self, batch_stall_ms=min(self.batch_stall_ms, self.batch_beside_ms))


BY_DEFAULT = Scheduling()


_LAST_SYNC_S = 10.0


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    model_path: str
    kv_tokens: int | None = None
    """Cells of the KV pool. None: as many as fit into half of the memory left, at most 16,384."""
    max_seqs: int = 64
    threads: int | None = None
    """Number, or None for one per physical core that this process may use."""
    threads_batch: int | None = None
    """Threads for steps of several tokens. None: as `threads`."""
    kv_type: str = "f16"
    repack: bool | None = None
    """Repack weights for this CPU. None: if a measurement in `cost_dir` favours it."""
    reads_weights: bool = False
    """Copy the weights into private memory, in huge pages if possible."""
    flash_attention: bool = True
    """False is slower with a long context, and impossible with a quantised KV type."""
    kernels: Literal["auto", "invariant", "fast", "off"] = "auto"
    """invariant: our kernels, where tests passed. auto: also AMX tiles; fast: also 16-bit attention; their
    results depend on the number of rows."""
    offload: Offload = ON_CPU
    draft_offload: Offload = ON_CPU
    prefill_tokens: int = 512
    scheduling: Scheduling = BY_DEFAULT
    experiment: Experiment = AS_SERVED
    speculation: Literal["auto", "off"] = "auto"
    draft_max: int = 31
    draft_model_path: str | None = None
    """Small model with the same vocabulary, or a file with a prediction head."""
    head: Literal["auto", "own", "none"] = "auto"
    """auto: use a prediction head if possible. own: require it; none: use only a `draft_model_path` that is a
    head alone."""
    projector_path: str | None = None
    adapters: tuple[Adapter, ...] = ()
    """Loaded at the start; a broken one is rejected."""
    cache_bytes: int = 0
    cache_file: str | None = None
    cache_file_limit: CacheFileLimit | None = None
    """Limit, or None to write the whole cache however long that takes."""
    pinned_prompts: tuple[tuple[int, ...], ...] = ()
    """Computed at the start and never evicted."""
    pinned_namespace: str = ""
    cost_dir: str | None = None
    """Folder for measurements, or None to make none."""
    calibrate: Literal["idle", "start", "never"] = "idle"
    """Time of measuring step costs, unless they are stored. Without a measurement an estimate is refined
    while serving."""

    shares_cores: bool = False
    """Compute only while holding the turn. If False, no message about turns is sent."""
    sandbox: Literal["auto", "off"] = "auto"
    """auto: drop privileges as far as the kernel can."""
    adapter_folders: tuple[str, ...] = ()
    reports_forecast: bool = False
    """Send forecasts and prefix names for a router."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def wants_device(self) -> bool:
        return self.offload.wants_device or self.draft_offload.wants_device

    def on_cpu_alone(self, why: str) -> EngineOptions:
        cpu_alone = Offload(why_cpu_alone=why)
        return msgspec.structs.replace(
            self,
            offload=cpu_alone if self.offload.wants_device else self.offload,
            draft_offload=cpu_alone if self.draft_offload.wants_device else self.draft_offload,
        )

    @property
    def exit_grace_s(self) -> float:
        if self.cache_file is None:
            return 1.0
        return 60.0 if self.cache_file_limit is None else self.cache_file_limit.seconds + _LAST_SYNC_S


class StartEngine(msgspec.Struct, frozen=True, tag="start"):
    options: EngineOptions


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request, with its output so far after a crash. It replaces a live request of the same id."""

    request: Union[GenerationRequest, EmbedRequest]
    output: tuple[int, ...] = ()
    num_embedded: int = 0


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    id: str
    reason: FinishReason = FinishReason.CANCELLED
    """`STOP`: the client gets all output as if the model had ended it."""


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    pass


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """The reply is `AdapterLoaded` or `AdapterRefused`."""

    adapter: Adapter


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Free an adapter when no request uses it."""

    key: str


class MeasureMedia(msgspec.Struct, frozen=True, tag="measure_media"):
    sizes: tuple[MediaSize, ...]


class CpuToken(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """Permission to compute until the engine sends `CpuTokenReturned`."""

    limit_ms: float | None = None
    """Time after which the turn ends with a step; 0: one step. None: it lasts until recalled or idle."""
    beside_interactive: bool = False
    """Interactive work of another engine waits, so steps are short."""


class Sharing(NamedTuple):
    beside_interactive: bool = False
    slowdown: float = 1.0
    """Recent factor by which other engines lengthen steps."""


ALONE = Sharing()


class ShortenCpuToken(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """Ignored if the turn has been returned in the meantime."""

    after_ms: float = 0.0
    interrupts: bool = False
    """A new interactive request waits elsewhere, which discards a long batch step."""


class ShowSteps(msgspec.Struct, frozen=True, tag="show_steps"): ...


class HideSteps(msgspec.Struct, frozen=True, tag="hide_steps"): ...


Command = Union[
    StartEngine,
    Submit,
    CancelRequest,
    ClearCache,
    LoadAdapter,
    UnloadAdapter,
    MeasureMedia,
    CpuToken,
    ShortenCpuToken,
    ShowSteps,
    HideSteps,
]


class Finish(SequenceFigures, frozen=True, kw_only=True):
    reason: FinishReason
    stop_string: str | None = None
    error: str | None = None
    is_own_fault: bool = False
    """The grammar's error, which returns wherever the request is sent."""
    is_loop: bool = False

    @property
    def is_good(self) -> bool:
        return self.reason in (FinishReason.STOP, FinishReason.LENGTH)


class PromptProgress(msgspec.Struct, frozen=True):
    total: int
    cached: int
    """0 while unknown."""
    processed: int
    """Tokens, also cached ones."""
    left_ms: float | None = None
    place: int | None = None
    """1 is next. None while the prompt is computed."""


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Text of one output part that a step released, in whole tokens. Held-back text comes with a later event,
    and text that may be a mark loses its tokens."""

    id: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    part: OutputPart = OutputPart.ANSWER
    answer_start: int | None = 0
    """Number of output tokens before the answer's first one. None while unknown; known at the end."""
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    progress: PromptProgress | None = None
    """Progress in events before the first token, if requested."""
    finish: Finish | None = None


class LoadingPhase(enum.Enum):
    WEIGHTS = "weights"
    COSTS = "costs"
    """Reported if steps are timed before the engine is ready."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    fraction: float
    phase: LoadingPhase = LoadingPhase.WEIGHTS


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    message: str


class LoadingAdapter(msgspec.Struct, frozen=True, tag="loading_adapter"):
    """Adapter that is to blame if the process dies now."""

    key: str


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """Adapters of the start are reported before `Ready`."""

    adapter: LoadedAdapter


class AdapterRefused(msgspec.Struct, frozen=True, tag="adapter_refused"):
    key: str
    reason: str


class MediaMeasured(msgspec.Struct, frozen=True, tag="media_measured"):
    media: tuple[MeasuredMedia, ...]


class StepStarted(msgspec.Struct, frozen=True, tag="step_started"):
    """Announcement of a step, sent only if it has changed."""

    ids: tuple[str, ...]
    """Requests, also those whose grammars are prepared meanwhile."""
    expected_ms: float = 0.0
    """Rounded up to a power of two; 0: at most 128."""


class Handling(msgspec.Struct, frozen=True, tag="handling"):
    """A request outside of steps, where native code may kill the process."""

    id: str | None
    """Request, or None afterwards."""


class KVStats(msgspec.Struct, frozen=True, kw_only=True):
    """Both tiers of KV memory, with savings since the start."""

    block_tokens: int
    pool_blocks: int
    pool_blocks_used: int
    pool_blocks_shared: int
    cache_block_tokens: int
    cache_capacity_blocks: int
    """Blocks that fit if no states are saved."""
    cache_blocks: int
    cache_states: int
    cache_capacity_bytes: int
    cache_bytes: int
    cache_evictions: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def pool_tokens_used(self) -> int:
        return self.pool_blocks_used * self.block_tokens


class DraftingState(msgspec.Struct, frozen=True, kw_only=True):
    """Decision by measured gains."""

    sequences: int
    """Smallest number of running sequences, up to below twice as many."""
    drafts: bool
    why: str
    """Empty if drafts are not paused."""
    gain: float
    """Speed with drafts relative to that without."""

    def __str__(self) -> str:
        last = 2 * self.sequences - 1
        numbers = "1 sequence" if last == 1 else f"{self.sequences} to {last} sequences"
        return f"with {numbers}: {f'{self.gain:.2f} times as fast' if self.drafts else f'paused, {self.why}'}"


class StepFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Counts and times of the backend's work in a step."""

    sequences: int
    tokens: int
    """Tokens with drafts, but without padding; 0 if the step only moved cells."""
    padding: int = 0
    sampled: int = 0
    forced: int = 0
    """Output tokens without an alternative, since the previous figures."""
    drafted: int = 0
    accepted: int = 0
    preemptions: int = 0
    predicted_ms: float
    elapsed_ms: float
    encoding_ms: float = 0.0
    encodes: str = ""
    """`picture`, `sound` or ""."""
    encoded: int = 0
    """Media items, or parts of one, that were completed."""
    threads: int = 0
    is_throttled: bool = False
    is_interrupted: bool = False
    spent_ms: dict[str, float] = {}
    """CPU time of all threads by client label. A discarded step counts 0."""


class StepDone(msgspec.Struct, frozen=True, omit_defaults=True, tag="step_done"):
    events: tuple[TokenEvent, ...]
    kv: KVStats | None
    """Unset without KV cells."""
    figures: StepFigures | None = None
    drafting: tuple[DraftingState, ...] | None = None
    """Unset without a change."""
    embedded: tuple[Embedded, ...] = ()
    forecast: Forecast | None = None
    """Sent a few times a second if wanted."""
    prefixes: PrefixNews | None = None
    shown: StepTrace | None = None


class QueuePlace(msgspec.Struct, frozen=True):
    id: str
    position: int
    first_token_ms: float
    """Estimate from now."""


class ModelLoading(msgspec.Struct, frozen=True):
    """Share, 0 to 1, of a model that is loaded."""

    fraction: float


class QueueState(msgspec.Struct, frozen=True, tag="queue_state"):
    """Head of the queue, sent occasionally while requests wait."""

    places: tuple[QueuePlace, ...]
    preempted: tuple[str, ...] = ()
    """Requests that have run before, also behind the head."""


class EngineWants(msgspec.Struct, frozen=True, kw_only=True, tag="wants"):
    """Sent when the work changes."""

    work: Priority | None = None
    is_loading: bool = False


class CpuTokenReturned(msgspec.Struct, frozen=True, kw_only=True, tag="turn_back"):
    wants: EngineWants


AdapterNews = Union[LoadingAdapter, AdapterLoaded, AdapterRefused]
EngineEvent = Union[
    Loading,
    Ready,
    StartFailed,
    AdapterNews,
    MediaMeasured,
    StepStarted,
    Handling,
    StepDone,
    QueueState,
    EngineWants,
    CpuTokenReturned,
]


LENGTH = struct.Struct("<I")
_PART_BYTES = 2**20


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def read_frame(stream: BinaryIO) -> bytes | None:
    """Return None at the end of the stream."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    payload = stream.read(length)
    return payload if len(payload) == length else None


class MediaPart(msgspec.Struct, frozen=True, tag="media_part"):
    """Next bytes of a media item. The request follows, with empty content in its items."""

    digest: str
    data: memoryview
    is_first: bool
    """The first part of a request drops parts of one that could not be sent."""


EngineMessage = Union[Command, MediaPart]
"""Small enough to encode without delaying an event loop."""


def in_parts(command: Command) -> Iterator[EngineMessage]:
    request = command.request if isinstance(command, Submit) else None
    if not isinstance(request, GenerationRequest) or not request.media_items:
        yield command
        return
    for digest, content in {item.digest: item.content for item in request.media_items}.items():
        for start in range(0, len(content), _PART_BYTES):
            yield MediaPart(digest, content[start : start + _PART_BYTES], is_first=start == 0)
    items = tuple(msgspec.structs.replace(item, content=memoryview(b"")) for item in request.media_items)
    yield msgspec.structs.replace(command, request=msgspec.structs.replace(request, media_items=items))


class PartJoiner:
    def __init__(self) -> None:
        self._parts: defaultdict[str, list[memoryview]] = defaultdict(list)

    def join(self, message: EngineMessage) -> Command | None:
        if isinstance(message, MediaPart):
            if message.is_first:
                self._parts[message.digest].clear()
            self._parts[message.digest].append(message.data)
            return None
        request = message.request if isinstance(message, Submit) else None
        if not isinstance(request, GenerationRequest) or not request.media_items:
            return message
        contents = {digest: memoryview(b"".join(parts)) for digest, parts in self._parts.items()}
        self._parts.clear()
        items = tuple(
            msgspec.structs.replace(item, content=contents[item.digest]) for item in request.media_items
        )
        return msgspec.structs.replace(message, request=msgspec.structs.replace(request, media_items=items))


_encoder = msgspec.msgpack.Encoder()


def frame(message: EngineMessage | EngineEvent) -> bytes:
    return framed(_encoder.encode(message))


read_command: Callable[[bytes], EngineMessage] = msgspec.msgpack.Decoder(EngineMessage).decode
read_event: Callable[[bytes], EngineEvent] = msgspec.msgpack.Decoder(EngineEvent).decode
"""Both raise `msgspec.DecodeError`."""
