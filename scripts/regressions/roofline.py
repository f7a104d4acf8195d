"""Bytes and products of a model's steps, and the machine's speed at both."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openai_cpu_server.kernels.library import library_path
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell

_PASSES = 9
"""The best of these counts, because other work on the machine only makes one slower."""
_ROUNDS = 3_000_000
"""Some 20 ms."""
_BUFFER_BYTES = 1 << 30


@dataclass(frozen=True)
class Peaks:
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


@dataclass(frozen=True)
class ModelWork:
    """Work of a model of the llama family, or one with states besides, from the file's header. Routers of
    experts are assumed to choose evenly, and windows to reach over all cells."""

    body_bytes: int
    body_weights: int
    output_bytes: int
    output_weights: int
    cell_bytes: int
    products_per_pair: int
    """Multiply-adds of attention for a token and a cell that it attends to."""
    expert_bytes: int = 0
    expert_weights: int = 0
    used_share: float = 1.0
    state_bytes: int = 0
    """State of a sequence, which each step reads and writes."""

    @classmethod
    def of(cls, model: Path, kv_type: str, state_bytes: int = 0) -> ModelWork:
        header = GgufHeader(model)
        matrices = {each.name: each for each in model_tensors(header) if len(each.shape) > 1}
        embedding = matrices.pop("token_embd.weight")
        output = matrices.pop("output.weight", embedding)
        experts = [matrices.pop(name) for name in list(matrices) if "_exps." in name]
        return cls(
            body_bytes=sum(each.num_bytes for each in matrices.values()),
            body_weights=sum(each.num_values for each in matrices.values()),
            output_bytes=output.num_bytes,
            output_weights=output.num_values,
            cell_bytes=bytes_per_cell(header, KVType.named(kv_type)),
            products_per_pair=_products_per_pair(header),
            expert_bytes=sum(each.num_bytes for each in experts),
            expert_weights=sum(each.num_values for each in experts),
            used_share=_used_share(header),
            state_bytes=state_bytes,
        )

    def step(self, sizes: Mapping[int, int], held: Mapping[int, int]) -> Work:
        """Return the work of a step that adds `sizes[slot]` tokens to `held[slot]`, and samples one each."""
        tokens = sum(sizes.values())
        cells = sum(held.get(slot, 0) + size for slot, size in sizes.items())
        pairs = sum(size * held.get(slot, 0) + size * (size + 1) // 2 for slot, size in sizes.items())
        touched_share = 1 - (1 - self.used_share) ** tokens
        weights = self.body_weights + self.expert_weights * self.used_share
        return Work(
            read_bytes=self.body_bytes
            + self.expert_bytes * touched_share
            + self.output_bytes
            + cells * self.cell_bytes
            + 2 * len(sizes) * self.state_bytes,
            int8_products=tokens * weights + len(sizes) * self.output_weights,
            float_products=pairs * self.products_per_pair,
        )


def _products_per_pair(header: GgufHeader) -> int:
    key = header.for_architecture
    layers = header.get_int(key("block_count")) or 0
    heads = header.get_ints(key("attention.head_count"), layers) or [0] * layers
    default = (header.get_int(key("embedding_length")) or 0) // max(1, *heads)
    width = header.get_int(key("attention.key_length")) or default
    return sum(heads) * (width + (header.get_int(key("attention.value_length")) or default))


def _used_share(header: GgufHeader) -> float:
    key = header.for_architecture
    used, count = header.get_int(key("expert_used_count")), header.get_int(key("expert_count"))
    return used / count if used and count else 1.0


def measured_peaks(threads: int) -> Peaks:
    """Measure for some seconds; nothing else should run."""
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
    """The best rate of all threads together; the slowest thread's time counts."""
    return max(_pass(work, threads) for _ in range(_PASSES))


def _pass(work: Callable[[int], float], threads: int) -> float:
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
