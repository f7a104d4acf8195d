"""One step of the engine as plain data, the `Backend` that executes it, and what those who watch are told of
it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol, Union

import msgspec

from openai_cpu_server.contract.media import MediaItem, Medium, Sound
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter, NativeModel
from openai_cpu_server.contract.request import Constraint, Priority, Sampling

POOL_BLOCK_TOKENS = 16
"""The cells in which the scheduler's ledger counts the KV pool. Restored cells come in such parts, too."""


class Open(msgspec.Struct, frozen=True):
    """Bind a free slot to a request's sampler. `output` is what a preemption or a crash interrupted."""

    slot: int
    sampling: Sampling
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    top_logprobs: int | None = None
    constraint: Constraint | None = None
    media_items: tuple[MediaItem, ...] = ()
    media: tuple[Medium, ...] = ()
    """As in `GenerationRequest`, of which the prompt is, too."""


class Close(msgspec.Struct, frozen=True):
    """Free the slot: its KV cells and its sampler."""

    slot: int


class ShareCells(msgspec.Struct, frozen=True):
    """Let the open, empty `slot` hold the cells of positions 0 .. end-1 of `source` too, without copying.

    If `source` has computed just these, the slot gets its state, too.
    """

    source: int
    slot: int
    end: int


class Save(msgspec.Struct, frozen=True):
    """Copy the slot's cells of positions start .. end-1 to host memory, as the prefix cache's block."""

    slot: int
    start: int
    end: int
    block: int


class Restore(msgspec.Struct, frozen=True):
    """Put a saved block's first `end - start` cells into the slot, behind the `start` that it holds."""

    block: int
    slot: int
    start: int
    end: int


class SaveState(msgspec.Struct, frozen=True):
    """Copy the state of the slot, which has computed `end` tokens, to host memory."""

    slot: int
    end: int
    state: int


class RestoreState(msgspec.Struct, frozen=True):
    """Put a saved state into the slot, whose cells are those of the same `end` tokens."""

    state: int
    slot: int
    end: int


class Drop(msgspec.Struct, frozen=True):
    """Free a saved block or state; they share their numbers."""

    block: int


Verb = Union[Open, Close, ShareCells, Save, Restore, SaveState, RestoreState, Drop]
"""What happens to slots and saved blocks, in order, before the spans are computed."""


class Span(msgspec.Struct, frozen=True):
    """Consecutive tokens of one slot to compute: `tokens[i]` is token `start + i` of its sequence.

    Rows of media come in spans of their own, of one medium each, and all at once where it `is_whole`.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    sample: bool
    """Whether to sample a token after the last one."""
    targets: tuple[int, ...] = ()
    """Report the log-probability of `targets[i]` after `tokens[i]` (prompt scoring)."""
    draft: tuple[int, ...] = ()
    """Tokens that may follow. They are computed behind `tokens`, which saves steps if they turn out right.

    They are allowed only where a token is sampled, without targets, and at most `ModelInfo.max_draft`.
    """
    num_to_draft: int = 0
    """How many tokens the backend's draft model is to draft, at most. It is an alternative to `draft`."""
    num_to_read: int | None = None
    """How many of the slot's tokens the draft model may read for that; None: as many as it can.

    While it has more to read it drafts nothing.
    """

    @property
    def num_drafted(self) -> int:
        return len(self.draft) + self.num_to_draft

    @property
    def num_tokens(self) -> int:
        """The tokens that the span computes, its draft included."""
        return len(self.tokens) + self.num_drafted


class Encode(msgspec.Struct, frozen=True):
    """Go on making rows of a medium of an open slot. What else was being encoded is given up."""

    slot: int
    medium: int
    """Its place in the slot's `media`."""
    ms: float
    """So long at most, but for the operation that is just being computed."""


class Step(msgspec.Struct, frozen=True):
    """What the backend does in one go: the verbs in order, then all spans in one `llama_decode`."""

    verbs: tuple[Verb, ...] = ()
    spans: tuple[Span, ...] = ()
    padding: int = 0
    """Throw-away tokens to compute in a slot set aside, where a larger step is a faster one."""
    adapter: str | None = None
    """The key of the adapter that all spans are computed with; None: the model as it is."""
    may_be_interrupted: bool = False
    """Whether `interrupt` may end it: the backend keeps what it needs to go back to the beginning."""
    encode: Encode | None = None
    """Behind the spans. An interrupted step has not come to it."""

    @property
    def num_tokens(self) -> int:
        """The tokens of all spans, with drafts but without padding."""
        return sum(span.num_tokens for span in self.spans)


class CacheFileLimit(msgspec.Struct, frozen=True):
    """How much of a prefix cache is kept: what was used last, as far as it goes."""

    num_bytes: int
    seconds: float
    """The end of a server, or the next model, waits no longer for it."""


class SavedBlock(msgspec.Struct, frozen=True):
    """A block of the prefix cache as its index has it: enough to rebuild the index from a file."""

    number: int
    parent: int | None
    """The block before it; None for the first of its namespace's chain."""
    namespace: str
    tokens: tuple[int, ...]
    state: int | None = None
    """The number of the state that is saved at its end; None: there is none."""


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Natural log-probability of a token under the model's own distribution (before sampling parameters)."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """The most probable alternatives, best first."""


class Sample(msgspec.Struct, frozen=True):
    """The token that was sampled after a span."""

    token: int
    logprob: TokenLogprob | None = None
    forced: tuple[int, ...] = ()
    """Tokens behind it to which the constraint leaves no alternative. They still have to be computed."""


