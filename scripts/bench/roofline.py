"""What the machine allows: the time that reading so many bytes and forming so many products takes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from openai_cpu_server.kernels.library import library_path

_PASSES = 9
"""The best of so many counts: whatever else the machine does only makes one slower."""
_ROUNDS = 3_000_000
"""Some 20 ms."""
_BUFFER_BYTES = 1 << 30
"""Many times a cache."""


@dataclass(frozen=True)
class Peaks:
    """What all threads together reach, each a second."""

    read_bytes: float
    int8_products: float
    float_products: float

    def __str__(self) -> str:
        return (
            f"{self.read_bytes / 1e9:.1f} GB/s read, {self.int8_products / 1e9:.0f} G int8 and "
            f"{self.float_products / 1e9:.0f} G float multiply-adds/s"
        )


@dataclass(frozen=True)
class Work:
    """What steps must read and multiply."""

    read_bytes: float = 0.0
    int8_products: float = 0.0
    float_products: float = 0.0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.read_bytes + other.read_bytes,
            self.int8_products + other.int8_products,
            self.float_products + other.float_products,
        )

    def memory_ms(self, peaks: Peaks) -> float:
        return 1000 * self.read_bytes / peaks.read_bytes

    def compute_ms(self, peaks: Peaks) -> float:
        """Both kinds of products use the same units of the CPU, so their times add up."""
        products = self.int8_products / peaks.int8_products, self.float_products / peaks.float_products
        return 1000 * sum(products)

    def floor_ms(self, peaks: Peaks) -> float:
        return max(self.memory_ms(peaks), self.compute_ms(peaks))

    def is_held_by_memory(self, peaks: Peaks) -> bool:
        return self.memory_ms(peaks) >= self.compute_ms(peaks)


def measured_peaks(threads: int) -> Peaks:
    """Takes some seconds; nothing else should run."""
    library = ctypes.CDLL(str(library_path()))
    for name in ("ocs_multiply_bytes", "ocs_multiply_floats"):
        function = getattr(library, name)
        function.restype, function.argtypes = ctypes.c_long, [ctypes.c_long, ctypes.c_void_p]
    library.ocs_read.restype = None
    library.ocs_read.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_void_p]
    buffer = np.ones(_BUFFER_BYTES // 8, np.int64)
    share = _BUFFER_BYTES // threads // 64 * 64

    def read(thread: int) -> float:
        library.ocs_read(buffer.ctypes.data + thread * share, share, ctypes.byref(ctypes.c_int32()))
        return share

    def multiply_bytes(thread: int) -> float:
        return float(library.ocs_multiply_bytes(_ROUNDS, ctypes.byref(ctypes.c_int32())))

    def multiply_floats(thread: int) -> float:
        return float(library.ocs_multiply_floats(_ROUNDS, ctypes.byref(ctypes.c_float(0.5))))

    rates = [_rate(work, threads) for work in (read, multiply_bytes, multiply_floats)]
    return Peaks(*rates)


def _rate(work: Callable[[int], float], threads: int) -> float:
    """The best rate of all threads together; what the slowest thread takes counts."""
    return max(_pass(work, threads) for _ in range(_PASSES))


def _pass(work: Callable[[int], float], threads: int) -> float:
    """From the first thread's start to the last one's end."""
    done: list[tuple[float, float, float]] = []
    barrier = threading.Barrier(threads)

    def run(thread: int) -> None:
        barrier.wait()
        start = time.perf_counter()
        amount = work(thread)
        done.append((amount, start, time.perf_counter()))

    workers = [threading.Thread(target=run, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    amounts, starts, ends = zip(*done, strict=True)
    return sum(amounts) / (max(ends) - min(starts))
