from __future__ import annotations

from typing import Union, get_args

import msgspec

from openai_cpu_server.api.admin.health import QueueSizes
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.http.options import SchedulingOptions

VERSION = 1
"""Increases when a field changes its meaning or disappears, not for new fields and types."""


class Restart(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="restart"):
    """An engine process has died and is replaced; live requests continue."""

    model: str
    at: float
    cause: str
    reason: str
    restarts: int


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    """`generates`, `embeds` or `reranks`."""
    state: str
    reason: str | None
    loaded: float
    quantisation: str | None
    context_length: int | None
    """Set, like the next three, if the model is known."""
    max_seqs: int | None
    threads: int | None
    threads_computing: int | None
    is_throttled: bool
    """True if a control group's CPU quota takes cores."""
    kv_tokens: int
    kv_tokens_used: int
    memory_bytes: int
    """Resident memory of the process with the mapped model file, or 0."""
    placement: DevicePlacement | None
    draft_placement: DevicePlacement | None
    restarts: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """First event of each stream."""

    version: int
    server: str
    at: float
    sees: str
    """Scope of names: `all` for administrators and servers without keys, else `own`."""
    types: list[str]
    """Events that follow; some need other keys."""
    interval_ms: int
    models: list[ModelState]
    restarts: list[Restart]
    usage: bool
    scheduling: SchedulingOptions | None


class StepPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tokens of a sequence in a step, or without an `id` of all other keys' sequences of this priority."""

    id: str | None = None
    client: str | None = None
    priority: str
    sequences: int = 1
    prompt: int = 0
    decode: int = 0
    """Token from which the next one is sampled."""
    forced: int = 0
    """Output tokens that the grammar determines."""
    draft: int = 0
    accepted: int = 0
    output: int = 0
    encoding_ms: float = 0
    sound_ms: float = 0
    """Part of that for sounds."""
    why: str | None = None
    """Reason for most of the tokens: `decode`, `prompt`, `forced`, `draft`, `least` (beyond the step's
    time, against starvation), `tile` (nearly free), `batch-floor` (paid by batch work's share of time),
    `picture` or `sound` (being encoded)."""


class StepReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Step of an engine, or several short steps merged."""

    model: str
    at: float
    ms: float
    predicted_ms: float
    tokens: int = 0
    """Computed tokens without padding. 0 if the step only moved KV cells."""
    encoding_ms: float = 0
    sound_ms: float = 0
    padding: int = 0
    """Padding tokens, which make the step faster."""
    merged: int = 1
    """Number of merged steps. Other numbers are sums."""
    interrupted: bool = False
    """Discarded for a new interactive request."""
    preemptions: int = 0
    """Sequences that gave up their KV cells for it."""
    adapter: str | None = None
    parts: list[StepPart] = []


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step"):
    steps: list[StepReport]
    dropped: int
    """Steps lost since the last event, because the reader was too slow."""


class LiveSequence(msgspec.Struct, frozen=True, kw_only=True):
    """Live sequence; a call with several choices has several."""

    id: str
    model: str
    priority: str
    client: str
    prompt_tokens: int
    output_tokens: int
    age_s: float


class Waiting(LiveSequence, frozen=True, kw_only=True):
    """Waiting sequence. It has output after a preemption or a crash of the engine."""

    position: int | None
    """Position from 1, or None far from the head or while the engine is not ready."""
    first_token_ms: float | None
    why: str | None
    """`slot` (all are taken), `cells` (the KV pool is full), `prefix` (another request is computing a
    shared prefix), `engine` (its model is loading or restarts), or None if unknown."""


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="queue"):
    sizes: dict[str, QueueSizes]
    waiting: list[Waiting]
    """First hundred in order for each model, without those of other keys."""


class Running(LiveSequence, frozen=True, kw_only=True):
    inputs: int | None
    inputs_done: int | None


class Requests(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="request"):
    """First hundred running requests."""

    running: list[Running]


class Holding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tiles with KV cells of a request, or without an `id` of all other keys' requests of this priority."""

    id: str | None = None
    priority: str
    runs: list[tuple[int, int]]
    """First tile and length of each run."""


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    block_tokens: int
    blocks: int
    used_blocks: int
    shared_blocks: int
    tiles: int
    """Resolution of the picture of the pool."""
    tile_blocks: int
    holdings: list[Holding]


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """Prefix cache in host memory, with counts since the start of the engine process."""

    block_tokens: int
    capacity_blocks: int
    blocks: int
    pinned_blocks: int
    evictions: int
    prompt_tokens: int
    cached_tokens: int
    hit_rate: float | None


class ModelCache(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    pool: Pool
    prompts: Prompts | None
    """Prefix cache, or None, like `answers`, for keys without the scope `admin`."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """Answer cache since the server's start."""

    exact: int
    semantic: int
    misses: int
    bypasses: int
    hit_rate: float | None


class Caches(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="cache"):
    models: list[ModelCache]
    answers: Answers | None


class Quantiles(msgspec.Struct, frozen=True, kw_only=True):
    count: int
    p50: float | None
    p95: float | None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    ttft_ms: Quantiles
    inter_token_ms: Quantiles


class Rates(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="rate"):
    window_s: float
    output_tokens_per_s: float
    computed_tokens_per_s: float
    """Includes prompt tokens and drafts."""
    priorities: dict[str, Latency]


class Models(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    models: list[ModelState]
    memory_bytes: int


Event = Union[Hello, Steps, Queue, Requests, Caches, Rates, Models, Restart]
EVENTS: tuple[type[msgspec.Struct], ...] = get_args(Event)
