from __future__ import annotations

from typing import Union, get_args

import msgspec

from openai_cpu_server.api.admin.health import QueueSizes
from openai_cpu_server.contract.offload import DevicePlacement
from openai_cpu_server.http.options import SchedulingOptions

VERSION = 1
"""Increases when a field changes or disappears, not for new ones."""


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
    """Set, like the next three, once the model is known."""
    max_seqs: int | None
    threads: int | None
    threads_computing: int | None
    is_throttled: bool
    """Cores limited by a control group's quota."""
    kv_tokens: int
    kv_tokens_used: int
    memory_bytes: int
    """Resident memory with the mapped model file, or 0."""
    placement: DevicePlacement | None
    draft_placement: DevicePlacement | None
    restarts: int


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="hello"):
    """First event of each stream."""

    version: int
    server: str
    at: float
    sees: str
    """`all` for administrators and servers without keys, else `own`."""
    types: list[str]
    """Some need other keys."""
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
    """Token from which the next is sampled."""
    forced: int = 0
    """Output tokens determined by the grammar."""
    draft: int = 0
    accepted: int = 0
    output: int = 0
    encoding_ms: float = 0
    sound_ms: float = 0
    """Part for sounds."""
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
    """Excludes padding. 0 if only KV cells moved."""
    encoding_ms: float = 0
    sound_ms: float = 0
    padding: int = 0
    """Makes the step faster."""
    merged: int = 1
    """Merged steps, whose other numbers are sums."""
    interrupted: bool = False
    """Discarded for an interactive request."""
    preemptions: int = 0
    """Sequences that gave up KV cells for it."""
    adapter: str | None = None
    parts: list[StepPart] = []


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="step"):
    steps: list[StepReport]
    dropped: int
    """Steps lost by a slow reader since the last event."""


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
    """Counts from 1. None far from the head or without a ready engine."""
    first_token_ms: float | None
    why: str | None
    """`slot` (all are taken), `cells` (the KV pool is full), `prefix` (another request is computing it),
    `engine` (loading or restarting), or None if unknown."""


class Queue(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="queue"):
    sizes: dict[str, QueueSizes]
    waiting: list[Waiting]
    """First hundred for each model, without those of other keys."""


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
    """Resolution of the pool's picture."""
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
    """Null, like `answers`, without the scope `admin`."""


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
