"""Finds where the first KV cells of a newcomer can come from: a running sequence, or the prefix cache."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from openai_cpu_server.contract.replica import BLOCK_TOKENS
from openai_cpu_server.contract.step import Restore, ShareCells, Verb
from openai_cpu_server.scheduler.prefix_cache import PrefixMatch, SavedPrefixes, common_prefix
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence

WORTH_WAITING = BLOCK_TOKENS
"""A request waits for another that is computing a common prefix of so many tokens."""


@dataclass(frozen=True)
class PrefixReuse:
    """How a newcomer gets the cells of its first `num_tokens` tokens."""

    source: Sequence | None = None
    shared: int = 0
    """How many tokens' cells `source` shares."""
    restored: tuple[tuple[int, int, int], ...] = ()
    """(block, start, end): saved blocks, or their first parts, for the positions behind what is shared."""

    @property
    def num_tokens(self) -> int:
        return self.restored[-1][2] if self.restored else self.shared

    def verbs(self, slot: int) -> list[Verb]:
        share: list[Verb] = [] if self.source is None else [ShareCells(self.source.slot, slot, self.shared)]
        return share + [Restore(block, slot, start, end) for block, start, end in self.restored]


NOTHING = PrefixReuse()


def find_reuse(
    newcomer: Sequence, running: Iterable[Sequence], cache: SavedPrefixes, policy: PriorityPolicy
) -> PrefixReuse | None:
    """The longest prefix that can be reused now; None if the newcomer should wait.

    It waits where a running sequence of no worse lane is computing a longer common prefix, of at least
    `WORTH_WAITING` tokens.
    """
    limit = newcomer.reusable
    kin = [(s, common) for s in running if (common := _common(newcomer, s, limit)) > 0]
    match = cache.match(newcomer.tokens, newcomer.request.cells_namespace, limit)
    source = max(kin, key=lambda pair: min(pair[1], pair[0].computed), default=None)
    shared = min(source[1], source[0].computed) if source else 0
    now = max(shared, match.num_tokens)
    lane = policy.lane(newcomer)
    soon = max((common for s, common in kin if policy.lane(s) <= lane and s.computed < common), default=0)
    if soon > now and soon >= WORTH_WAITING:
        return None
    if source is None or shared == 0:
        return PrefixReuse(restored=_pieces(match, 0))
    if match.num_tokens <= shared:
        return PrefixReuse(source[0], shared)
    whole = shared // BLOCK_TOKENS * BLOCK_TOKENS
    return PrefixReuse(source[0] if whole else None, whole, _pieces(match, whole // BLOCK_TOKENS))


def _pieces(match: PrefixMatch, skip: int) -> tuple[tuple[int, int, int], ...]:
    """(block, start, end) for each block of the match but the first `skip`: the positions that it fills."""
    starts = range(skip * BLOCK_TOKENS, len(match.blocks) * BLOCK_TOKENS, BLOCK_TOKENS)
    pieces = [(match.blocks[start // BLOCK_TOKENS], start, start + BLOCK_TOKENS) for start in starts]
    if match.tail is not None:
        start = len(match.blocks) * BLOCK_TOKENS
        pieces.append((match.tail, start, start + match.tail_tokens))
    return tuple(pieces)


def _common(newcomer: Sequence, other: Sequence, limit: int) -> int:
    """Length of the prefix that the newcomer's tokens share with the other's prompt, `limit` at most."""
    if newcomer.request.cells_namespace != other.request.cells_namespace:
        return 0
    known = newcomer.shared_prefixes
    if other.arrival not in known:
        known[other.arrival] = common_prefix(newcomer.tokens, other.request.tokens)
    return min(known[other.arrival], limit)
