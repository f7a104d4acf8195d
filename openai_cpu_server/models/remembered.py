"""Results that are worth keeping, as long as they take no more memory than they may."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

V = TypeVar("V")

_ENTRY_BYTES = 500
"""What an entry takes beside its value: its key, a digest mostly, and its place in the table."""


class _Entry(NamedTuple, Generic[V]):
    value: V
    num_bytes: int


class Remembered(Generic[V]):
    """The least recently used is forgotten first. Any thread may use it."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry[V]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.value

    def put(self, key: Hashable, value: V, num_bytes: int) -> None:
        """`num_bytes`: what the value takes. One that is too large alone is not kept."""
        entry = _Entry(value, num_bytes + _ENTRY_BYTES)
        with self._lock:
            self._remove(key)
            if entry.num_bytes > self._max_bytes:
                return
            self._entries[key] = entry
            self._num_bytes += entry.num_bytes
            while self._num_bytes > self._max_bytes:
                self._remove(next(iter(self._entries)))

    def _remove(self, key: Hashable) -> None:
        if (entry := self._entries.pop(key, None)) is not None:
            self._num_bytes -= entry.num_bytes
