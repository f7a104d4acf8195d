"""The slots of requests, their cells and the saved blocks: what a step's verbs change before it computes."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path

from openai_cpu_server.contract.step import Close, Drop, Open, Restore, Save, SavedBlock, Share, Verb
from openai_cpu_server.llama.cells.block_store import BlockStore
from openai_cpu_server.llama.cells.cache_file import BadCacheFile, read_cache_file, write_cache_file
from openai_cpu_server.llama.cells.cell_copies import CellCopies
from openai_cpu_server.llama.grammar.constraints import Constraints
from openai_cpu_server.llama.loading import Loaded
from openai_cpu_server.llama.sampling.sampler import Sampler
from openai_cpu_server.llama.sampling.slot import OpenSlot
from openai_cpu_server.llama.sampling.truncation import Candidates

logger = logging.getLogger(__name__)


class SlotTable:
    """Owns the saved blocks and what the open slots sample with. Not thread-safe."""

    def __init__(self, loaded: Loaded, constraints: Constraints) -> None:
        self._info = loaded.info
        self._fingerprint = loaded.fingerprint
        self._context = loaded.context
        self._draft_model = loaded.draft_model
        self._constraints = constraints
        self._store = BlockStore()
        self._copies = CellCopies(self._context, self._store, scratch_slot=loaded.set_aside.scratch)
        self._candidates = Candidates(loaded.info.vocab_size)
        self._open_slots: dict[int, OpenSlot] = {}

    def __getitem__(self, slot: int) -> OpenSlot:
        """One that is open."""
        return self._open_slots[slot]

    def apply(self, verbs: Sequence[Verb]) -> float:
        """Do the verbs in order; returns the milliseconds that they took."""
        if not verbs:
            return 0.0
        started = time.perf_counter()
        for verb in verbs:
            self._do(verb)
        return 1000 * (time.perf_counter() - started)

    def save_to(self, path: str, blocks: Sequence[SavedBlock]) -> None:
        """Write these blocks to a file. Raises OSError; then the file is as it was before."""
        saved = [(block, self._store.get(block.number)) for block in blocks]
        write_cache_file(Path(path), self._fingerprint, saved)

    def load_from(self, path: str) -> tuple[SavedBlock, ...]:
        """Load saved blocks into an empty cache, under the numbers that they had. Their bytes stay in the
        mapped file.

        Damaged blocks are left out, with what continues them; a file of no use is logged and ignored.
        """
        try:
            file = read_cache_file(Path(path), self._fingerprint)
        except FileNotFoundError:
            return ()
        except (OSError, BadCacheFile) as error:
            logger.warning("The prefix cache %s is ignored: %s.", path, error)
            return ()
        if file.num_damaged:
            logger.warning(
                "%d blocks of the prefix cache %s are damaged and left out.", file.num_damaged, path
            )
        for block, cells in file.blocks:
            self._store.put(block.number, cells)
        return tuple(block for block, _ in file.blocks)

    def close(self) -> None:
        while self._open_slots:
            self._open_slots.popitem()[1].close()
        self._store.close()

    def _do(self, verb: Verb) -> None:
        match verb:
            case Open():
                self._open(verb)
            case Close():
                self._close(verb)
            case Share():
                self._share(verb)
            case Save(slot, start, end, block):
                self._require_held(slot, end)
                self._store.put(block, self._copies.save(slot, start, end))
            case Restore(block, slot, start, end):
                self._require_held(slot, start)
                assert self._context.num_positions(slot) == start, f"slot {slot} holds more than {start}"
                self._copies.restore(self._store.get(block), slot, start, end)
            case Drop(block):
                self._store.drop(block)

    def _open(self, verb: Open) -> None:
        info = self._info
        assert 0 <= verb.slot < info.max_seqs, f"there is no slot {verb.slot}"
        assert verb.slot not in self._open_slots, f"slot {verb.slot} is open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        sampler = Sampler(verb, self._candidates, vocab_size=info.vocab_size, end_tokens=info.end_tokens)
        constrained = None
        if verb.constraint is not None:
            constrained = self._constraints.start_beside(verb.constraint, verb.output)
        self._open_slots[verb.slot] = OpenSlot(verb, sampler, constrained)

    def _close(self, verb: Close) -> None:
        self._context.free_slot(verb.slot)
        self._open_slots.pop(verb.slot).close()
        if self._draft_model is not None:
            self._draft_model.forget(verb.slot)

    def _share(self, verb: Share) -> None:
        self._require_held(verb.source, verb.end)
        assert verb.slot in self._open_slots, f"slot {verb.slot} is not open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        self._context.share(verb.source, verb.slot, 0, verb.end)

    def _require_held(self, slot: int, end: int) -> None:
        assert self._info.can_share, "this model's memory cannot share, save and restore"
        assert slot in self._open_slots, f"slot {slot} is not open"
        held = self._context.num_positions(slot)
        assert held >= end, f"slot {slot} holds {held} tokens, not {end}"
