"""The events of `GET /v1/events`. Times are Unix seconds (`at`) or milliseconds (`_ms`).

Counts of a step that are 0, and names that the reader may not see, are left out.
"""

from __future__ import annotations

from typing import Union

import msgspec

from openai_cpu_server.contract.offload import Placement
from openai_cpu_server.http.options import SchedulingOptions

VERSION = 1
"""It grows when something that is here changes its meaning or goes. New fields and types are no change."""


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="restart"):
    """An engine process has died, and another takes its place; live requests go on."""

    model: str
    at: float
    cause: str
    """As in the metric of restarts: `SIGSEGV`, `out_of_memory`, `hang`, ..."""
    reason: str
    """A clause for people."""
    restarts: int
    """How many this model has had."""


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """`generates`, `embeds` or `reranks`."""
    state: str
    """As in `/health`."""
    reason: str | None
    loaded: float
    """Share of the model that is loaded, 0 to 1."""
    quantisation: str | None
    context_length: int | None
    """This and the next three are None while nothing is known of the model."""
    max_seqs: int | None
    """Sequences that run at once."""
    threads: int | None
    """So many compute where each gets its core."""
    threads_computing: int | None
    """Those of the last step: fewer where others use the cores."""
    is_throttled: bool
    """A control group's quota of CPU time takes cores."""
    kv_tokens: int
    kv_tokens_used: int
    memory_bytes: int
    """Resident memory of its process, the mapped model file included; 0: there is none."""
    placement: Placement | None
    """What of it is on a device beside the CPU; null: nothing."""
    draft_placement: Placement | None
    """The same of its draft model."""
    restarts: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """The first event of each stream."""

    version: int
    server: str
    at: float
    sees: str
    """`all`: the key is an administrator's, or the server has no keys. `own`: its own requests; those of
    others are counted, and have no names."""
    types: list[str]
    """The events that follow; others than these are for other keys."""
    interval_ms: int
    """Two events are so far apart, at least."""
    models: list[ModelState]
    restarts: list[Restart]
    """The last ones before this stream began, the oldest first."""
    usage: bool
    """There is `GET /v1/usage`."""
    scheduling: SchedulingOptions | None
    """The options that explain the pictures."""


class StepPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence's tokens in a step; without an `id`: those of all sequences of other keys that have this
    priority."""

    id: str | None = None
    client: str | None = None
    priority: str
    sequences: int = 1
    prompt: int = 0
    """Tokens of its prompt."""
    decode: int = 0
    """The token behind which the next one is sampled."""
    forced: int = 0
    """Output that a grammar left no choice about."""
    draft: int = 0
    """Tokens computed ahead, in the hope that they are what comes."""
    accepted: int = 0
    """How many of the draft came."""
    output: int = 0
    """Output tokens that came of it."""
    encoding_ms: float = 0
    """What a picture or a sound of it took."""
    sound_ms: float = 0
    """How much of that a sound took."""
    why: str | None = None
    """Why most of its tokens are computed: `decode`, `prompt`, `forced`, `draft`, `least` (beyond the time of
    the step, so that nobody is locked out), `tile` (they cost next to nothing), `batch-floor` (batch work's
    share of the time has paid for them); `picture`, `sound`: one of it is encoded."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of an engine, or several short ones in a row that are told as one."""

    model: str
    at: float
    """When it began."""
    ms: float
    predicted_ms: float
    """What the cost model had said."""
    tokens: int = 0
    """Tokens computed, padding not counted; 0: the step only moved cells."""
    encoding_ms: float = 0
    """The part of `ms` in which pictures or sounds were encoded."""
    sound_ms: float = 0
    """The part of that in which sounds were."""
    padding: int = 0
    """Throw-away tokens that made it faster."""
    merged: int = 1
    """How many steps this stands for: the numbers are their sums."""
    interrupted: bool = False
    """It was thrown away for an interactive newcomer."""
    preemptions: int = 0
    """Sequences that gave up their cells for it."""
    adapter: str | None = None
    parts: list[StepPart] = []


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step"):
    steps: list[StepReport]
    dropped: int
    """Steps since the event before that this reader was too slow for."""


class Sizes(msgspec.Struct, frozen=True):
    running: int
    waiting: int


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A request that waits; a call with several choices has several."""

    id: str
    model: str
    priority: str
    client: str
    prompt_tokens: int
    output_tokens: int
    """Those that it had before it was preempted, or its engine died."""
    age_s: float
    position: int | None
    """1 is next; None: it is not near the head, or its engine is not ready."""
    first_token_ms: float | None
    """An estimate from now, where there is a position."""
    why: str | None
    """`slot`: as many run as may. `cells`: the KV pool is full. `prefix`: another request is just computing a
    beginning that they share. `engine`: its model is loading or restarts. None: that is not known."""


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="queue"):
    sizes: dict[str, Sizes]
    """By priority, those of others included."""
    waiting: list[Waiting]
    """The first hundred, in their order for each model; those of other keys are left out."""


class Running(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """`DELETE /v1/requests/{id}` ends it."""
    model: str
    priority: str
    client: str
    prompt_tokens: int
    output_tokens: int
    age_s: float
    inputs: int | None
    """How many texts it embeds or scores; None: it generates."""
    inputs_done: int | None


class Requests(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="request"):
    """The requests that run, the first hundred of them."""

    running: list[Running]


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The tiles of the pool in which a request holds cells. Tiles that several hold are shared.

    Without an `id`: those of all other keys' requests of this priority.
    """

    id: str | None = None
    priority: str
    runs: list[tuple[int, int]]
    """(first tile, how many in a row)."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    blocks: int
    used_blocks: int
    shared_blocks: int
    """Held by more than one request."""
    tiles: int
    """The pool as a picture has it."""
    tile_blocks: int
    """Blocks in a tile."""
    holdings: list[Holding]


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache: computed prompts in host memory. Counts begin with the engine process."""

    block_tokens: int
    capacity_blocks: int
    blocks: int
    pinned_blocks: int
    evictions: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None
    """`cached_tokens / prompt_tokens`."""


class ModelCache(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    pool: Pool
    prompts: Prompts | None
    """None, as `answers`, for keys without the scope `admin`."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The cache of answers, counted since the server's start."""

    exact: int
    semantic: int
    misses: int
    bypasses: int
    hit_rate: float | None
    """Hits over hits and misses."""


class Caches(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cache"):
    models: list[ModelCache]
    answers: Answers | None
    """None: nothing has been asked of it yet, or there is none."""


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    p50: float | None
    p95: float | None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    ttft_ms: Quantiles
    """From a request's submission to its first token."""
    inter_token_ms: Quantiles
    """Between two tokens of a sequence."""


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rate"):
    """The last `window_s` seconds, as the engines' steps have them."""

    window_s: float
    output_tokens_per_s: float
    computed_tokens_per_s: float
    """Prompt tokens and drafts too."""
    priorities: dict[str, Latency]


class Models(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    models: list[ModelState]
    memory_bytes: int
    """Resident memory of this process and the engines'."""


Event = Union[Hello, Steps, Queue, Requests, Caches, Rates, Models, Restart]
EVENTS: tuple[type[msgspec.Struct], ...] = (Hello, Steps, Queue, Requests, Caches, Rates, Models, Restart)


def name_of(event: Event) -> str:
    """The event's name on the wire, which is also its `type`."""
    return str(event.__struct_config__.tag)
