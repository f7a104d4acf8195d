"""Blocks of the prefix cache, in host memory and in a file."""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import struct
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.step import CacheFileLimit, SavedBlock
from openai_cpu_server.errors import ServerError
from openai_cpu_server.storage.private_files import claim, replacing

Bytes = npt.NDArray[np.uint8]

_SPARE_BYTES = 64 * 2**20
"""Memory of dropped blocks for new ones. Faulting in fresh memory takes six times as long as
copying into it."""

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_PAGE = 4096
_HUGE_PAGE = 2 * 2**20
_SMALL = 32
"""Part of a huge page below which blocks have small pages, because a slab would waste more."""


class _Slab(NamedTuple):
    blocks: list[Bytes]
    pages: mmap.mmap | None
    stride: int

    @classmethod
    def of(cls, num_bytes: int) -> _Slab:
        """Map pages, which return to the system when freed; memory from malloc often does not."""
        stride = -(-num_bytes // _PAGE) * _PAGE
        size = _slab_bytes(stride) if stride >= _HUGE_PAGE // _SMALL else stride
        try:
            pages = mmap.mmap(-1, size, flags=_PRIVATE)
        except OSError:  # the system counts mappings
            return cls([np.empty(num_bytes, np.uint8)], None, stride)
        # Linux aligns only mappings of whole huge pages to huge pages.
        if size % _HUGE_PAGE == 0 and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # the kernel has none
                pages.madvise(mmap.MADV_HUGEPAGE)
        data = np.frombuffer(pages, np.uint8)
        return cls([data[at : at + num_bytes] for at in range(0, size - stride + 1, stride)], pages, stride)


def _slab_bytes(stride: int) -> int:
    """Return the fewest whole huge pages of which blocks leave at most a 32nd, or the least share."""
    least = -(-stride // _HUGE_PAGE)
    sizes = [count * _HUGE_PAGE for count in range(least, 4 * least + 4)]
    return next(
        (size for size in sizes if size % stride <= size // 32), min(sizes, key=lambda n: n % stride / n)
    )


class SavedCells(NamedTuple):
    """Cells in llama.cpp's format, in parts, or a state in one part."""

    data: Bytes
    """Read-only if it is a view of a mapped file."""
    sizes: tuple[int, ...]

    def part(self, index: int) -> Bytes:
        start = sum(self.sizes[:index])
        return self.data[start : start + self.sizes[index]]


class BlockStore:
    def __init__(self) -> None:
        self._blocks: dict[int, SavedCells] = {}
        self._spares: OrderedDict[int, list[Bytes]] = OrderedDict()
        """Freed memory by number of bytes, the most recently requested last."""
        self.spare_bytes = 0
        self._untouched: dict[int, list[Bytes]] = {}
        """Blocks without memory, by number of bytes."""
        self._slabs: dict[int, _Slab] = {}
        """Mapping that each block's address belongs to."""

    def allocate(self, num_bytes: int) -> Bytes:
        if not num_bytes:
            return np.empty(0, np.uint8)
        spares = self._spares.setdefault(num_bytes, [])
        self._spares.move_to_end(num_bytes)
        if spares:
            self.spare_bytes -= num_bytes
            return spares.pop()
        untouched = self._untouched.setdefault(num_bytes, [])
        if not untouched:
            slab = _Slab.of(num_bytes)
            untouched += slab.blocks[::-1]
            if slab.pages is not None:
                self._slabs |= {block.ctypes.data: slab for block in slab.blocks}
        return untouched.pop()

    def put(self, number: int, cells: SavedCells) -> None:
        assert number not in self._blocks, f"block {number} is saved already"
        self._blocks[number] = cells

    def get(self, number: int) -> SavedCells:
        assert number in self._blocks, f"block {number} is not saved"
        return self._blocks[number]

    def drop(self, number: int) -> None:
        """Keep the block's memory for the next one of its size, within a limit."""
        data = self.get(number).data
        del self._blocks[number]
        if not data.flags.writeable:
            return
        self._spares.setdefault(len(data), []).append(data)
        self.spare_bytes += len(data)
        while self.spare_bytes > _SPARE_BYTES:
            size, spares = next(iter(self._spares.items()))
            if spares:
                self._return(spares.pop())
                self.spare_bytes -= size
            else:
                del self._spares[size]

    def _return(self, block: Bytes) -> None:
        slab = self._slabs.get(block.ctypes.data)
        if slab is None or slab.pages is None:
            return
        start = block.ctypes.data - slab.blocks[0].ctypes.data
        slab.pages.madvise(mmap.MADV_DONTNEED, start, slab.stride)
        self._untouched[len(block)].append(block)

    def close(self) -> None:
        self._blocks.clear()
        self._untouched.clear()
        self._slabs.clear()
        self._spares.clear()
        self.spare_bytes = 0


_MAGIC = b"OCS-KV\r\n"
_VERSION = 2
_HEAD = struct.Struct("<8sIIQQQ")
_SEALED_FROM = 16
"""First byte of the head under the checksum."""
_SYNC_BYTES = 64 * 2**20
"""Written bytes between syncs, because else all data would be written when time is up."""
_FREE_SHARE = 0.5
"""Share of the free disk space for a limited file."""


class BadCacheFile(ServerError):
    """The message is the reason in a few words."""


class StoredBlock(NamedTuple):
    block: SavedBlock
    cells: SavedCells
    state: SavedCells | None

    @property
    def parts(self) -> list[SavedCells]:
        return [self.cells] if self.state is None else [self.cells, self.state]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(size for part in self.parts for size in part.sizes)


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    block: SavedBlock
    offset: int
    sizes: tuple[int, ...]
    """Bytes of each part, the state's last."""
    checksum: int


class _Index(msgspec.Struct, frozen=True):
    fingerprint: str
    entries: tuple[_Entry, ...]


def write_cache_file(
    path: Path, fingerprint: str, blocks: Iterable[StoredBlock], limit: CacheFileLimit | None = None
) -> int:
    """Return the number of blocks written, up to the limit. Raises OSError and leaves the old file unchanged.

    The index comes last, so that writing can stop at any block.
    """
    with replacing(path) as file:
        file.write(bytes(_PAGE))
        entries = tuple(_written(file, blocks, limit))
        _seal(file, _Index(fingerprint, entries))
    return len(entries)


def _written(file: BinaryIO, blocks: Iterable[StoredBlock], limit: CacheFileLimit | None) -> Iterator[_Entry]:
    end_s = time.monotonic() + (math.inf if limit is None else limit.seconds)
    most_bytes = math.inf
    if limit is not None:
        disk = os.fstatvfs(file.fileno())
        most_bytes = min(limit.num_bytes, disk.f_bavail * disk.f_frsize * _FREE_SHARE)
    synced = file.tell()
    for stored in blocks:
        offset = file.tell()
        if time.monotonic() >= end_s or offset + sum(stored.sizes) > most_bytes:
            return
        checksum = 0
        for part in stored.parts:
            file.write(part.data.data)
            checksum = zlib.crc32(part.data.data, checksum)
        file.write(bytes(-file.tell() % _PAGE))
        if limit is not None and file.tell() - synced > _SYNC_BYTES:
            file.flush()
            os.fsync(file.fileno())
            synced = file.tell()
        yield _Entry(stored.block, offset, stored.sizes, checksum)


def read_cache_file(path: Path, fingerprint: str) -> tuple[list[StoredBlock], int]:
    """Return views of the mapped file, parents first, and the number of lost blocks. Raises OSError or
    `BadCacheFile`.

    The file must be this user's, because native code trusts the cells.
    """
    with path.open("rb") as file:
        claim(path, file.fileno())
        if os.fstat(file.fileno()).st_size == 0:
            raise BadCacheFile("it is empty")
        # The mapping lives as long as a view of it.
        cells = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        index = _read_index(cells)
    if index.fingerprint != fingerprint:
        raise BadCacheFile("it is of another model, KV type or version of llama.cpp")
    blocks: list[StoredBlock] = []
    sound: set[int | None] = {None}
    for entry in index.entries:
        data = cells[entry.offset : entry.offset + sum(entry.sizes)]
        if entry.block.parent in sound and zlib.crc32(data) == entry.checksum:
            sound.add(entry.block.number)
            blocks.append(_stored(entry, np.frombuffer(data, np.uint8)))
    return blocks, len(index.entries) - len(blocks)


def _seal(file: BinaryIO, index: _Index) -> None:
    body, at = msgspec.msgpack.encode(index), file.tell()
    facts = (at, len(body), at + len(body))
    head = _HEAD.pack(_MAGIC, _VERSION, 0, *facts)
    checksum = zlib.crc32(body, zlib.crc32(head[_SEALED_FROM:]))
    file.write(body)
    file.seek(0)
    file.write(_HEAD.pack(_MAGIC, _VERSION, checksum, *facts))


def _read_index(data: memoryview) -> _Index:
    if len(data) < _HEAD.size or data[: len(_MAGIC)] != _MAGIC:
        raise BadCacheFile("it is not a cache file")
    _, version, checksum, index_at, index_bytes, file_bytes = _HEAD.unpack(data[: _HEAD.size])
    if version != _VERSION:
        raise BadCacheFile(f"it is of format {version}, not {_VERSION}")
    if len(data) != file_bytes:
        raise BadCacheFile(f"it has {len(data)} bytes instead of {file_bytes}")
    index = data[index_at : index_at + index_bytes]
    if zlib.crc32(index, zlib.crc32(data[_SEALED_FROM : _HEAD.size])) != checksum:
        raise BadCacheFile("its index is damaged")
    try:
        return msgspec.msgpack.decode(index, type=_Index)
    except msgspec.DecodeError as error:
        raise BadCacheFile(f"its index is not as expected ({error})") from None


def _stored(entry: _Entry, data: Bytes) -> StoredBlock:
    if entry.block.state is None:
        return StoredBlock(entry.block, SavedCells(data, entry.sizes), None)
    *sizes, of_state = entry.sizes
    end = sum(sizes)
    cells = SavedCells(data[:end], tuple(sizes))
    return StoredBlock(entry.block, cells, SavedCells(data[end:], (of_state,)))
