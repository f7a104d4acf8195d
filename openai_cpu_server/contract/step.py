"""Step as plain data, the `Backend` that executes it, and its trace."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import Protocol, Union

import msgspec

from openai_cpu_server.contract.media import MediaItem, PlaceholderRange, Sound
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, NativeModel
from openai_cpu_server.contract.request import Constraint, Priority, Sampling

POOL_BLOCK_TOKENS = 16
"""Unit in which the scheduler accounts for the KV pool, and in which cells are restored."""


class Open(msgspec.Struct, frozen=True):
    slot: int
    sampling: Sampling
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[PlaceholderRange, ...] = ()


class Close(msgspec.Struct, frozen=True):
    slot: int


class ShareCells(msgspec.Struct, frozen=True):
    """Share positions 0 .. end-1 of `source`, and its state if it has computed exactly these."""

    source: int
    slot: int
    end: int


class Save(msgspec.Struct, frozen=True):
    """Copy cells of positions start .. end-1 to host memory."""

    slot: int
    start: int
    end: int
    block: int


class Restore(msgspec.Struct, frozen=True):
    """Put a saved block's first `end - start` cells behind the `start` cells of the slot."""

    block: int
    slot: int
    start: int
    end: int


class SaveState(msgspec.Struct, frozen=True):
    """Copy the slot's state after `end` tokens to host memory."""

    slot: int
    end: int
    state: int


class RestoreState(msgspec.Struct, frozen=True):
    """Put a saved state into the slot, which has cells of the same `end` tokens."""

    state: int
    slot: int
    end: int


class Drop(msgspec.Struct, frozen=True):
    """Free a saved block or state, which share one range of numbers."""

    block: int


Verb = Union[Open, Close, ShareCells, Save, Restore, SaveState, RestoreState, Drop]


class Span(msgspec.Struct, frozen=True):
    """Consecutive tokens of one slot from position `start`. Rows of media come in separate spans of one
    medium each, undivided if it `is_whole`."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    sample: bool
    targets: tuple[int, ...] = ()
    """Report the log-probability of `targets[i]` after `tokens[i]`."""
    draft: tuple[int, ...] = ()
    """At most `ModelInfo.max_draft`, only for spans that sample without targets."""
    num_to_draft: int = 0
    """Maximum tokens for the draft model, as an alternative to `draft`."""
    num_to_read: int | None = None
    """Tokens to read before drafting, or None. The model drafts only when it has read all."""

    @property
    def num_drafted(self) -> int:
        return len(self.draft) + self.num_to_draft

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_drafted


class Encode(msgspec.Struct, frozen=True):
    """Continue encoding a medium. Any other unfinished encoding is discarded."""

    slot: int
    placeholder: int
    """Index into the slot's `media`."""
    ms: float
    """Time limit, which the current operation may exceed."""


class Step(msgspec.Struct, frozen=True):
    """Verbs in order, then all spans in one `llama_decode`."""

    verbs: tuple[Verb, ...] = ()
    spans: tuple[Span, ...] = ()
    padding: int = 0
    """Tokens to compute in a reserved slot, for a faster size."""
    adapter: str | None = None
    """Key for all spans, or None for the base model."""
    may_be_interrupted: bool = False
    """Allow `interrupt`, so the backend keeps a way back."""
    encode: Encode | None = None
    """Executed behind the spans. An interrupted step does not reach it."""
    reads_along: bool = True
    """Let a prediction head read the hidden rows, which its drafts need."""

    @property
    def num_tokens(self) -> int:
        return sum(span.num_tokens for span in self.spans)


class CacheFileLimit(msgspec.Struct, frozen=True):
    num_bytes: int
    seconds: float
    """Longest wait of the server's end, or the next model."""


class SavedBlock(msgspec.Struct, frozen=True):
    number: int
    parent: int | None
    """Number of the previous block, or None for the first."""
    namespace: str
    tokens: tuple[int, ...]
    state: int | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability before sampling parameters."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Sample(msgspec.Struct, frozen=True):
    token: int
    logprob: TokenLogprob | None = None
    forced: tuple[int, ...] = ()
    """Tokens behind it without an alternative, still to be computed."""


