"""Messages between the API process and the engine process: commands go in, events come out."""

from __future__ import annotations

import enum
from typing import Literal, NamedTuple, Union

import msgspec

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.figures import SequenceFigures
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, ModelInfo, RefusedAdapter
from openai_cpu_server.contract.offload import ON_CPU, Offload
from openai_cpu_server.contract.replica import Forecast, PrefixNews
from openai_cpu_server.contract.request import GenerationRequest, OutputPart, Priority
from openai_cpu_server.contract.scheduling import AS_SERVED, BY_DEFAULT, Experiment, Scheduling
from openai_cpu_server.contract.step import CacheFileLimit, StepTrace, TokenLogprob

_LAST_SYNC_S = 10.0
"""What was written last may take so long to be on a slow disk."""


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that the engine process is told at its start."""

    model_path: str
    kv_tokens: int | None = None
    """Cells of the KV pool; None: what half of the memory beside the weights holds, at most 16,384."""
    max_seqs: int = 64
    threads: int | None = None
    """None: one per physical core that this process may use."""
    threads_batch: int | None = None
    """For steps of more than one token; None: as `threads`."""
    kv_type: str = "f16"
    repack: bool | None = None
    """Repack weights at load for this CPU; None: if that is faster, measured once, kept in `cost_dir`."""
    reads_weights: bool = False
    """Copy the weights into memory of the engine's own, in huge pages where the system lets it, in place of
    mapping the file."""
    flash_attention: bool = True
    """Off: slower with a long context, and impossible with a quantised KV type."""
    kernels: Literal["auto", "off"] = "auto"
    """auto: kernels of ours compute in place of ggml's where they are proved."""
    offload: Offload = ON_CPU
    """What goes to a device beside the CPU."""
    draft_offload: Offload = ON_CPU
    """The same for the draft model."""
    prefill_tokens: int = 256
    """Tokens of a step at most."""
    scheduling: Scheduling = BY_DEFAULT
    experiment: Experiment = AS_SERVED
    speculation: Literal["auto", "off"] = "auto"
    """auto: drafts are computed where that is predicted to be faster."""
    draft_max: int = 31
    """Tokens that one sequence drafts in a step."""
    draft_model_path: str | None = None
    """A small model with the same tokens."""
    projector_path: str | None = None
    """What makes rows of pictures and sounds, in a file of its own; None: the model takes text only."""
    adapters: tuple[Adapter, ...] = ()
    """Loaded at start; one that cannot be is refused alone."""
    cache_bytes: int = 0
    """Host memory for the prefix cache."""
    cache_file: str | None = None
    """Where the prefix cache is kept between runs."""
    cache_file_limit: CacheFileLimit | None = None
    """None: all of it is kept, however long that takes."""
    pinned_prompts: tuple[tuple[int, ...], ...] = ()
    """Computed at start, and never evicted from the prefix cache."""
    pinned_namespace: str = ""
    cost_dir: str | None = None
    """Where it is kept what was measured. None: nothing is kept, and nothing measured."""
    calibrate: Literal["idle", "start", "never"] = "idle"
    """When the cost of steps is measured, if no earlier start has kept it. start: before it is ready; idle:
    when nobody wants anything; never. Without a measurement a guess is refined while serving.
    """

    shares_cores: bool = False
    """Other engines compute on the same cores: this one computes only while it holds the turn.

    Off: no message is sent about turns.
    """
    sandbox: Literal["auto", "off"] = "auto"
    """auto: the process gives up what it does not need, as far as the kernel can."""
    adapter_folders: tuple[str, ...] = ()
    """Adapters that are loaded later lie in one of these."""
    tells_forecast: bool = False
    """Several engines are chosen between by what they forecast, and by the prompts that they hold."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @property
    def wants_device(self) -> bool:
        return self.offload.wants_device or self.draft_offload.wants_device

    def on_cpu_alone(self, why: str) -> EngineOptions:
        """Without the devices that were asked for: `why`, a clause."""
        given_up = Offload(given_up=why)
        return msgspec.structs.replace(
            self,
            offload=given_up if self.offload.wants_device else self.offload,
            draft_offload=given_up if self.draft_offload.wants_device else self.draft_offload,
        )

    @property
    def exit_grace_s(self) -> float:
        """What the engine process is given to end by itself: more if it has a cache to write."""
        if self.cache_file is None:
            return 1.0
        return 60.0 if self.cache_file_limit is None else self.cache_file_limit.seconds + _LAST_SYNC_S


class StartEngine(msgspec.Struct, frozen=True, tag="start"):
    options: EngineOptions


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request, with what it has produced already if this engine replaces one that died.

    One of the same id that lives ends as cancelled, and this one takes its place: it is the same request,
    which is to go on in another way behind that output."""

    request: Union[GenerationRequest, EmbedRequest]
    output: tuple[int, ...] = ()
    """The tokens of a generation."""
    num_embedded: int = 0
    """How many of an `EmbedRequest`'s inputs have their vectors: the first ones."""


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class CancelRequest(msgspec.Struct, frozen=True, tag="cancel"):
    id: str
    reason: FinishReason = FinishReason.CANCELLED
    """`STOP`: somebody listens, and is told all that there is as if the model had ended it."""


