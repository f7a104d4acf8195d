"""Search for the source of a new sequence's first KV cells: a running sequence, or the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.step import Restore, RestoreState, ShareCells, Verb
from openai_cpu_server.scheduler.prefix_cache import PrefixMatch, SavedPrefixes, common_prefix
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence

CHECKPOINT_DISTANCE = BLOCK_TOKENS
"""Minimum tokens between two checkpoints, because each adds a step and delays the first token."""
WORTH_WAITING = BLOCK_TOKENS
"""Minimum length of a common prefix for which a request waits while another one computes it."""


@dataclass(frozen=True)
class PrefixReuse:
    source: Sequence | None = None
    shared: int = 0
    """Number of tokens whose cells `source` shares."""
    restored: tuple[tuple[int, int, int], ...] = ()
    """(block, start, end): saved blocks, or their first parts, for the positions behind the shared ones."""
    state: int | None = None
    """Saved state at their end, or None if there is none or `source` shares its own."""
    parts_at: int = 0
    """Position at which the tokens branch off from all prefixes that are computed or will be."""

    @property
    def num_tokens(self) -> int:
        return self.restored[-1][2] if self.restored else self.shared

    def verbs(self, slot: int) -> list[Verb]:
        share: list[Verb] = [] if self.source is None else [ShareCells(self.source.slot, slot, self.shared)]
        cells = [Restore(block, slot, start, end) for block, start, end in self.restored]
        state = [] if self.state is None else [RestoreState(self.state, slot, self.num_tokens)]
        return [*share, *cells, *state]


NOTHING = PrefixReuse()


def find_reuse(
    newcomer: Sequence, running: Iterable[Sequence], cache: SavedPrefixes, policy: PriorityPolicy
) -> PrefixReuse | None:
    """Return the longest prefix that can be reused now, or None if the new sequence should wait."""
    running, limit = list(running), newcomer.reusable
    while True:
        reuse = _longest_reuse(newcomer, running, cache, policy, limit)
        if reuse is None or (cut := newcomer.cut(reuse.num_tokens)) == reuse.num_tokens:
            return reuse
        limit = cut


def _longest_reuse(
    newcomer: Sequence,
    running: Seq[Sequence],
    cache: SavedPrefixes,
    policy: PriorityPolicy,
    limit: int,
) -> PrefixReuse | None:
    """The sequence waits while a running sequence of the same or a better lane computes a longer common
    prefix of at least `WORTH_WAITING` tokens. With states, that sequence gets a checkpoint there or
    shortly before."""
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
    """With states a sequence can begin only behind all computed tokens."""
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
