"""Accounting of slots, KV pool and prefix cache, with the verbs for the backend."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from itertools import chain

from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.step import (
    Close,
    Drop,
    Open,
    Restore,
    RestoreState,
    Save,
    SaveState,
    ShareCells,
    Verb,
)
from openai_cpu_server.scheduler.prefix_cache import PrefixMatch, SavedPrefixes, common_prefix
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence


class KVLedger:
    """Blocks of the pool by slot, with the number of slots that share each. Slots hold whole blocks, so a
    step that fits the ledger fits the pool."""

    def __init__(self, num_blocks: int, block_size: int = 16) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = list(range(num_blocks))
        self._num_holders = [0] * num_blocks
        self._held: dict[int, list[int]] = {}
        self.num_shared = 0

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_held(self, slot: int) -> int:
        return len(self._held.get(slot, ()))

    def num_exclusive(self, slot: int) -> int:
        return sum(self._num_holders[block] == 1 for block in self._held.get(slot, ()))

    def runs(self, slot: int, tile_blocks: int) -> tuple[tuple[int, int], ...]:
        """Return ascending runs of tiles in which the slot holds blocks: (first, length)."""
        found: list[tuple[int, int]] = []
        for tile in sorted({block // tile_blocks for block in self._held.get(slot, ())}):
            if found and tile == sum(found[-1]):
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((tile, 1))
        return tuple(found)

    def room(self, slot: int) -> int:
        """Tokens that the slot could hold with every free block."""
        return (self.num_held(slot) + self.num_free) * self.block_size

    def grow(self, slot: int, num_tokens: int) -> None:
        held = self._held.setdefault(slot, [])
        missing = self.blocks_for(num_tokens) - len(held)
        assert missing <= self.num_free, f"slot {slot} needs {missing} blocks, {self.num_free} are free"
        for _ in range(missing):
            block = self._free.pop()
            self._num_holders[block] = 1
            held.append(block)

    def shrink(self, slot: int, num_tokens: int) -> None:
        """Blocks that the slot returns must not be shared."""
        held = self._held[slot]
        while len(held) > self.blocks_for(num_tokens):
            block = held.pop()
            assert self._num_holders[block] == 1, f"slot {slot} gives up a block that others hold"
            self._num_holders[block] = 0
            self._free.append(block)

    def share(self, source: int, slot: int, num_tokens: int) -> None:
        assert not self._held.get(slot), f"slot {slot} holds blocks already"
        shared = self._held[source][: num_tokens // self.block_size]
        for block in shared:
            self.num_shared += self._num_holders[block] == 1
            self._num_holders[block] += 1
        self._held[slot] = list(shared)

    def free(self, slot: int) -> None:
        for block in self._held.pop(slot, ()):
            self._num_holders[block] -= 1
            self.num_shared -= self._num_holders[block] == 1
            if self._num_holders[block] == 0:
                self._free.append(block)

    def check(self, computed: dict[int, int]) -> None:
        assert all(len(set(blocks)) == len(blocks) for blocks in self._held.values()), (
            "a block twice in one slot"
        )
        holders, free = Counter(chain.from_iterable(self._held.values())), set(self._free)
        assert all(self._num_holders[block] == number for block, number in holders.items())
        assert self._num_holders.count(0) == len(free) == len(self._free)
        assert len(holders) + len(free) == self.num_blocks
        assert holders.keys().isdisjoint(free)
        assert self.num_shared == sum(number > 1 for number in holders.values())
        assert set(self._held) <= set(computed), f"blocks of slots not running: {self._held.keys()}"
        for slot, num_tokens in computed.items():
            assert self.num_held(slot) >= self.blocks_for(num_tokens), f"slot {slot} holds too little"


_INTERVALS = range(256, 2049)
"""Bounds of the distance between saved states. Less than 256 tokens is at most a second of computing; more
than 2,048 makes requests wait."""
_COPYING_SHARE = 0.02
"""Maximum share of a prompt's prefill time for copies of its states."""


