"""The ledger's books."""

from __future__ import annotations

import pytest

from openai_cpu_server.scheduler.memory import KVLedger


def holding(*tokens: int) -> KVLedger:
    """Four blocks of 16 tokens, of which the slots hold those for so many tokens."""
    ledger = KVLedger(num_blocks=4, block_size=16)
    for slot, count in enumerate(tokens):
        ledger.grow(slot, count)
    return ledger


def test_blocks_are_taken_whole_and_growing_to_less_changes_nothing() -> None:
    ledger = holding(1)
    assert (ledger.num_free, ledger.num_used) == (3, 1)
    for count, num_used in ((16, 1), (17, 2), (40, 3), (3, 3)):
        ledger.grow(0, count)
        assert ledger.num_used == num_used


def test_room_counts_own_and_free_blocks_and_freeing_gives_everything_back_once() -> None:
    ledger = holding(16, 16)
    assert (ledger.room(0), ledger.room(2)) == (48, 32)
    for slot in (0, 0, 1):
        ledger.free(slot)
    assert ledger.num_free == 4


def test_what_would_be_our_bug_is_found() -> None:
    for wrong, said in (
        (lambda: holding().grow(0, 65), "needs 5 blocks"),
        (lambda: holding(1).check({}), "not running"),
        (lambda: holding(1).check({0: 17}), "too little"),
        (lambda: holding(16, 16).share(0, 1, 16), "already"),
    ):
        with pytest.raises(AssertionError, match=said):
            wrong()


def test_shared_blocks_are_counted_once_and_freed_by_the_last() -> None:
    ledger = holding(20)
    ledger.share(0, 1, 15)
    assert ledger.num_shared == 0, "a block that is not whole is not shared"
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