def num_right(draft: Sequence[int], output: Iterable[int]) -> int:
    """How many tokens of the draft, from its beginning on, are the output's."""
    same = (token == right for token, right in zip(draft, output, strict=False))
    return sum(takewhile(bool, same))


class Drafted(msgspec.Struct, frozen=True):
    """The result of a span's draft, in tokens."""

    num_computed: int = 0
    """The draft's tokens that were computed: fewer than planned if a constraint forbids some, or fewer were
    drafted.
    """
    num_accepted: int = 0
    """The first of them that are the output's too. The slot holds the cells of these, and of no others."""
    num_known: int = 0
    """The slot's tokens that the draft model has read; 0 without one."""
    num_thought: int = 0
    """The tokens that the draft model tried, also an unsure last one and those that a constraint forbids.

    It is 0 while the draft model is still reading.
    """


class StepResult(msgspec.Struct, frozen=True):
    """The result of a step. An interrupted one computed nothing: its spans left no trace in the slots."""

    samples: dict[int, Sample] = {}
    """The sample of each slot whose span has `sample`, unless its constraint failed at once."""
    further: dict[int, tuple[Sample, ...]] = {}
    """By slot, the samples behind draft tokens that the samples before them proved right.

    Each is what a step of its own would have sampled.
    """
    drafted: dict[int, Drafted] = {}
    """By slot, the result of its draft, for every span that asked for one."""
    drafting_ms: float = 0.0
    """Milliseconds of the step that the draft model took."""
    verbs_ms: float = 0.0
    """Milliseconds of the step that the verbs took."""
    scores: dict[int, tuple[TokenLogprob, ...]] = {}
    """By slot, one score for each target, for every span with targets."""
    failures: dict[int, str] = {}
    """By slot, why its constraint cannot be followed any further; nothing more is sampled there."""
    faults: dict[int, str] = {}
    """By slot, what else went wrong while it was sampled or scored; nothing more is sampled there, either."""
    padding: int = 0
    """The throw-away tokens that were computed: all of the step's, or 0 if there were no cells for them."""
    interrupted: bool = False
    encoded: bool = False
    """The step's `encode` is done: spans of these rows may come. What is wrong with it is a fault."""
    encoding_ms: float = 0.0
    """Milliseconds of the step that `encode` took."""


class Backend(NativeModel, Protocol):
    """Owns a model that generates. `forced` and `check_adapter`, too, may be called from other threads."""

    def execute(self, step: Step) -> StepResult: ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to the output: b"" for control tokens, or their names if `special`.

        Tokens that end the output add none in any case.
        """
        ...

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        """The tokens that must follow this output of a request whatever its model says, also at the
        beginning, after ().

        Compiles what `Open` will need. Any thread. Raises `ConstraintFailed`.
        """
        ...

    def check_adapter(self, adapter: Adapter) -> None:
        """Look at an adapter's file before it is loaded. Any thread. Raises `AdapterFailed`."""
        ...

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Load an adapter that was checked, and whose key no loaded one has.

        Raises `AdapterFailed`; then nothing has changed.
        """
        ...

    def unload_adapter(self, key: str) -> None:
        """Free an adapter that is loaded."""
        ...

    def export_cache(
        self, path: str, blocks: Sequence[SavedBlock], limit: CacheFileLimit | None = None
    ) -> None:
        """Write these saved blocks, index and cells, to a file: the first ones, as far as the limit lets it.
        Without any there is no file. Raises OSError."""
        ...

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        """Load what `export_cache` wrote, parents before children; () if the file is of no use here."""
        ...


class ShownPart(msgspec.Struct, frozen=True, array_like=True):
    """One sequence's part in a step. Counts are tokens; `draft` are those that may follow."""

    id: str
    client: str
    """As in `GenerationRequest`."""
    priority: Priority
    why: str
    """For which reason most of its tokens are computed: one of few words, those of the step log."""
    prompt: int = 0
    decode: int = 0
    forced: int = 0
    draft: int = 0
    accepted: int = 0
    """How many of the draft turned out right."""
    output: int = 0
    """Output tokens that came of it, forced ones included."""
    encoding_ms: float = 0.0
    """What a picture or a sound of it took in the step."""

    @property
    def sound_ms(self) -> float:
        return self.encoding_ms if self.why == Sound.kind else 0.0


class ShownHolding(msgspec.Struct, frozen=True, array_like=True):
    """Which cells of the KV pool one sequence holds. Who else is told of the same tiles shares them."""

    id: str
    client: str
    priority: Priority
    runs: tuple[tuple[int, int], ...]
    """Tiles of the pool, ascending: (first, how many in a row)."""


class ShownWait(msgspec.Struct, frozen=True, array_like=True):
    """Why a sequence near the head of the queue waits: for a `slot`, for `cells`, or for a `prefix` that
    another one is just computing."""

    id: str
    why: str


class ShownState(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds what, and who waits for what. It is told now and then, and when the last sequence leaves."""

    pool_tiles: int
    """0: the model has no cells."""
    tile_blocks: int
    """Blocks of the pool in a tile: more than one in a pool of many blocks, which bounds the message."""
    holdings: tuple[ShownHolding, ...]
    waits: tuple[ShownWait, ...]
    cache_pinned_blocks: int
    """Blocks of the prefix cache that are never evicted."""


class StepTrace(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    parts: tuple[ShownPart, ...] = ()
    """Those of the step's spans."""
    adapter: str | None = None
    """The key of the adapter that the step was computed with."""
    state: ShownState | None = None
    """None: it was told a moment ago."""
