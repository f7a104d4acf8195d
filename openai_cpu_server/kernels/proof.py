"""The self-test: a kernel is switched on only after it has shown ggml's own results in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from operator import methodcaller

import msgspec
import numpy as np

from openai_cpu_server.contract.model_info import Kernels, KernelState
from openai_cpu_server.kernels.graphs import (
    PRODUCT_TYPES,
    AttentionCase,
    Computing,
    Floats,
    GgmlGraphs,
    GgmlType,
    ProductCase,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle

_THREADS = (1, 2)
_TOLERANCE = 5e-3
"""Share of a result's largest value by which it may differ: ggml rounds queries, and sums in f16."""

_found: dict[Kernel, KernelState] = {}
"""By this process, for its first model: neither ggml nor the kernels change in it."""

Operation = Callable[[GgmlGraphs], AbstractContextManager[Computing]]
"""What it stores it stores once: quantising takes far longer than computing."""


def kernels_in_use(asked: str, ggml: ctypes.CDLL, pause: Callable[[], None] = lambda: None) -> Kernels:
    """Switch on what is asked for (`auto` or `off`) and proved, for all of this process.

    `ggml` is the library that llama_cpp has loaded. `pause` is called between two small computations.
    """
    why_not = obstacle()
    if why_not is not None:
        return Kernels.off(why_not)
    library = KernelLibrary(ctypes.CDLL(str(library_path())))
    for kernel in Kernel:
        library.switch_off(kernel)
    if asked == "off":
        return Kernels.off("--kernels off")
    for kernel, operations in ((Kernel.ATTENTION, attention_proofs), (Kernel.PRODUCTS, product_proofs)):
        if kernel not in _found:
            _found[kernel] = proved(library, kernel, GgmlGraphs(ggml), operations(), pause)
        elif _found[kernel].is_on:
            library.switch_on(kernel)
    return Kernels(attention=_found[Kernel.ATTENTION], products=_found[Kernel.PRODUCTS])


def attention_proofs() -> Iterator[Operation]:
    """Attentions that reach every path of the kernel: one row that threads share, many; tiles, a ragged
    end, holes, rows that see less than others; wide heads and latent ones; two layers that share a mask."""
    random = np.random.default_rng(0)
    for rows, cells, heads, kv_heads, width, value_width, cell_type in (
        (1, 700, 4, 2, 64, 64, GgmlType.F16),
        (40, 250, 4, 2, 64, 64, GgmlType.F16),
        (5, 96, 4, 2, 64, 64, GgmlType.Q8_0),
        (1, 300, 8, 1, 512, 512, GgmlType.F16),
        (3, 100, 20, 1, 576, 512, GgmlType.F16),
    ):
        q = random.standard_normal((2, rows, heads, width), np.float32)
        k, v = random.standard_normal((2, cells, kv_heads, width), np.float32)
        sees = random.random((rows, cells)) < 0.5
        sees[:, cells // 2 :] &= np.arange(rows)[:, None] % 3 == 0
        is_latent = value_width < width
        layer = AttentionCase(
            q=q[0],
            k=k,
            v=k[:, :, :value_width] if is_latent else v,
            mask=np.where(sees, 0, -np.inf).astype(np.float32),
            cell_type=cell_type,
            values_in_keys=is_latent,
            scale=width**-0.5,
        )
        yield methodcaller("attending", layer, msgspec.structs.replace(layer, q=q[1]))


def product_proofs() -> Iterator[Operation]:
    """Products of every type with one row of activations, and with a full group and a rest."""
    random = np.random.default_rng(0)
    for kind in PRODUCT_TYPES:
        weights = random.standard_normal((100, 512), np.float32)
        for rows in (1, 7):
            activations = random.standard_normal((rows, 512), np.float32)
            case = ProductCase(weights=weights, activations=activations, weight_type=kind)
            yield methodcaller("multiplying", case)


def proved(
    library: KernelLibrary,
    kernel: Kernel,
    graphs: GgmlGraphs,
    operations: Iterator[Operation],
    pause: Callable[[], None] = lambda: None,
) -> KernelState:
    """Leaves the kernel on if all went well, else off."""
    for operation in operations:
        pause()
        with operation(graphs) as compute:
            for threads in _THREADS:
                expected = compute(threads)
                num_done = library.num_done(kernel)
                library.switch_on(kernel)
                found = compute(threads)
                library.switch_off(kernel)
                if library.num_done(kernel) == num_done:
                    return KernelState.off("ggml's calls do not reach it in this process")
                if not _agree(found, expected):
                    return KernelState.off("its results are not ggml's")
    library.switch_on(kernel)
    return KernelState(instruction_set=library.instruction_set)


def _agree(found: Floats, expected: Floats) -> bool:
    return bool(np.max(np.abs(found - expected)) <= _TOLERANCE * np.max(np.abs(expected)))
