"""Block counts of the ledger; matching, storage and eviction in the prefix cache's index."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openai_cpu_server.contract.replica import BLOCK_TOKENS as B
from openai_cpu_server.contract.step import SavedBlock
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import PrefixMatch, SavedPrefixes


def ledger_of(*tokens: int) -> KVLedger:
    """Return a ledger of four blocks of 16 tokens, whose slots hold these numbers of tokens."""
    ledger = KVLedger(num_blocks=4, block_size=16)
    for slot, count in enumerate(tokens):
        ledger.grow(slot, count)
    return ledger


def test_blocks_are_taken_whole_and_growing_to_less_changes_nothing() -> None:
    ledger = ledger_of(1)
    assert (ledger.num_free, ledger.num_used) == (3, 1)
    for count, num_used in ((16, 1), (17, 2), (40, 3), (3, 3)):
        ledger.grow(0, count)
        assert ledger.num_used == num_used


def test_room_counts_own_and_free_blocks_and_freeing_gives_everything_back_once() -> None:
    ledger = ledger_of(16, 16)
    assert (ledger.room(0), ledger.room(2)) == (48, 32)
    for slot in (0, 0, 1):
        ledger.free(slot)
    assert ledger.num_free == 4


def test_a_bug_of_the_caller_raises() -> None:
    for wrong, message in (
        (lambda: ledger_of().grow(0, 65), "needs 5 blocks"),
        (lambda: ledger_of(1).check({}), "not running"),
        (lambda: ledger_of(1).check({0: 17}), "too little"),
        (lambda: ledger_of(16, 16).share(0, 1, 16), "already"),
    ):
        with pytest.raises(AssertionError, match=message):
            wrong()


def test_shared_blocks_are_counted_once_and_freed_by_the_last() -> None:
    ledger = ledger_of(20)
    ledger.share(0, 1, 15)
    assert ledger.num_shared == 0, "a partial block is not shared"
    ledger = KVLedger(num_blocks=8)
    ledger.grow(0, 40)
    ledger.share(0, 1, 40)
    ledger.grow(1, 41)
    assert (ledger.num_used, ledger.num_shared) == (4, 2)
    ledger.free(0)
    ledger.check({1: 41})
    assert (ledger.num_used, ledger.num_shared) == (3, 0)
    ledger.free(1)
    assert ledger.num_free == 8


def text(*blocks: int, extra: int = 0) -> tuple[int, ...]:
    """Return whole blocks, each of one repeated token, and then `extra` tokens 9."""
    return tuple(token for token in blocks for _ in range(B)) + (9,) * extra


def cache_of(capacity: int, *texts: tuple[int, ...]) -> SavedPrefixes:
    cache = SavedPrefixes(capacity)
    for each in texts:
        cache.insert(each, "")
    return cache


def found(cache: SavedPrefixes, tokens: tuple[int, ...], namespace: str = "") -> int:
    return cache.match(tokens, namespace, len(tokens)).num_tokens


def test_a_text_is_kept_to_its_last_token() -> None:
    cache = SavedPrefixes(4)
    assert cache.insert(text(1, 2, extra=10), "").saved == ((0, 0, B), (1, B, 2 * B), (2, 2 * B, 2 * B + 10))
    assert cache.match(text(1, 2, 3), "", 3 * B).blocks == (0, 1)
    assert found(cache, text(1, 2, extra=40)) == 2 * B + 10
    assert len(cache) == 3


def test_a_longer_last_block_takes_the_place_of_the_one_that_it_begins_with() -> None:
    cache = cache_of(9, text(1, extra=10))
    assert cache.insert(text(1, extra=5), "").saved == (), "the longer one begins with it"
    grown = cache.insert(text(1, extra=30), "")
    assert (grown.saved, grown.dropped) == (((2, B, B + 30),), (1,))
    assert cache.insert(text(1)[:20], "").saved == ()
    whole = cache.insert(text(1, 9), "")
    assert (whole.saved, whole.dropped) == (((3, B, 2 * B),), (2,))
    assert (cache.totals.cache_evictions, len(cache)) == (0, 2)
    cache.check()


def test_a_last_block_that_differs_from_another_or_is_pinned_stays_beside_it() -> None:
    cache = cache_of(9, (1,) * 20 + (2,))
    assert cache.insert((1,) * 20 + (3,), "").dropped == ()
    assert found(cache, (1,) * 20 + (2,)) == found(cache, (1,) * 20 + (3,)) == 21
    cache = SavedPrefixes(9)
    cache.insert(text(1, extra=10), "", pin=True)
    assert cache.insert(text(1, extra=30), "").dropped == ()
    assert len(cache.clear()) == 1
    assert found(cache, text(1, extra=30)) == B + 10


def test_a_block_matches_in_part_to_the_token_the_longest_among_several_up_to_the_limit() -> None:
    cache = cache_of(4, text(1, 2))
    tokens = text(1) + (2,) * 17 + (5,) * 40
    assert cache.match(tokens, "", len(tokens)) == PrefixMatch((0,), 1, 17)
    assert cache.match(text(1, 2), "", 2 * B - 1) == PrefixMatch((0,), 1, B - 1)
    several = cache_of(9, *((1,) * n + (2,) * (B - n) for n in (10, 20, 30)))
    assert found(several, (1,) * 25 + (7,) * 50) == 25
    assert found(several, (1,) * 20 + (3,) * 50) == 20


def test_the_least_recently_used_leaf_and_the_end_of_a_chain_are_evicted_first() -> None:
    cache = cache_of(3, text(1, 2), text(3))
    cache.use(text(1, 2), "")
    assert cache.insert(text(4), "").dropped == (2,)
    assert found(cache, text(1, 2)) == 2 * B
    chain = cache_of(3, text(1, 2, 3))
    assert chain.insert(text(4), "").dropped == (2,)
    assert found(chain, text(1, 2, 3)) == 2 * B


def test_pinned_blocks_stay() -> None:
    cache = SavedPrefixes(2)
    cache.insert(text(1), "", pin=True)
    for n in range(5, 9):
        cache.insert(text(n), "")
    assert found(cache, text(1)) == B
    assert (len(cache.clear()), len(cache)) == (1, 1)


def test_exported_blocks_are_adopted_as_far_as_they_fit() -> None:
    cache = SavedPrefixes(9)
    cache.insert(text(1, 2, extra=7), "a")
    cache.insert(text(1, 5), "b")
    for capacity, num_adopted in ((9, 5), (2, 2), (0, 0)):
        other = SavedPrefixes(capacity)
        refused = other.adopt(cache.export())
        other.check()
        assert (len(other), len(refused)) == (num_adopted, 5 - num_adopted)
    whole = SavedPrefixes(9)
    whole.adopt(cache.export())
    assert found(whole, text(1, 2, extra=7), "a") == 2 * B + 7
    assert whole.insert(text(7), "a").saved[0][0] == 5


def test_a_block_that_does_not_follow_whole_blocks_is_not_adopted() -> None:
    whole, part, behind = text(1), text(2)[:10], text(3)
    blocks = [SavedBlock(0, None, "", whole), SavedBlock(1, 0, "", part), SavedBlock(2, 1, "", behind)]
    cache = SavedPrefixes(9)
    wrong = [SavedBlock(3, None, "", text(1, 2)), SavedBlock(4, None, "x", ())]
    assert cache.adopt([*blocks, *wrong]) == (2, 3, 4)
    cache.check()
    assert found(cache, whole + part) == B + 10


STATE_BYTES = 100
INSERTS = st.tuples(
    st.lists(st.integers(0, 2), max_size=5), st.integers(0, 130), st.sampled_from("ab"), st.booleans()
)


@given(st.lists(INSERTS, max_size=25), st.integers(0, 12), st.booleans())
def test_the_cache_agrees_with_its_saved_and_dropped_blocks(
    inserts: list[tuple[list[int], int, str, bool]], capacity: int, is_stateful: bool
) -> None:
    cache = SavedPrefixes(capacity)
    if is_stateful:
        cache = SavedPrefixes(capacity * STATE_BYTES, state_bytes=STATE_BYTES, block_bytes=5)
    states: dict[int, tuple[str, tuple[int, ...]]] = {}
    blocks: dict[int, tuple[str, tuple[int, ...]]] = {}
    for parts, extra, namespace, pin in inserts:
        tokens = text(*parts, extra=extra)
        insertion = cache.insert(tokens, namespace, pin=pin and is_stateful and capacity > 4)
        for number, start, end in insertion.saved:
            assert start % B == 0
            blocks[number] = (namespace, tokens[:end])
        if insertion.state is not None:
            states[insertion.state] = (namespace, tokens)
        for number in insertion.dropped:
            del (blocks if number in blocks else states)[number]
        cache.check()
        assert (len(cache), cache.totals.cache_states) == (len(blocks), len(states))
        match = cache.match(tokens, namespace, len(tokens))
        prefix_lengths = [len(t) for n, t in states.values() if n == namespace and t == tokens[: len(t)]]
        if is_stateful:
            assert match.num_tokens == max(prefix_lengths, default=0)
        else:
            assert len(blocks) <= capacity
            assert match.num_tokens == len(tokens) or len(blocks) == capacity
        if match.state is not None:
            assert states[match.state] == (namespace, tokens[: match.num_tokens])
        for i, number in enumerate(match.blocks):
            assert blocks[number] == (namespace, tokens[: (i + 1) * B])
        if match.tail is not None:
            assert blocks[match.tail][0] == namespace
            assert blocks[match.tail][1][: match.num_tokens] == tokens[: match.num_tokens]
