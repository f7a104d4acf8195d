"""Keeps the threads of a computation on cores of their own."""

from __future__ import annotations

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import psutil


class Cores:
    """Binds the threads that compute, where they are as many as the cores.

    They meet after each of some hundred operations of a step, and spin until the last has come. On a machine
    that is busy with other things, Linux puts two of them on one core, for seconds: then each meeting takes
    a time slice (measured: steps of 10 ms took 630). Fewer threads than cores are left to the kernel, which
    finds free ones.

    One for all contexts that one thread computes with: llama.cpp's threads serve each of them.
    """

    def __init__(self, num_threads: int) -> None:
        """`num_threads`: of the computation, its caller's included."""
        self._all = _usable()
        self._num_threads = num_threads
        self._is_settled = len(self._all) != num_threads or num_threads < 2
        self._own: int | None = None
        """The caller's, if each thread has one."""

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Around each computation. With the first the other threads come into being.

        The caller is bound while it lasts only: threads that it starts in between inherit nothing.
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
    """Empty where threads cannot be bound."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_setaffinity") else []


def _native_threads() -> set[int]:
    """Of this process, not Python's."""
    every = {thread.id for thread in psutil.Process().threads()}
    return every - {thread.native_id for thread in threading.enumerate() if thread.native_id is not None}


@contextmanager
def _bound(core: int, cores: Collection[int]) -> Iterator[None]:
    """The calling thread to one core, then to all of them again."""
    _bind(0, [core])
    try:
        yield
    finally:
        _bind(0, cores)


def _bind(thread: int, cores: Collection[int]) -> bool:
    """False if the thread or a core is gone."""
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return False
    return True