class Checkpoints:
    def __init__(self, *, saves_states: bool) -> None:
        self._saves_states = saves_states
        self._interval = _INTERVALS.start

    def advise(self, state_tokens: int, state_in_tokens: float) -> None:
        """Set the interval. `state_tokens`: tokens whose cells are as large as a state; `state_in_tokens`:
        tokens computed while one is copied."""
        wanted = max(state_tokens, state_in_tokens / _COPYING_SHARE)
        self._interval = min(max(round(wanted), _INTERVALS.start), _INTERVALS.stop - 1)

    def of(self, sequence: Sequence, reuse: PrefixReuse) -> list[int]:
        """Return the checkpoints: at prefix boundaries, branches, and multiples of the interval. Without
        boundaries one is before the last prompt token, because the same prompt may return."""
        if not self._saves_states:
            return []
        begin, end, step = reuse.num_tokens, len(sequence.tokens), self._interval
        boundaries = sequence.request.boundaries or (len(sequence.request.tokens) - 1,)
        cuts = sorted({sequence.cut(cut) for cut in (reuse.parts_at, *boundaries)})
        found: list[int] = []
        for cut in cuts:
            if cut - (found[-1] if found else begin) >= CHECKPOINT_DISTANCE and cut < end:
                found.append(cut)
        for multiple in range(begin - begin % step + step, end, step):
            at = sequence.cut(multiple)
            if all(abs(at - other) >= CHECKPOINT_DISTANCE for other in (begin, *found, end)):
                found.append(at)
        return sorted(found)


HEADROOM_TOKENS = 32
"""Output tokens reserved for each sequence against an early preemption. 0 to 128 are equal with room in the
pool (`scripts/regress.py streams memory.HEADROOM_TOKENS`)."""


