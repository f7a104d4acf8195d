"""One step of the engine as plain data, and the `Backend` that executes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Protocol, Union

import msgspec

from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import Constraint, Sampling


class Open(msgspec.Struct, frozen=True):
    """Bind a free slot to a request's sampler. `output` was generated before a preemption or a crash."""

    slot: int
    sampling: Sampling
    prompt: tuple[int, ...]
    output: tuple[int, ...] = ()
    top_logprobs: int | None = None
    constraint: Constraint | None = None


class Close(msgspec.Struct, frozen=True):
    """Free the slot: its KV cells and its sampler."""

    slot: int


class Share(msgspec.Struct, frozen=True):
    """Let the open, empty `slot` hold the cells of positions 0 .. end-1 of `source` too, without copying."""

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


class Drop(msgspec.Struct, frozen=True):
    """Free a saved block."""

    block: int


Verb = Union[Open, Close, Share, Save, Restore, Drop]
"""What happens to slots and saved blocks before the spans are computed, in order."""


class Span(msgspec.Struct, frozen=True):
    """Consecutive tokens of one slot to compute: `tokens[i]` stands at position `start + i`."""

    slot: int
    start: int
    tokens: tuple[int, ...]
    sample: bool
    """Sample one token after the last."""
    targets: tuple[int, ...] = ()
    """Report the log-probability of `targets[i]` after `tokens[i]` (prompt scoring)."""
    draft: tuple[int, ...] = ()
    """Tokens that may follow: computed behind `tokens` to save steps where they turn out right.

    Only where a token is sampled, without targets, and where the memory can be trimmed.
    """
    num_to_draft: int = 0
    """Instead of `draft`: so many that the backend's draft model is to think of, or fewer."""
    num_to_read: int | None = None
    """Tokens of the slot that the draft model may read for that; with more to read it thinks of nothing yet.

    None: as many as it can.
    """

    @property
    def num_drafted(self) -> int:
        return len(self.draft) + self.num_to_draft

    @property
    def num_tokens(self) -> int:
        """That the span computes, its draft included."""
        return len(self.tokens) + self.num_drafted


class Step(msgspec.Struct, frozen=True):
    """What the backend does in one go: the verbs in order, then all spans in one `llama_decode`."""

    verbs: tuple[Verb, ...] = ()
    spans: tuple[Span, ...] = ()
    padding: int = 0
    """Throw-away tokens to compute besides, in a slot set aside, where a larger step is a faster one."""
    is_staged: bool = False
    """Computed beside the pool, where no other sequence's cells are in the way: only spans of slots that have
    no cells in the pool, without drafts and padding. They are moved there when they are needed there: by
    another step, or by a verb. The pool must have room for them all the time.
    """

    @property
    def num_tokens(self) -> int:
        """Drafts included, padding not."""
        return sum(span.num_tokens for span in self.spans)


class SavedBlock(msgspec.Struct, frozen=True):
    """A block of the prefix cache as its index knows it: enough to rebuild the index from a file."""

    number: int
    parent: int | None
    """The block before it; None for the first of its namespace's chain."""
    namespace: str
    tokens: tuple[int, ...]


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
    """Tokens behind it that the constraint leaves no alternative to; they still have to be computed."""


def num_right(draft: Sequence[int], output: Iterable[int]) -> int:
    """How many tokens of the draft, from its beginning on, are those of the output."""
    same = (token == right for token, right in zip(draft, output, strict=False))
    return sum(takewhile(bool, same))


class Drafted(msgspec.Struct, frozen=True):
    """What became of a span's draft, in tokens."""

    num_computed: int = 0
    """Fewer than planned where a constraint forbids some, or the draft model thought of fewer."""
    num_accepted: int = 0
    """From its beginning on, those of the output too. The slot holds their cells, and none of the rest."""
    num_known: int = 0
    """Of a draft model: tokens of the slot that it has read."""
    num_thought: int = 0
    """Of a draft model: tokens that it has thought of, also the one that it was not sure enough of, and those
    that a constraint forbids. 0 while it is still reading.
    """


class StepResult(msgspec.Struct, frozen=True):
    """What came out. An interrupted step computed nothing: its spans left no trace in the slots, whose cells
    are where it needed them, in the pool or beside it.
    """

    samples: dict[int, Sample] = {}
    """By slot, for every span with `sample` that has not failed at once."""
    further: dict[int, tuple[Sample, ...]] = {}
    """By slot, what was sampled behind draft tokens that the samples before have proved right.

    Each is what a step of its own would have sampled.
    """
    drafted: dict[int, Drafted] = {}
    """By slot, what became of its draft, for every span that was to have one."""
    drafting_ms: float = 0.0
    """What the draft model took, of the step's time."""
    scores: dict[int, tuple[TokenLogprob, ...]] = {}
    """By slot, one per target, for every span with targets."""
    failures: dict[int, str] = {}
    """By slot, why its constraint cannot be carried out any further: nothing more is sampled there."""
    padding: int = 0
    """Throw-away tokens that were computed: all of the step's, or none if there were no cells for them."""
    interrupted: bool = False


class Backend(Protocol):
    """Owns the model and its memory. Not thread-safe but for `interrupt` and `forced`."""

    @property
    def info(self) -> ModelInfo: ...

    def execute(self, step: Step) -> StepResult: ...

    def interrupt(self) -> None:
        """Make the running `execute` return early, `interrupted`; later steps are untouched. Any thread."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to the output: b"" for control tokens, but their names if `special`.

        Tokens that end the output have none in any case.
        """
        ...

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        """Tokens that follow this output of a request whatever its model says: the beginning, if it is empty.

        Compiles what `Open` will need. Any thread. Raises `ConstraintFailed`.
        """
        ...

    def export_cache(self, path: str, blocks: Sequence[SavedBlock]) -> None:
        """Write these saved blocks, index and cells, to a file. Raises OSError."""
        ...

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        """Take in what `export_cache` wrote, parents before children; () if the file is of no use here."""
        ...

    def close(self) -> None: ...
