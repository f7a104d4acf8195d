"""Slots with their samplers and cells, and the saved blocks."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from math import gcd
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from openai_cpu_server.contract import step
from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.media import is_row
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.cells.block_store import (
    BadCacheFile,
    BlockStore,
    SavedCells,
    StoredBlock,
    read_cache_file,
    write_cache_file,
)
from openai_cpu_server.llama.cells.context import Context, Logits, PlacedRows, SlotContent
from openai_cpu_server.llama.grammar.constraints import (
    NO_OTHER_ITEM,
    ConstrainedOutput,
    Constraints,
    MaskedDraft,
)
from openai_cpu_server.llama.loading import LoadedParts
from openai_cpu_server.llama.projector import RowsKey
from openai_cpu_server.llama.sampler import Sampler, Scratch

logger = logging.getLogger(__name__)


class SampledSpan(NamedTuple):
    samples: tuple[step.Sample, ...]
    num_accepted: int
    error: RequestFailed | None = None


class OpenSlot:
    """`constrained` may still be starting."""

    def __init__(
        self, verb: step.Open, sampler: Sampler, constrained: Future[ConstrainedOutput] | None = None
    ) -> None:
        self.verb = verb
        self.constrained = constrained
        self.slow_mask: Future[None] | None = None
        """Set while the next mask is computed between steps."""
        self.tokens = [*verb.prompt, *verb.output]
        self.media = verb.media
        self.rows_keys = [(verb.media_items[one.item].digest, one.part) for one in verb.media]
        self.is_behind = False
        """True after a rollback: llama.cpp restores the snapshot only at the next token, so other slots
        cannot have it yet."""
        self._sampler = sampler

    def position(self, index: int) -> int:
        """Return the position behind all rows that share one place, because their cells belong to the range
        before."""
        lost = 0
        for one in self.media:
            if one.rows.has_one_place and one.start < index:
                index = max(index, one.end)
                lost += one.rows.num_rows - one.rows.num_positions
        return index - lost

    def held_at(self, end: int) -> int:
        """Count as llama.cpp does: rows at the end in one place are one."""
        last = next((one for one in self.media if one.start < end <= one.end), None)
        if last is None or not last.rows.has_one_place:
            return self.position(end)
        return self.position(last.start) + 1

    @property
    def is_even(self) -> bool:
        return not any(one.rows.has_one_place for one in self.media)

    def placeholder_at(self, index: int) -> int:
        return next(at for at, one in enumerate(self.media) if one.start <= index < one.end)

    def num_allowed(self, draft: Sequence[int]) -> int:
        if self.constrained is None:
            return len(draft)
        try:
            with contained():
                return self._followed(self.constrained).num_allowed(draft)
        except RequestFailed:
            return 0  # it fails again, and is reported, when a token is sampled

    def masked_draft(self) -> MaskedDraft | None:
        if self.constrained is None or self.slow_mask is not None:
            return None
        try:
            with contained():
                return self.constrained.result().masked_draft()
        except RequestFailed:
            return None  # it fails again, and is reported, when a token is sampled

    def sample_along(self, draft: Sequence[int], logits: Logits) -> SampledSpan:
        """Sample after the span's last token, and after each correct draft token.

        Every token is drawn as without a draft. So a draft token x is accepted with the target's own p(x),
        and its replacement is distributed as p without x (rejection sampling).
        """
        samples: list[step.Sample] = []
        output: list[int] = []
        while len(output) <= len(draft) and output == list(draft[: len(output)]):
            try:
                with contained():
                    sample = self.sample(logits[len(output)])
            except RequestFailed as error:
                return SampledSpan(tuple(samples), len(output), error)
            samples.append(sample)
            output += (sample.token, *sample.forced)
        self.tokens += output
        return SampledSpan(tuple(samples), step.num_right(draft, output))

    def sample(self, logits: Logits) -> step.Sample:
        """Return the next token and the forced ones behind it. Raises `ConstraintFailed`.

        If log-probabilities are wanted, forced tokens come one at a time.
        """
        if self.constrained is None:
            token = self._sampler.choose(logits)
            self._sampler.accept(token)
            return step.Sample(token, self._score(logits, token))
        output = self._followed(self.constrained)
        token = output.take_one_forced() if output.is_forced else self._choose(logits, output)
        self._sampler.accept(token)
        if self.verb.top_logprobs is not None:
            return step.Sample(token, self._score(logits, token))
        forced = output.take_forced()
        for follower in forced:
            self._sampler.accept(follower)
        return step.Sample(token, forced=forced)

    def score(self, targets: Sequence[int], logits: Logits) -> tuple[step.TokenLogprob, ...]:
        """Score the targets. Raises `RequestFailed`."""
        num_top = self.verb.top_logprobs or 0
        with contained():
            return tuple(
                self._sampler.score(row, target, num_top) for row, target in zip(logits, targets, strict=True)
            )

    def close(self) -> None:
        self._sampler.close()

    def _followed(self, constrained: Future[ConstrainedOutput]) -> ConstrainedOutput:
        if self.slow_mask is not None:
            self.slow_mask.result()
            self.slow_mask = None
        return constrained.result()

    def _choose(self, logits: Logits, output: ConstrainedOutput) -> int:
        allowed = output.allowed()
        token = self._sampler.choose(logits, allowed)
        while not output.takes(token):
            allowed = np.ones(len(logits), np.bool_) if allowed is None else allowed
            allowed[token] = False
            if not allowed.any():
                raise ConstraintFailed(NO_OTHER_ITEM)
            token = self._sampler.choose(logits, allowed)
        output.accept(token)
        return token

    def _score(self, logits: Logits, token: int) -> step.TokenLogprob | None:
        num_top, also = self.verb.top_logprobs, self.verb.sampling.scored
        return None if num_top is None else self._sampler.score(logits, token, num_top, also)


@dataclass(eq=False)
class CellCopies:
    """Copies go through an otherwise empty scratch slot. Methods raise `DecodeFailed`.

    It holds cells or a state, because llama.cpp writes both together. Restoring takes as many free cells,
    rounded up to whole parts.
    """

    context: Context
    store: BlockStore
    opened: Mapping[int, OpenSlot]
    _: KW_ONLY
    window: int
    """Tokens, as of `Model`."""
    scratch: int
    empty: int
    _sizes: dict[int, int] = field(default_factory=dict)
    """Bytes by number of cells."""

    def save(self, slot: int, start: int, end: int) -> SavedCells:
        if self.context.copies_whole:  # they are in the state
            return SavedCells(self.store.allocate(0), ())
        parts = self._parts(start, end)
        is_even = self.opened[slot].is_even
        sizes = tuple(self._size(slot, first, last, is_even=is_even) for first, last in parts)
        cells = SavedCells(self.store.allocate(sum(sizes)), sizes)
        for index, (first, last) in enumerate(parts):
            self._take(slot, first, last)
            self.context.save(self.scratch, cells.part(index), SlotContent.CELLS)
            self.context.free_slot(self.scratch)
        return cells

    def save_state(self, slot: int) -> SavedCells:
        """Save from the slot itself, which alone knows its current snapshot.

        A slot without snapshots may have cells of windows, which must not be saved with the state.
        """
        if self.context.copies_whole:
            return self._saved(slot, SlotContent.CELLS)
        source = slot if self.context.snapshots else self.scratch
        self.context.share_state(slot, self.scratch)
        state = self._saved(source, SlotContent.STATE)
        self.context.free_slot(self.scratch)
        return state

    def restore_state(self, state: SavedCells, slot: int) -> None:
        if self.context.copies_whole:
            self.context.restore(slot, state.data, SlotContent.CELLS)
            return
        self.context.restore(self.scratch, state.data, SlotContent.STATE)
        self.context.share_state(self.scratch, slot)
        self.context.free_slot(self.scratch)

    def restore(self, cells: SavedCells, slot: int, start: int, end: int) -> None:
        """Restore a block's first cells behind a slot without a state there."""
        if self.context.copies_whole:
            return
        parts, position = self._parts(start, end), self.opened[slot].position
        assert len(parts) <= len(cells.sizes), f"{end - start} cells of a block that has fewer"
        for index, (first, last) in enumerate(parts):
            self.context.restore(self.scratch, cells.part(index), SlotContent.CELLS)
            self.context.share(self.scratch, slot, position(first), position(last))
            self.context.free_slot(self.scratch)

    def _saved(self, slot: int, content: SlotContent) -> SavedCells:
        size = self.context.saved_bytes(slot, content)
        state = SavedCells(self.store.allocate(size), (size,))
        self.context.save(slot, state.data, content)
        return state

    def _size(self, slot: int, start: int, end: int, *, is_even: bool) -> int:
        if is_even and end - start in self._sizes:
            return self._sizes[end - start]
        self._take(slot, start, end)
        size = self.context.saved_bytes(self.scratch, SlotContent.CELLS)
        self.context.free_slot(self.scratch)
        if is_even:
            self._sizes[end - start] = size
        return size

    def _take(self, slot: int, start: int, end: int) -> None:
        position = self.opened[slot].position
        self.context.share(slot, self.scratch, position(start), position(end))
        self.context.share_state(self.empty, self.scratch)

    def _parts(self, start: int, end: int) -> list[tuple[int, int]]:
        """Parts of at most a ledger block bound the temporary cells, because llama.cpp reads a part whole or
        not at all.

        It leaves out what a window hides from the end of a part.
        """
        part = gcd(step.POOL_BLOCK_TOKENS, self.window)
        return [(first, min(first + part, end)) for first in range(start, end, part)]


