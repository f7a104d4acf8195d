"""The ledger's books."""

from __future__ import annotations

import pytest

from openai_cpu_server.scheduler.memory import KVLedger


def test_blocks_are_taken_whole() -> None:
    ledger = KVLedger(num_blocks=4, block_size=16)
    ledger.grow(0, 1)
    assert (ledger.num_free, ledger.num_used) == (3, 1)
    ledger.grow(0, 16)
    assert ledger.num_free == 3
    ledger.grow(0, 17)
    assert ledger.num_free == 2


def test_growing_to_less_changes_nothing() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 40)
    ledger.grow(0, 3)
    assert ledger.num_used == 3


def test_room_counts_own_and_free_blocks() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 16)
    ledger.grow(1, 16)
    assert ledger.room(0) == 48
    assert ledger.room(2) == 32


def test_freeing_gives_everything_back_once() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(7, 64)
    ledger.free(7)
    ledger.free(7)
    assert ledger.num_free == 4


def test_growing_beyond_the_pool_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="needs 5 blocks"):
        KVLedger(num_blocks=4).grow(0, 65)


def test_the_check_finds_a_holder_that_is_not_running() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 1)
    with pytest.raises(AssertionError, match="not running"):
        ledger.check({})


def test_the_check_finds_tokens_without_cells() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 1)
    with pytest.raises(AssertionError, match="too little"):
        ledger.check({0: 17})


def test_shared_blocks_are_counted_once_and_freed_by_the_last() -> None:
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


def test_a_block_that_is_not_whole_is_not_shared() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 20)
    ledger.share(0, 1, 15)
    assert ledger.num_shared == 0


def test_sharing_into_a_slot_with_blocks_is_our_bug() -> None:
    ledger = KVLedger(num_blocks=4)
    ledger.grow(0, 16)
    ledger.grow(1, 16)
    with pytest.raises(AssertionError, match="already"):
        ledger.share(0, 1, 16)