class ClearCache(msgspec.Struct, frozen=True, tag="clear_cache"):
    """Forget all of the prefix cache but what is pinned."""


class LoadAdapter(msgspec.Struct, frozen=True, tag="load_adapter"):
    """Load an adapter beside those that are loaded. `AdapterLoaded` or `AdapterRefused` answers."""

    adapter: Adapter


class UnloadAdapter(msgspec.Struct, frozen=True, tag="unload_adapter"):
    """Free an adapter as soon as no request uses it any more. No new one may name it."""

    key: str


class MeasureMedia(msgspec.Struct, frozen=True, tag="measure_media"):
    """What stands for media items of these sizes in a prompt? `MediaMeasured` answers, for each once."""

    sizes: tuple[MediaSize, ...]


class GrantTurn(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """The engine may compute until it sends `TurnBack`. Only for one that shares its cores."""

    limit_ms: float | None = None
    """It gives the turn back after the step in which this time passes: 0 is one step. None: when it is
    recalled, or has no work."""
    beside_interactive: bool = False
    """Interactive work of another engine waits: steps are as short as beside interactive work of its own."""


class Sharing(NamedTuple):
    """How an engine shares its cores at the moment."""

    beside_interactive: bool = False
    """As in `GrantTurn`."""
    slowdown: float = 1.0
    """How many times longer everything takes because others compute too, as was seen lately."""


ALONE = Sharing()


class ShortenTurn(msgspec.Struct, frozen=True, kw_only=True, tag="recall"):
    """A new limit for the turn that the engine holds. One that has given it back meanwhile ignores this."""

    after_ms: float = 0.0
    """It gives the turn back after the step in which this time passes, counted from now."""
    interrupts: bool = False
    """An interactive newcomer of another engine waits.

    A step of batch work alone that has long left is thrown away.
    """


class ShowSteps(msgspec.Struct, frozen=True, tag="show_steps"):
    """Somebody watches: from now on `StepDone.shown` says who was in each step, and who holds what."""


class HideSteps(msgspec.Struct, frozen=True, tag="hide_steps"):
    """Nobody watches any more."""


Command = Union[
    StartEngine,
    Submit,
    CancelRequest,
    ClearCache,
    LoadAdapter,
    UnloadAdapter,
    MeasureMedia,
    GrantTurn,
    ShortenTurn,
    ShowSteps,
    HideSteps,
]


class Finish(SequenceFigures, frozen=True, kw_only=True):
    """How a request ended, and what it came to."""

    reason: FinishReason
    stop_string: str | None = None
    """Which of the request's stop strings has ended it; None: none has."""
    error: str | None = None
    is_own_fault: bool = False
    """The error is its grammar's: it comes again wherever the request is sent."""

    @property
    def is_good(self) -> bool:
        """The output is a result."""
        return self.reason in (FinishReason.STOP, FinishReason.LENGTH)


class PromptProgress(msgspec.Struct, frozen=True):
    """How far a prompt is computed, in tokens."""

    total: int
    cached: int
    """Those that were not to be computed; 0 while nobody knows."""
    processed: int
    """Those that are there now, these included."""
    left_ms: float | None = None
    """An estimate of the time to the first token; None: there is none."""
    place: int | None = None
    """In the queue, 1 is next; None: it is being read."""


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request gained in a step, of one part of its output. Text is released token by token, never
    half a token.

    `tokens` are those whose text was released: what is held back (half a character, the beginning of a stop
    string) comes with a later event, or never. Where a step goes from the thoughts to the answer there is an
    event for each; the first has the tokens. Text that may be a mark is held back alone, without its tokens.
    """

    id: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    part: OutputPart = OutputPart.ANSWER
    """What `text` is part of."""
    answer_start: int | None = 0
    """How many of the output's tokens stand before the first one of its answer: thoughts, marks, and white
    space around them. None: that is not known yet; it is at the end."""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token of `tokens`, when asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    progress: PromptProgress | None = None
    """What else it says is nothing. Only where the request asks for it, and before its first token."""
    finish: Finish | None = None
    """Set on the last event of a request, and only there."""


class LoadingPhase(enum.Enum):
    WEIGHTS = "weights"
    COSTS = "costs"
    """Its steps are timed, where that is wanted before the first start with a model is over."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    """How far a phase of the start has come, 0 to 1."""

    fraction: float
    phase: LoadingPhase = LoadingPhase.WEIGHTS


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    message: str


class LoadingAdapter(msgspec.Struct, frozen=True, tag="loading_adapter"):
    """An adapter is being loaded: if the process dies now, it has died of that."""

    key: str


class AdapterLoaded(msgspec.Struct, frozen=True, tag="adapter_loaded"):
    """Requests may name it from now on. Those of `EngineOptions.adapters` are told before `Ready`."""

    adapter: LoadedAdapter


class AdapterRefused(msgspec.Struct, frozen=True, tag="adapter_refused"):
    """It was not loaded; nothing else has changed."""

    adapter: RefusedAdapter


class MediaMeasured(msgspec.Struct, frozen=True, tag="media_measured"):
    media: tuple[MeasuredMedia, ...]


class StepStarted(msgspec.Struct, frozen=True, tag="step_started"):
    """Who is in the step that now runs, and how long such steps may take. Sent only when that has changed."""

    ids: tuple[str, ...]
    """Those who are computed, and those who have a slot since their last one was computed: beside the step
    their grammars and samplers are made ready."""
    expected_ms: float = 0.0
    """The cost model's prediction for each, rounded up to a power of two; 0: 128 at most."""


class Handling(msgspec.Struct, frozen=True, tag="handling"):
    """A request is being handled outside of steps, where native code may kill the process."""

    id: str | None
    """None: that is over."""


class KVStats(msgspec.Struct, frozen=True, kw_only=True):
    """Both tiers of KV memory, and what they have saved since the start."""

    block_tokens: int
    pool_blocks: int
    pool_blocks_used: int
    pool_blocks_shared: int
    """Held by more than one sequence."""
    cache_block_tokens: int
    cache_capacity_blocks: int
    """For so many there would be room without states."""
    cache_blocks: int
    cache_states: int
    """Saved states, which only recurrent and hybrid memories have."""
    cache_capacity_bytes: int
    cache_bytes: int
    cache_evictions: int
    prompt_tokens: int
    """Prompt tokens of all requests that have run."""
    cached_tokens: int
    """How many of these were not computed."""

    @property
    def pool_tokens_used(self) -> int:
        """Whole blocks counted."""
        return self.pool_blocks_used * self.block_tokens


class StepFigures(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a step was, and how long it took. Times are of the backend's work."""

    sequences: int
    tokens: int
    """Computed, drafts counted, padding not; 0: the step only moved cells."""
    padding: int = 0
    sampled: int = 0
    forced: int = 0
    """Output tokens that constraints left no alternative to, found since the figures before."""
    drafted: int = 0
    """How many of the tokens belonged to drafts."""
    accepted: int = 0
    """How many of these turned out right."""
    preemptions: int = 0
    """Sequences that have given up their cells for this step."""
    predicted_ms: float
    elapsed_ms: float
    encoding_ms: float = 0.0
    """The part of that in which a media item was encoded."""
    encodes: str = ""
    """Of which kind that is: `picture` or `sound`; "": nothing was encoded."""
    encoded: int = 0
    """Media items, or parts of one, whose rows are complete."""
    threads: int = 0
    """How many have computed it."""
    is_throttled: bool = False
    """A control group's quota of CPU time takes cores."""
    is_interrupted: bool = False
    """It was thrown away."""
    spent_ms: dict[str, float] = {}
    """By the label of the client: CPU time of all threads, shared by tokens. A step that was thrown away is
    nobody's."""


class StepDone(msgspec.Struct, frozen=True, omit_defaults=True, tag="step_done"):
    """All that one step brought, in one message."""

    events: tuple[TokenEvent, ...]
    kv: KVStats | None
    """None: the model has no cells."""
    figures: StepFigures | None = None
    """None: there is nothing to tell."""
    embedded: tuple[Embedded, ...] = ()
    forecast: Forecast | None = None
    """None: it is told a few times a second, and only to those who want it."""
    prefixes: PrefixNews | None = None
    """None: nothing has changed, or nobody wants to know."""
    shown: StepTrace | None = None
    """Only between `ShowSteps` and `HideSteps`."""


class QueuePlace(msgspec.Struct, frozen=True):
    """The place of a request that waits; position 1 is next."""

    id: str
    position: int
    first_token_ms: float
    """Estimate from now."""


class ModelLoading(msgspec.Struct, frozen=True):
    """A request waits for its model, of which this share is loaded, 0 to 1."""

    fraction: float


class QueueState(msgspec.Struct, frozen=True, tag="queue_state"):
    """The head of the waiting room, now and then while there is one."""

    places: tuple[QueuePlace, ...]
    preempted: tuple[str, ...] = ()
    """All that have run before and wait again, also those behind the head: nothing else tells it of them."""


class EngineWants(msgspec.Struct, frozen=True, kw_only=True, tag="wants"):
    """What an engine that shares its cores would compute, or computes. Sent when that changes."""

    work: Priority | None = None
    """The best that it has; None: nothing."""
    is_loading: bool = False
    """It loads its model: the work is for whoever waits for that."""


class TurnBack(msgspec.Struct, frozen=True, kw_only=True, tag="turn_back"):
    """The engine gives the turn back that it got, and wants this next."""

    wants: EngineWants


AdapterNews = Union[LoadingAdapter, AdapterLoaded, AdapterRefused]
Event = Union[
    Loading,
    Ready,
    StartFailed,
    LoadingAdapter,
    AdapterLoaded,
    AdapterRefused,
    MediaMeasured,
    StepStarted,
    Handling,
    StepDone,
    QueueState,
    EngineWants,
    TurnBack,
]