def num_right(draft: Sequence[int], output: Iterable[int]) -> int:
    same = (token == right for token, right in zip(draft, output, strict=False))
    return sum(takewhile(bool, same))


class Drafted(msgspec.Struct, frozen=True):
    num_computed: int = 0
    """Fewer than planned after a forbidden or missing draft."""
    num_accepted: int = 0
    """First draft tokens that equal the output's. The slot holds the cells of exactly these."""
    num_read: int = 0
    """Tokens that the draft model has read, or 0 without one."""
    num_thought: int = 0
    """Tokens that the draft model tried, also uncertain and forbidden ones."""


NOTHING_DRAFTED = Drafted()


class StepResult(msgspec.Struct, frozen=True):
    """An interrupted step computed nothing, and its spans left no trace in the slots."""

    samples: dict[int, Sample] = {}
    further: dict[int, tuple[Sample, ...]] = {}
    """Samples by slot behind confirmed draft tokens."""
    drafted: dict[int, Drafted] = {}
    drafting_ms: float = 0.0
    reading_ms: float = 0.0
    verbs_ms: float = 0.0
    scores: dict[int, tuple[TokenLogprob, ...]] = {}
    failures: dict[int, str] = {}
    """Reason by slot why its constraint cannot be followed. Nothing more is sampled there."""
    faults: dict[int, str] = {}
    padding: int = 0
    """All of the step's, or 0 if they got no cells."""
    interrupted: bool = False
    encoded: bool = False
    """The step's `encode` is complete. Its errors are in `faults`."""
    encoding_ms: float = 0.0


class Backend(NativeModel, Protocol):
    """Other threads may also call `forced` and `check_adapter`."""

    def execute(self, step: Step) -> StepResult: ...

    def unready_slots(self) -> Collection[int]:
        """Return slots for whose constraint a step would wait."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return b"" for control tokens, or their names if `special`. Tokens that end the output add none."""

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens that must follow this output. Raises `ConstraintFailed`."""

    def check_adapter(self, adapter: Adapter) -> None:
        """Check an adapter's file. Raises `AdapterFailed`."""

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Load a checked, unloaded adapter. Raises `AdapterFailed`, and then nothing has changed."""

    def unload_adapter(self, key: str) -> None: ...

    def export_cache(
        self, path: str, blocks: Sequence[SavedBlock], limit: CacheFileLimit | None = None
    ) -> None:
        """Write index and cells of the first of these blocks, up to the limit. Raises OSError."""

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        """Return parents before children, or () if the file is unusable."""


class TracePart(msgspec.Struct, frozen=True, array_like=True):
    id: str
    client: str
    priority: Priority
    why: str
    """Reason for most of its tokens, as a word of the step log."""
    prompt: int = 0
    decode: int = 0
    forced: int = 0
    draft: int = 0
    accepted: int = 0
    output: int = 0
    encoding_ms: float = 0.0

    @property
    def sound_ms(self) -> float:
        return self.encoding_ms if self.why == Sound.kind else 0.0


class TraceHolding(msgspec.Struct, frozen=True, array_like=True):
    """Sequences with the same tiles share them."""

    id: str
    client: str
    priority: Priority
    runs: tuple[tuple[int, int], ...]
    """Ascending runs of tiles: (first, length)."""


class TraceWait(msgspec.Struct, frozen=True, array_like=True):
    """The sequence waits for a `slot`, `cells`, or another one's `prefix`."""

    id: str
    why: str


class TraceState(msgspec.Struct, frozen=True, kw_only=True):
    """Sent occasionally, and when the last sequence leaves."""

    pool_tiles: int
    """0 without cells."""
    tile_blocks: int
    """More than 1 in a large pool, which bounds the message."""
    holdings: tuple[TraceHolding, ...]
    waits: tuple[TraceWait, ...]
    cache_pinned_blocks: int


class StepTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    parts: tuple[TracePart, ...] = ()
    adapter: str | None = None
    state: TraceState | None = None
    """Sent unless a recent trace had it."""