class SequenceMemory:
    """Assignment of sequences to slots, and ownership of KV cells:

        slot s of a running sequence: positions 0 .. computed-1, in ledger blocks that s holds (or shares)
        saved blocks                : host memory, known by number to the cache
        everything else in the pool : free

    The accounts change at once. The backend executes the verbs, in order, at the start of the next step.
    """

    def __init__(self, *, num_slots: int, ledger: KVLedger, cache: SavedPrefixes) -> None:
        self.ledger = ledger
        self.cache = cache
        self.running: dict[int, Sequence] = {}
        self.checkpoints = Checkpoints(
            saves_states=cache.has_states and cache.totals.cache_capacity_bytes > 0
        )
        self._num_slots = num_slots
        self._free_slots = list(reversed(range(num_slots)))
        self._verbs: list[Verb] = []
        self._prompt_tokens = 0
        self._cached_tokens = 0

    @property
    def has_verbs(self) -> bool:
        return bool(self._verbs)

    def take_verbs(self) -> tuple[Verb, ...]:
        verbs, self._verbs = tuple(self._verbs), []
        return verbs

    def has_place(self, newcomer: Sequence, reuse: PrefixReuse, *, without: Iterable[Sequence] = ()) -> bool:
        leavers = {sequence.slot: sequence for sequence in without}
        stayers = [s for slot, s in self.running.items() if slot not in leavers]
        if not stayers:
            return True  # it fits alone: `submit` has seen to that
        freed = sum(self.ledger.num_exclusive(slot) for slot in leavers)
        growth = sum(max(0, self._foreseen(s) - self.ledger.num_held(s.slot)) for s in stayers)
        shared = 0 if reuse.source in leavers.values() else reuse.shared // self.ledger.block_size
        need = self._foreseen(newcomer) - shared
        return len(stayers) < self._num_slots and growth + need <= self.ledger.num_free + freed

    def place(self, sequence: Sequence, reuse: PrefixReuse) -> None:
        slot = self._free_slots.pop()
        sequence.run(slot, reuse.num_tokens, self.checkpoints.of(sequence, reuse))
        self.running[slot] = sequence
        request = sequence.request
        self._verbs.append(
            Open(
                slot=slot,
                sampling=request.sampling,
                prompt=request.tokens,
                output=sequence.output,
                media_items=request.media_items,
                media=request.media,
                top_logprobs=request.top_logprobs,
                constraint=request.constraint,
            )
        )
        self._verbs += reuse.verbs(slot)
        if reuse.source is not None:
            self.ledger.share(reuse.source.slot, slot, reuse.shared)
        self.ledger.grow(slot, reuse.num_tokens)
        self.cache.use(sequence.tokens[: reuse.num_tokens], sequence.request.cells_namespace)
        if sequence.cached_tokens is None:  # only the first run of a request counts
            sequence.cached_tokens = min(reuse.num_tokens, len(request.tokens))
            self._prompt_tokens += len(request.tokens)
            self._cached_tokens += sequence.cached_tokens

    def save_at_checkpoint(self, sequence: Sequence) -> None:
        while sequence.checkpoints and sequence.checkpoints[0] <= sequence.computed:
            if sequence.checkpoints.pop(0) == sequence.computed:
                self._save(sequence)

    def vacate(self, sequence: Sequence) -> None:
        """Save the computed prefix, then free slot and cells."""
        slot = sequence.slot
        self._save(sequence)
        self._verbs.append(Close(slot))
        self.ledger.free(slot)
        self._free_slots.append(slot)
        del self.running[slot]

    def clear_cache(self) -> None:
        self._verbs += [Drop(number) for number in self.cache.clear()]

    def stats(self) -> KVStats:
        return KVStats(
            block_tokens=self.ledger.block_size,
            pool_blocks=self.ledger.num_blocks,
            pool_blocks_used=self.ledger.num_used,
            pool_blocks_shared=self.ledger.num_shared,
            cache_block_tokens=BLOCK_TOKENS,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            **self.cache.totals._asdict(),
        )

    def check(self) -> None:
        assert len(self._free_slots) + len(self.running) == self._num_slots
        assert not set(self._free_slots) & set(self.running)
        for slot, sequence in self.running.items():
            assert sequence.slot == slot
            assert 0 <= sequence.computed <= len(sequence.tokens)
        self.ledger.check({slot: s.computed for slot, s in self.running.items()})
        self.cache.check()

    def _foreseen(self, sequence: Sequence) -> int:
        headroom = min(max(sequence.remaining, 0), HEADROOM_TOKENS)
        return self.ledger.blocks_for(len(sequence.tokens) + headroom)

    def _save(self, sequence: Sequence) -> None:
        request = sequence.request
        insertion = self.cache.insert(
            sequence.tokens[: sequence.computed], request.cells_namespace, pin=request.pin
        )
        self._verbs += [Drop(number) for number in insertion.dropped]
        self._verbs += [Save(sequence.slot, start, end, number) for number, start, end in insertion.saved]
        if insertion.state is not None:
            self._verbs.append(SaveState(sequence.slot, sequence.computed, insertion.state))


CHECKPOINT_DISTANCE = BLOCK_TOKENS
"""Minimum tokens between checkpoints, because each adds a step and delays the first token."""
WORTH_WAITING = BLOCK_TOKENS
"""Minimum common prefix for which a request waits while another one computes it."""


@dataclass(frozen=True)
class PrefixReuse:
    source: Sequence | None = None
    shared: int = 0
    restored: tuple[tuple[int, int, int], ...] = ()
    """(block, start, end): saved blocks, or their first parts, for the positions behind the shared ones."""
    state: int | None = None
    """Saved state at their end. None: `source` shares its own, or there is none."""
    parts_at: int = 0
    """Position at which the tokens branch off from all computed or pending prefixes."""

    @property
    def num_tokens(self) -> int:
        return self.restored[-1][2] if self.restored else self.shared

    def verbs(self, slot: int) -> list[Verb]:
        share: list[Verb] = [] if self.source is None else [ShareCells(self.source.slot, slot, self.shared)]
        cells = [Restore(block, slot, start, end) for block, start, end in self.restored]
        state = [] if self.state is None else [RestoreState(self.state, slot, self.num_tokens)]
        return [*share, *cells, *state]


