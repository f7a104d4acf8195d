"""Who owns saved bytes, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest

from openai_cpu_server.llama.cells.block_store import BlockStore, SavedCells

MEGABYTE = 2**20


def saved(store: BlockStore, *sizes: int) -> SavedCells:
    return SavedCells(store.allocate(sum(sizes)), sizes)


def test_blocks_are_known_by_number() -> None:
    store = BlockStore()
    store.put(3, first := saved(store, 10, 20))
    store.put(9, second := saved(store, 5))
    assert store.get(3) is first
    store.drop(3)
    assert store.get(9) is second
    with pytest.raises(AssertionError, match="no block 3"):
        store.get(3)
    with pytest.raises(AssertionError, match="saved already"):
        store.put(9, second)
    store.close()
    assert store.spare_bytes == 0
    with pytest.raises(AssertionError, match="no block 9"):
        store.get(9)


def test_parts_lie_behind_each_other_and_what_is_not_ours_is_not_used_again() -> None:
    cells = SavedCells(np.arange(6, dtype=np.uint8), (1, 3, 2))
    assert [cells.part(index).tolist() for index in range(3)] == [[0], [1, 2, 3], [4, 5]]
    store = BlockStore()
    store.put(1, SavedCells(np.frombuffer(b"mapped", np.uint8), (6,)))
    store.drop(1)
    assert store.spare_bytes == 0


def put_and_drop(store: BlockStore, *sizes: int) -> set[int]:
    """Addresses of the blocks' memory."""
    for number, size in enumerate(sizes):
        store.put(number, saved(store, size))
    memory = {store.get(number).data.ctypes.data for number in range(len(sizes))}
    for number in range(len(sizes)):
        store.drop(number)
    return memory


def test_memory_of_dropped_whole_blocks_is_used_for_the_next() -> None:
    store = BlockStore()
    memory = put_and_drop(store, *[MEGABYTE] * 3)
    assert store.spare_bytes == 3 * MEGABYTE
    last_of_a_text = store.allocate(MEGABYTE - 1)
    assert last_of_a_text.ctypes.data not in memory
    assert {data.ctypes.data for data in [store.allocate(MEGABYTE) for _ in range(3)]} == memory
    assert store.spare_bytes == 0


def test_only_some_memory_is_kept_for_the_next() -> None:
    store = BlockStore()
    put_and_drop(store, *[MEGABYTE] * 100)
    assert store.spare_bytes == 64 * MEGABYTE
    assert len(store.allocate(MEGABYTE)) == MEGABYTE
    assert store.spare_bytes == 63 * MEGABYTE


def test_the_size_that_was_asked_for_longest_ago_makes_room() -> None:
    store = BlockStore()
    put_and_drop(store, *(MEGABYTE - number for number in range(10)))
    kept = put_and_drop(store, *[MEGABYTE] * 60)
    assert 63 * MEGABYTE < store.spare_bytes <= 64 * MEGABYTE
    assert {store.allocate(MEGABYTE).ctypes.data for _ in range(60)} <= kept
