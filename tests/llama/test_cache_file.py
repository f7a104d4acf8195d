"""Files of the prefix cache: export, import, damage, other models; and the memory of saved blocks."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from openai_cpu_server.contract.step import CacheFileLimit, Drop, Restore, Save, SavedBlock
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.cells.block_store import BlockStore, SavedCells
from tests.llama.driver import TEXT, Logprobs, execute, loaded, logprobs, prefill
from tests.llama.odd_models import rewritten

BLOCKS = (
    SavedBlock(number=4, parent=None, namespace="", tokens=TEXT[:64]),
    SavedBlock(number=17, parent=4, namespace="", tokens=TEXT[64:128]),
    SavedBlock(number=5, parent=None, namespace="key", tokens=TEXT[:64]),
)
KV_TYPES = ["f16", "f32", "bf16", "q8_0"]


@pytest.fixture(scope="module")
def writer(tiny: Path) -> Iterator[LlamaBackend]:
    with loaded(tiny) as backend:
        yield backend


@pytest.fixture
def path(writer: LlamaBackend, tmp_path: Path) -> Path:
    path = tmp_path / "prefixes.kv"
    export(writer, path)
    return path


def export(backend: LlamaBackend, path: Path) -> Logprobs:
    with prefill(backend, 0, TEXT[:64], TEXT[64:128]):
        execute(backend, Save(0, 0, 64, 4), Save(0, 64, 128, 17), Save(0, 0, 64, 5))
        expected = logprobs(backend, 0, 128, TEXT[128:129])
    backend.export_cache(str(path), BLOCKS)
    execute(backend, Drop(4), Drop(17), Drop(5))
    return expected


def restored_logprobs(backend: LlamaBackend) -> Logprobs:
    with prefill(backend, 3):
        execute(backend, Restore(4, 3, 0, 64), Restore(17, 3, 64, 128))
        return logprobs(backend, 3, 128, TEXT[128:129])


WarningOf = Callable[..., str]


@pytest.fixture
def refusal(writer: LlamaBackend, caplog: pytest.LogCaptureFixture) -> WarningOf:
    def refusal(path: Path, backend: LlamaBackend = writer) -> str:
        caplog.set_level(logging.INFO)
        assert backend.import_cache(str(path)) == ()
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        (line,) = record.getMessage().splitlines()
        return line

    return refusal


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_later_process_restores_identical_cells(tiny: Path, tmp_path: Path, kv_type: str) -> None:
    path, later = tmp_path / "prefixes.kv", functools.partial(loaded, tiny, kv_type=kv_type)
    with later() as backend:
        expected = export(backend, path)
    with later() as backend:
        assert backend.import_cache(str(path)) == BLOCKS
        assert restored_logprobs(backend) == expected
        execute(backend, Drop(5))
        backend.export_cache(str(path), BLOCKS[:2])  # over the file that is mapped
        assert restored_logprobs(backend) == expected
        execute(backend, Drop(4), Drop(17))
    with later() as backend:
        assert backend.import_cache(str(path)) == BLOCKS[:2]
        assert restored_logprobs(backend) == expected


def test_new_blocks_are_saved_beside_imported_ones_of_a_link(tiny: Path, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.gguf"
    link.symlink_to(tiny)
    with loaded(link) as backend:
        assert backend.import_cache(str(path)) == BLOCKS, "the link leads to the same model"
        with prefill(backend, 0, TEXT[:16]):
            execute(backend, Save(0, 0, 16, block=18))
        more = SavedBlock(18, None, "short", TEXT[:16])
        backend.export_cache(str(path), (*BLOCKS, more))
    with loaded(tiny) as backend:
        assert backend.import_cache(str(path)) == (*BLOCKS, more)


def test_an_empty_cache(writer: LlamaBackend, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    writer.export_cache(str(path), ())
    assert writer.import_cache(str(path)) == ()
    path.unlink(missing_ok=True)
    assert writer.import_cache(str(path)) == ()
    assert caplog.records == []


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "it is empty"),
        (b"OCS-KV\r\n", "it is not a cache file"),
        (b"GGUF" + bytes(100), "it is not a cache file"),
        (b"OCS-KV\n" + bytes(100), "it is not a cache file"),
        (b"OCS-KV\r\n\x01\0\0\0" + bytes(100), "it is of format 1, not 2"),
        (b"OCS-KV\r\n\x02\0\0\0" + bytes(100), "it has 112 bytes instead of 0"),
        (b"OCS-KV\r\n\x02\0\0\0" + bytes(20) + b"\x70" + bytes(79), "its index is damaged"),
        (None, "[Errno 21]"),
    ],
)
def test_other_files_are_ignored(
    tmp_path: Path, refusal: WarningOf, content: bytes | None, cause: str
) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "other"
        path.write_bytes(content)
    assert refusal(path).startswith(f"The prefix cache {path} is ignored: {cause}")


def flip_bit(data: bytes, at: int) -> bytes:
    found = bytearray(data)
    found[at] ^= 0x10
    return bytes(found)


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda data, n=n: data[:n] for n in (31, 32, 100, 1000, 5000, 100_000, -4096, -1)),
        *(lambda data, at=at: flip_bit(data, at) for at in (0, 9, 13, 17, 25, 33, -1, -200, -600)),
        lambda data: data + b"more",
    ],
)
def test_a_file_of_another_length_or_with_a_flipped_bit_in_head_or_index_is_ignored(
    path: Path, refusal: WarningOf, damage: Callable[[bytes], bytes]
) -> None:
    path.write_bytes(damage(path.read_bytes()))
    assert "is ignored: it" in refusal(path)


@pytest.mark.parametrize(
    ("damaged_block", "remaining"), [(0, BLOCKS[2:]), (1, (BLOCKS[0], BLOCKS[2])), (2, BLOCKS[:2])]
)
def test_damaged_blocks_are_left_out_with_all_that_continue_them(
    tiny: Path,
    path: Path,
    caplog: pytest.LogCaptureFixture,
    damaged_block: int,
    remaining: tuple[SavedBlock, ...],
) -> None:
    num_pages = path.stat().st_size // 4096
    block_pages = (num_pages - 1) // 3
    at = (num_pages - (3 - damaged_block) * block_pages) * 4096 + 30_000
    path.write_bytes(flip_bit(path.read_bytes(), at))
    with loaded(tiny) as backend:
        assert backend.import_cache(str(path)) == remaining
        with prefill(backend, 0):
            execute(backend, Restore(remaining[0].number, 0, 0, 64))
    message = f"{3 - len(remaining)} blocks of the prefix cache {path} are damaged and left out."
    assert caplog.messages == [message]


@pytest.mark.parametrize(
    "other",
    [*({"kv_type": kv_type} for kv_type in KV_TYPES[1:]), {"flash_attention": False}, {"name": "other"}],
    ids=str,
)
def test_a_file_of_another_model_is_ignored(
    tiny: Path, tmp_path: Path, path: Path, refusal: WarningOf, other: dict[str, object]
) -> None:
    options, model = dict(other), tiny
    if name := options.pop("name", None):
        model = rewritten(tiny, tmp_path / "other.gguf", {"general.name": name})
    with loaded(model, **options) as backend:
        assert "it is of another model, KV type or version of llama.cpp" in refusal(path, backend)


def test_a_failed_export_leaves_everything_as_it_was(writer: LlamaBackend, tmp_path: Path) -> None:
    with prefill(writer, 0, TEXT[:64], TEXT[64:128]):
        execute(writer, Save(0, 0, 64, 4), Save(0, 64, 128, 17), Save(0, 0, 64, 5))
    with pytest.raises(FileNotFoundError):
        writer.export_cache(str(tmp_path / "absent" / "prefixes.kv"), BLOCKS)
    occupied = tmp_path / "occupied"
    occupied.mkdir()
    with pytest.raises(IsADirectoryError):
        writer.export_cache(str(occupied), BLOCKS)
    execute(writer, Drop(4), Drop(17), Drop(5))
    assert [entry.name for entry in tmp_path.iterdir()] == ["occupied"]


def test_a_limited_file_has_the_first_blocks(tiny: Path, path: Path, tmp_path: Path) -> None:
    with loaded(tiny) as backend:
        backend.import_cache(str(path))
        inode, small_path = path.stat().st_ino, tmp_path / "small"
        backend.export_cache(str(path), BLOCKS)
        assert path.stat().st_ino == inode, "an unchanged file is not written again"
        backend.export_cache(str(small_path), BLOCKS, CacheFileLimit(path.stat().st_size * 3 // 4, 60))
        backend.export_cache(str(tmp_path / "late"), BLOCKS[:1], CacheFileLimit(2**30, 0))
        backend.export_cache(str(path), ())
    assert not path.exists(), "the export of an empty cache removes the file"
    with loaded(tiny) as backend:
        assert backend.import_cache(str(tmp_path / "late")) == ()
        assert backend.import_cache(str(small_path)) == BLOCKS[:2]


MEGABYTE = 2**20


def allocate_cells(store: BlockStore, *sizes: int) -> SavedCells:
    return SavedCells(store.allocate(sum(sizes)), sizes)


def test_blocks_are_stored_by_number() -> None:
    store = BlockStore()
    store.put(3, first := allocate_cells(store, 10, 20))
    store.put(9, second := allocate_cells(store, 5))
    assert store.get(3) is first
    store.drop(3)
    assert store.get(9) is second
    with pytest.raises(AssertionError, match="block 3 is not saved"):
        store.get(3)
    with pytest.raises(AssertionError, match="saved already"):
        store.put(9, second)
    store.close()
    assert store.spare_bytes == 0
    with pytest.raises(AssertionError, match="block 9 is not saved"):
        store.get(9)


def test_parts_are_contiguous_and_mapped_memory_is_not_reused() -> None:
    cells = SavedCells(np.arange(6, dtype=np.uint8), (1, 3, 2))
    assert [cells.part(index).tolist() for index in range(3)] == [[0], [1, 2, 3], [4, 5]]
    store = BlockStore()
    store.put(1, SavedCells(np.frombuffer(b"mapped", np.uint8), (6,)))
    store.drop(1)
    assert store.spare_bytes == 0


def put_and_drop(store: BlockStore, *sizes: int) -> set[int]:
    for number, size in enumerate(sizes):
        store.put(number, allocate_cells(store, size))
        store.get(number).data[0] = 1
    memory = {store.get(number).data.ctypes.data for number in range(len(sizes))}
    for number in range(len(sizes)):
        store.drop(number)
    return memory


def test_memory_of_dropped_whole_blocks_is_used_for_the_next() -> None:
    store = BlockStore()
    memory = put_and_drop(store, *[MEGABYTE] * 3)
    assert store.spare_bytes == 3 * MEGABYTE
    partial_block = store.allocate(MEGABYTE - 1)
    assert partial_block.ctypes.data not in memory
    assert {data.ctypes.data for data in [store.allocate(MEGABYTE) for _ in range(3)]} == memory
    assert store.spare_bytes == 0


def test_only_some_memory_is_kept_for_the_next() -> None:
    """The rest goes back to the system, which gives it out again with zeros."""
    store = BlockStore()
    memory = put_and_drop(store, *[MEGABYTE] * 100)
    assert store.spare_bytes == 64 * MEGABYTE
    again = [store.allocate(MEGABYTE) for _ in range(100)]
    assert {data.ctypes.data for data in again} == memory
    assert store.spare_bytes == 0
    assert not any(data.any() for data in again[64:])


@pytest.mark.parametrize("num_bytes", [1, 4097, 70_000, MEGABYTE, 3 * MEGABYTE + 5])
def test_blocks_of_one_mapping_do_not_overlap(num_bytes: int) -> None:
    store = BlockStore()
    blocks = [store.allocate(num_bytes) for _ in range(9)]
    for number, block in enumerate(blocks):
        block[:] = number
    assert [(len(block), *np.unique(block)) for block in blocks] == [(num_bytes, n) for n in range(9)]


def test_spare_memory_of_the_size_requested_longest_ago_is_freed_first() -> None:
    store = BlockStore()
    put_and_drop(store, *(MEGABYTE - number for number in range(10)))
    memory = put_and_drop(store, *[MEGABYTE] * 60)
    assert 63 * MEGABYTE < store.spare_bytes <= 64 * MEGABYTE
    assert {store.allocate(MEGABYTE).ctypes.data for _ in range(60)} <= memory