NO_REUSE = PrefixReuse()


def find_reuse(
    newcomer: Sequence, running: Iterable[Sequence], cache: SavedPrefixes, policy: PriorityPolicy
) -> PrefixReuse | None:
    """Return the longest reusable prefix, or None if the new sequence should wait."""
    running, limit = list(running), newcomer.reusable
    while True:
        reuse = _longest_reuse(newcomer, running, cache, policy, limit)
        if reuse is None or (cut := newcomer.cut(reuse.num_tokens)) == reuse.num_tokens:
            return reuse
        limit = cut


def _longest_reuse(
    newcomer: Sequence, running: Seq[Sequence], cache: SavedPrefixes, policy: PriorityPolicy, limit: int
) -> PrefixReuse | None:
    """The sequence waits while another of the same or a better lane computes a longer common prefix. With
    states, that one gets a checkpoint there."""
    kin = [(s, common) for s in running if (common := _common(newcomer, s, limit)) > 0]
    match = cache.match(newcomer.tokens, newcomer.request.cells_namespace, limit)
    live = [(s, _ready(s, common, has_states=cache.has_states)) for s, common in kin]
    joined = max(live, key=lambda pair: pair[1], default=None)
    now = max(joined[1] if joined else 0, match.num_tokens)
    lane = policy.lane(newcomer)
    later = [(s, common) for s, common in kin if policy.lane(s) <= lane and s.computed < common]
    soon = max((common for _, common in later), default=0)
    if soon > now and soon >= WORTH_WAITING:
        if cache.has_states:
            next(s for s, common in later if common == soon).add_checkpoint(soon, apart=CHECKPOINT_DISTANCE)
        return None
    parts_at = max([match.longest, *(common for _, common in kin)])
    if joined is not None and 0 < joined[1] == now:
        return PrefixReuse(joined[0], now, parts_at=parts_at)
    # Cells may come from one that has gone on since the state that the cache has was saved.
    source = max(kin, key=lambda pair: min(pair[1], pair[0].computed), default=None)
    shared = min(source[1], source[0].computed, now) if source else 0
    if source and shared == now > 0:
        return PrefixReuse(source[0], shared, state=match.state, parts_at=parts_at)
    whole = shared // BLOCK_TOKENS * BLOCK_TOKENS
    return PrefixReuse(
        source[0] if source and whole else None,
        whole,
        _pieces(match, whole // BLOCK_TOKENS),
        match.state,
        parts_at,
    )


def _ready(source: Sequence, common: int, *, has_states: bool) -> int:
    """A sequence can begin only behind all computed tokens if it has a state."""
    if has_states:
        return source.computed if source.computed <= common else 0
    return min(source.computed, common)


def _pieces(match: PrefixMatch, skip: int) -> tuple[tuple[int, int, int], ...]:
    starts = range(skip * BLOCK_TOKENS, len(match.blocks) * BLOCK_TOKENS, BLOCK_TOKENS)
    pieces = [(match.blocks[start // BLOCK_TOKENS], start, start + BLOCK_TOKENS) for start in starts]
    if match.tail is not None:
        start = len(match.blocks) * BLOCK_TOKENS
        pieces.append((match.tail, start, start + match.tail_tokens))
    return tuple(pieces)


def _common(newcomer: Sequence, other: Sequence, limit: int) -> int:
    if newcomer.request.cells_namespace != other.request.cells_namespace:
        return 0
    lengths = newcomer.shared_prefixes
    if other.arrival not in lengths:
        lengths[other.arrival] = common_prefix(newcomer.tokens, other.request.tokens)
    return min(lengths[other.arrival], limit)