class SlotTable:
    """Owner of the saved blocks and the open slots. Not thread-safe."""

    def __init__(self, loaded: LoadedParts, constraints: Constraints) -> None:
        self._info = loaded.info
        self._fingerprint = loaded.fingerprint
        self._on_disk: frozenset[tuple[int, int | None]] = frozenset()
        """Blocks and their states in the cache file."""
        self._context = loaded.context
        self._draft_model = loaded.draft_model
        self._constraints = constraints
        self._store = BlockStore()
        self._open_slots: dict[int, OpenSlot] = {}
        self._copies = CellCopies(
            self._context,
            self._store,
            self._open_slots,
            window=loaded.model.window,
            scratch=loaded.sequences.scratch_slot,
            empty=loaded.sequences.padding_slot,
        )
        self._piece = partial(loaded.vocabulary.piece, special=True)
        self._scratch = Scratch(loaded.info.vocab_size)
        self._row_store = loaded.row_store

    def unready(self) -> frozenset[int]:
        opened = self._open_slots.items()
        return frozenset(
            number for number, slot in opened if slot.slow_mask is not None and not slot.slow_mask.done()
        )

    def __getitem__(self, slot: int) -> OpenSlot:
        return self._open_slots[slot]

    def is_behind(self, slot: int) -> bool:
        return slot in self._open_slots and self._open_slots[slot].is_behind

    def placed(self, span: step.Span) -> step.Span:
        opened = self._open_slots[span.slot]
        return replace(span, start=opened.position(span.start)) if opened.media else span

    def rows(self, span: step.Span) -> PlacedRows:
        assert self._row_store is not None, "the model takes text only"
        opened = self._open_slots[span.slot]
        at = opened.placeholder_at(span.start)
        placeholder, rows = opened.media[at], self._row_store.get(opened.rows_keys[at])
        assert rows is not None, "the rows are not encoded"
        first = span.start - placeholder.start
        part = slice(first, first + len(span.tokens))
        return PlacedRows(
            span.slot,
            rows.values[part],
            rows.places[:, part] + opened.position(placeholder.start),
            is_whole=placeholder.rows.is_whole,
        )

    def encode(self, encode: step.Encode) -> bool:
        """Return True if the encoding is done. Raises `EncodingFailed`."""
        assert self._row_store is not None, "the model takes text only"
        opened = self._open_slots[encode.slot]
        part = opened.media[encode.placeholder].part
        item, seconds = opened.verb.media_items[opened.media[encode.placeholder].item], encode.ms / 1000
        return self._row_store.encode(item, part, seconds, wanted=self._wanted_rows)

    @property
    def _wanted_rows(self) -> set[RowsKey]:
        return {key for opened in self._open_slots.values() for key in opened.rows_keys}

    def apply(self, verbs: Sequence[step.Verb]) -> float:
        """Return the milliseconds."""
        if not verbs:
            return 0.0
        started = time.perf_counter()
        for verb in verbs:
            self._execute(verb)
        return 1000 * (time.perf_counter() - started)

    def save_to(
        self, path: str, blocks: Sequence[step.SavedBlock], limit: step.CacheFileLimit | None = None
    ) -> None:
        """Skip a file that has just these blocks. Raises OSError and leaves the file unchanged."""
        if not blocks:
            Path(path).unlink(missing_ok=True)
        elif self._on_disk == _ids(blocks) and Path(path).exists():
            os.utime(path)  # it was of use
        else:
            saved = self._store.get
            stored = (
                StoredBlock(block, saved(block.number), None if block.state is None else saved(block.state))
                for block in blocks
            )
            num_written = write_cache_file(Path(path), self._fingerprint, stored, limit)
            logger.info("the prefix cache is kept: %d of %d blocks", num_written, len(blocks))

    def load_from(self, path: str) -> tuple[step.SavedBlock, ...]:
        """Load blocks into an empty cache. An unusable file is logged and ignored."""
        try:
            stored, num_damaged = read_cache_file(Path(path), self._fingerprint)
        except FileNotFoundError:
            return ()
        except (OSError, BadCacheFile) as error:
            logger.warning("The prefix cache %s is ignored: %s.", path, error)
            return ()
        blocks = tuple(one.block for one in stored)
        if num_damaged:
            logger.warning("%d blocks of the prefix cache %s are damaged and left out.", num_damaged, path)
        self._on_disk = frozenset() if num_damaged else _ids(blocks)
        for block, cells, state in stored:
            self._store.put(block.number, cells)
            if block.state is not None and state is not None:
                self._store.put(block.state, state)
        return blocks

    def close(self) -> None:
        while self._open_slots:
            self._open_slots.popitem()[1].close()
        self._store.close()
        if self._row_store is not None:
            self._row_store.close()

    def _execute(self, verb: step.Verb) -> None:
        match verb:
            case step.Open():
                self._open(verb)
            case step.Close():
                self._close(verb)
            case step.ShareCells():
                self._share(verb)
            case step.Save(slot, start, end, block):
                self._require(slot, end, exactly=False)
                self._store.put(block, self._copies.save(slot, start, end))
            case step.Restore(block, slot, start, end):
                self._restore(slot, start, end, block)
            case step.SaveState(slot, end, state):
                self._require(slot, end)
                self._store.put(state, self._copies.save_state(slot))
            case step.RestoreState(state, slot, end):
                self._copies.restore_state(self._store.get(state), slot)
                self._require(slot, end)
            case step.Drop(block):
                self._store.drop(block)

    def _open(self, verb: step.Open) -> None:
        info = self._info
        assert 0 <= verb.slot < info.max_seqs, f"slot {verb.slot} does not exist"
        assert verb.slot not in self._open_slots, f"slot {verb.slot} is open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        # Rows of pictures are not tokens: none of them repeats or is repeated.
        texts = tuple(token for token in verb.prompt if not is_row(token)) if verb.media else verb.prompt
        sampler = Sampler(
            replace(verb, prompt=texts),
            self._scratch,
            vocab_size=info.vocab_size,
            end_tokens=info.end_tokens,
            piece=self._piece,
        )
        constrained = None
        if verb.constraint is not None:
            constrained = self._constraints.start_beside(verb.constraint, verb.output)
        self._open_slots[verb.slot] = OpenSlot(verb, sampler, constrained)

    def _close(self, verb: step.Close) -> None:
        self._context.free_slot(verb.slot)
        self._open_slots.pop(verb.slot).close()
        if self._row_store is not None:
            self._row_store.give_up(unless=self._wanted_rows)
        self._draft_model.forget(verb.slot)

    def _share(self, verb: step.ShareCells) -> None:
        self._require(verb.source, verb.end, exactly=False)
        assert verb.slot in self._open_slots, f"slot {verb.slot} is not open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        source = self._open_slots[verb.source]
        end = source.position(verb.end)
        if not self._context.copies_whole or self._context.num_positions(verb.source) == end:
            self._context.share(verb.source, verb.slot, 0, end)
            self._draft_model.share(verb.source, verb.slot, end)

    def _restore(self, slot: int, start: int, end: int, block: int) -> None:
        if not self._info.state_bytes:  # else its positions are known only with its state
            self._require(slot, start)
        self._copies.restore(self._store.get(block), slot, start, end)
        if not self._info.state_bytes:
            self._require(slot, end)

    def _require(self, slot: int, end: int, *, exactly: bool = True) -> None:
        assert slot in self._open_slots, f"slot {slot} is not open"
        held = self._context.num_positions(slot)
        wanted = self._open_slots[slot].held_at(end)
        is_right = held == wanted if exactly else held >= wanted
        assert is_right, f"slot {slot} holds {held} positions, not {wanted}"


def _ids(blocks: Sequence[step.SavedBlock]) -> frozenset[tuple[int, int | None]]:
    return frozenset((block.number, block.state) for block in blocks)
