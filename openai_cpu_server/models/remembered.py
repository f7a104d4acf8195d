"""Results that are worth keeping, as long as they take no more memory than they may."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
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
        self._being_made: dict[Hashable, Future[V]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> V | None:
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry.value

    def get_or_make(self, key: Hashable, make: Callable[[], V], num_bytes: Callable[[V], int]) -> V:
        """While one thread makes it, others wait for that. What `make` raises is raised to them, too."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is not None:
                self._entries.move_to_end(key)
                return entry.value
            others = self._being_made.get(key)
            if others is None:
                mine = self._being_made[key] = Future[V]()
        return self._made(key, mine, make, num_bytes) if others is None else others.result()

    def _made(
        self, key: Hashable, mine: Future[V], make: Callable[[], V], num_bytes: Callable[[V], int]
    ) -> V:
        try:
            value = make()
            self.put(key, value, num_bytes(value))
            mine.set_result(value)
        except BaseException as error:
            mine.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._being_made[key]
        return value

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
