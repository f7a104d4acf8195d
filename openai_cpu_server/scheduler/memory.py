"""Keeps the books of the slots, the KV pool and the prefix cache, and collects verbs for the backend."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.prefix import BLOCK_TOKENS
from openai_cpu_server.contract.step import Close, Drop, Open, Save, Verb
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.prefix_cache import PrefixCache
from openai_cpu_server.scheduler.reuse import Reuse
from openai_cpu_server.scheduler.sequence import Sequence

HEADROOM_TOKENS = 32
"""Output that admission foresees for each sequence, so that it is not released as soon as it decodes: two
blocks of the pool. `scripts/sensitivity.py memory.HEADROOM_TOKENS`: with room in the pool 0 to 128 are
equal.
"""


class Memory:
    """Places sequences into slots and takes them out again. It knows who owns which cells:

        slot s of a running sequence: positions 0 .. computed-1, in ledger blocks that s holds (or shares)
        saved blocks                : host memory, known by number to the cache
        everything else in the pool : free

    The books change at once. The backend carries out the verbs, in order, at the start of the next step.
    """

    def __init__(self, *, num_slots: int, ledger: KVLedger, cache: PrefixCache) -> None:
        self.ledger = ledger
        self.cache = cache
        self.running: dict[int, Sequence] = {}
        self._num_slots = num_slots
        self._free_slots = list(reversed(range(num_slots)))
        self._verbs: list[Verb] = []
        self._prompt_tokens = 0
        self._cached_tokens = 0

    @property
    def has_verbs(self) -> bool:
        return bool(self._verbs)

    def take_verbs(self) -> tuple[Verb, ...]:
        """The verbs since the last call; the caller puts them into the next step."""
        verbs, self._verbs = tuple(self._verbs), []
        return verbs

    def has_place(self, newcomer: Sequence, reuse: Reuse, *, without: Iterable[Sequence] = ()) -> bool:
        """Whether there are a slot and cells for the newcomer, once the sequences of `without` have left."""
        leavers = {sequence.slot: sequence for sequence in without}
        stayers = [s for slot, s in self.running.items() if slot not in leavers]
        if not stayers:
            return True  # it fits alone: `submit` has seen to that
        freed = sum(self.ledger.num_exclusive(slot) for slot in leavers)
        growth = sum(self._growth(s) for s in stayers)
        shared = 0 if reuse.source in leavers.values() else reuse.shared // self.ledger.block_size
        need = self._foreseen(newcomer) - shared
        return len(stayers) < self._num_slots and growth + need <= self.ledger.num_free + freed

    def place(self, sequence: Sequence, reuse: Reuse) -> None:
        """Give a waiting sequence a slot with the cells that it reuses. The caller has asked `has_place`."""
        slot = self._free_slots.pop()
        sequence.run(slot, reuse.num_tokens)
        self.running[slot] = sequence
        self._verbs.append(_open(sequence))
        self._verbs += reuse.verbs(slot)
        if reuse.source is not None:
            self.ledger.share(reuse.source.slot, slot, reuse.shared)
        self.ledger.grow(slot, reuse.num_tokens)
        self.cache.use(sequence.tokens[: reuse.num_tokens], sequence.request.cells_namespace)
        self._count(sequence, reuse)

    def vacate(self, sequence: Sequence) -> None:
        """Take a running sequence out of its slot: save what it has computed, then free its cells."""
        slot = sequence.slot
        self._save(sequence)
        self._verbs.append(Close(slot))
        self.ledger.free(slot)
        self._free_slots.append(slot)
        del self.running[slot]

    def clear_cache(self) -> None:
        """Drop all saved blocks that are not pinned."""
        self._verbs += [Drop(number) for number in self.cache.clear()]

    def stats(self) -> KVStats:
        return KVStats(
            block_tokens=self.ledger.block_size,
            pool_blocks=self.ledger.num_blocks,
            pool_blocks_used=self.ledger.num_used,
            pool_blocks_shared=self.ledger.num_shared,
            cache_block_tokens=BLOCK_TOKENS,
            cache_capacity_blocks=self.cache.capacity,
            cache_blocks=len(self.cache),
            cache_evictions=self.cache.num_evictions,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
        )

    def check(self) -> None:
        """Assert that slots, ledger and cache agree."""
        assert len(self._free_slots) + len(self.running) == self._num_slots
        assert not set(self._free_slots) & set(self.running)
        for slot, sequence in self.running.items():
            assert sequence.slot == slot
            assert 0 <= sequence.computed <= len(sequence.tokens)
        self.ledger.check({slot: s.computed for slot, s in self.running.items()})
        self.cache.check()

    def _foreseen(self, sequence: Sequence) -> int:
        """How many blocks the sequence needs for its tokens and some output."""
        headroom = min(max(sequence.remaining, 0), HEADROOM_TOKENS)
        return self.ledger.blocks_for(len(sequence.tokens) + headroom)

    def _growth(self, sequence: Sequence) -> int:
        """How many of these blocks a running sequence does not hold yet."""
        return max(0, self._foreseen(sequence) - self.ledger.num_held(sequence.slot))

    def _save(self, sequence: Sequence) -> None:
        """Save the blocks of the sequence's computed tokens that the cache does not have."""
        request = sequence.request
        insertion = self.cache.insert(
            sequence.tokens[: sequence.computed], request.cells_namespace, pin=request.pin
        )
        self._verbs += [Drop(number) for number in insertion.dropped]
        self._verbs += [Save(sequence.slot, start, end, number) for number, start, end in insertion.saved]

    def _count(self, sequence: Sequence, reuse: Reuse) -> None:
        """Count prompt tokens and reused ones, only when a request runs for the first time."""
        if sequence.cached_tokens is None:
            prompt_tokens = len(sequence.request.tokens)
            sequence.cached_tokens = min(reuse.num_tokens, prompt_tokens)
            self._prompt_tokens += prompt_tokens
            self._cached_tokens += sequence.cached_tokens


def _open(sequence: Sequence) -> Open:
    request = sequence.request
    return Open(
        slot=sequence.slot,
        sampling=request.sampling,
        prompt=request.tokens,
        output=sequence.output,
        top_logprobs=request.top_logprobs,
        constraint=request.constraint,
    )
