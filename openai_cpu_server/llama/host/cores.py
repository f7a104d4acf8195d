"""Keeps the threads of a computation on cores of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psutil


class Cores:
    """Binds the computing threads to cores, if there are as many threads as cores.

    The threads meet after each of some hundred operations of a step, and spin until the last has come. On a
    busy machine Linux puts two of them on one core for seconds: then each meeting takes a time slice
    (measured: steps of 10 ms took 630). Fewer threads than cores are left to the kernel, which finds free
    ones.

    One object serves all contexts that one thread computes with, because llama.cpp's threads do.
    """

    def __init__(self, num_threads: int) -> None:
        """`num_threads` counts the computing threads, the caller's included."""
        self._all = _usable()
        self._num_threads = num_threads
        self._is_settled = len(self._all) != num_threads or num_threads < 2
        self._own: int | None = None
        """The core of the calling thread, if each thread has one."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Wrap this around each computation. The first one starts the other threads.

        The caller is bound only inside, so that threads which it starts in between inherit nothing.
        """
        if not self._is_settled:
            yield from self._first()
        elif self._own is None:
            yield
        else:
            with _bound(self._own, self._all):
                yield

    def _first(self) -> Iterator[None]:
        before = _native_threads()
        yield
        self._is_settled = True
        workers = sorted(_native_threads() - before)
        if len(workers) == self._num_threads - 1:
            own, *others = self._all
            placed = [_bind(thread, [core]) for thread, core in zip(workers, others, strict=True)]
            self._own = own if all(placed) else None


def _usable() -> list[int]:
    """The cores that may be used; empty where threads cannot be bound."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def _native_threads() -> set[int]:
    """The ids of this process's threads that Python did not start."""
    every = {thread.id for thread in psutil.Process().threads()}
    return every - {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


@contextmanager
def _bound(core: int, cores: Collection[int]) -> Iterator[None]:
    """Bind the calling thread to one core inside the block, and to all of them again after it."""
    _bind(0, [core])
    try:
        yield
    finally:
        _bind(0, cores)


def _bind(thread: int, cores: Collection[int]) -> bool:
    """Bind a thread; False if the thread or a core is gone."""
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True
