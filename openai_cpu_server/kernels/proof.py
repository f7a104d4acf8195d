"""Self-test of kernels against ggml's results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from operator import methodcaller

import msgspec
import numpy as np

from openai_cpu_server.contract.model_info import Kernels, KernelState
from openai_cpu_server.kernels.graphs import (
    PRODUCT_TYPES,
    TILE_TYPES,
    AttentionCase,
    Computing,
    ConvolutionCase,
    DeltaNetCase,
    Floats,
    GgmlGraphs,
    GgmlType,
    ProductCase,
    ScanCase,
    num_weights_of_block,
    random_weights,
)
from openai_cpu_server.kernels.library import Kernel, KernelLibrary, library_path, obstacle

_THREADS = (1, 2)
_TOLERANCE = 5e-3
"""Share of the largest value, because ggml rounds queries and sums in f16."""
_BY_TILES = (Kernel.TILES, Kernel.ATTENTION_TILES, Kernel.RECURRENT_TILES)
_TOLERANCES = dict.fromkeys(_BY_TILES, 2e-2)
"""Tiles round otherwise than ggml: to bf16, or weights to bytes too."""
TILES = "amx"

_found: dict[Kernel, KernelState] = {}
"""Results of the first model, which hold for the process."""

Operation = Callable[[GgmlGraphs], AbstractContextManager[Computing]]
"""Stores its inputs once, because quantizing is slow."""


def kernels_in_use(mode: str, ggml: ctypes.CDLL, pause: Callable[[], None] = lambda: None) -> Kernels:
    """Switch on the requested (`auto`, `invariant`, `fast` or `off`) and proved kernels.

    `pause`: called between small computations.
    """
    why_not = obstacle()
    if why_not is not None:
        return Kernels.off(why_not)
    library = KernelLibrary(ctypes.CDLL(str(library_path())))
    library.reset()
    if mode == "off":
        return Kernels.off("--kernels off")
    states: dict[Kernel, KernelState] = {}
    library.round_attention(mode == "fast" and library.why_no_tiles is not None)
    if why_not := "--kernels invariant" if mode == "invariant" else library.why_no_tiles:
        states = dict.fromkeys(_BY_TILES, KernelState.off(why_not))
    for kernel, operations in (
        (Kernel.ATTENTION, attention_proofs),
        (Kernel.PRODUCTS, partial(product_proofs, library)),
        (Kernel.RECURRENT, recurrent_proofs),
        (Kernel.ELEMENTWISE, elementwise_proofs),
        (Kernel.TILES, tile_proofs),
        (Kernel.ATTENTION_TILES, partial(attention_proofs, PROMPTS)),
        (Kernel.RECURRENT_TILES, delta_net_proofs),
    ):
        if kernel in states:
            continue
        if kernel not in _found:
            _found[kernel] = proved(library, kernel, GgmlGraphs(ggml), operations(), pause)
            library.switch_off(kernel)  # the next is compared with ggml too
        states[kernel] = _found[kernel]
    if not states[Kernel.RECURRENT].is_on:  # that kernel computes the last tokens of a prompt
        states[Kernel.RECURRENT_TILES] = states[Kernel.RECURRENT]
    for kernel, state in states.items():
        if state.is_on:
            library.switch_on(kernel)
    return Kernels(**{kernel.name.lower(): state for kernel, state in states.items()})


AttentionShape = tuple[int, int, int, int, int, int, GgmlType]
"""Rows, cells, heads, KV heads, width of keys, width of values, type of cells."""
_SHAPES: tuple[AttentionShape, ...] = (
    (1, 700, 4, 2, 64, 64, GgmlType.F16),
    (40, 250, 4, 2, 64, 64, GgmlType.F16),
    (5, 96, 4, 2, 64, 64, GgmlType.Q8_0),
    (1, 300, 8, 1, 512, 512, GgmlType.F16),
    (3, 100, 20, 1, 576, 512, GgmlType.F16),
    (5, 96, 4, 2, 64, 64, GgmlType.F32),
    (33, 90, 3, 3, 72, 72, GgmlType.F16),
)
PROMPTS: tuple[AttentionShape, ...] = (
    (40, 250, 4, 2, 64, 64, GgmlType.F16),
    (19, 90, 8, 2, 96, 96, GgmlType.Q8_0),
    (17, 100, 20, 1, 576, 512, GgmlType.F16),
    (33, 90, 3, 3, 72, 72, GgmlType.F16),
)


def attention_proofs(shapes: Iterable[AttentionShape] = _SHAPES) -> Iterator[Operation]:
    """One shared row, many rows; tiles, a ragged end, holes; wide and latent heads; shared masks; heads of
    encoders without masks."""
    random = np.random.default_rng(0)
    for rows, cells, heads, kv_heads, width, value_width, cell_type in shapes:
        q = random.standard_normal((2, rows, heads, width), np.float32)
        k, v = random.standard_normal((2, cells, kv_heads, width), np.float32)
        sees = random.random((rows, cells)) < 0.5
        sees[:, cells // 2 :] &= np.arange(rows)[:, None] % 3 == 0
        is_latent = value_width < width
        layer = AttentionCase(
            q=q[0],
            k=k,
            v=k[:, :, :value_width] if is_latent else v,
            mask=None if width % 16 else np.where(sees, 0, -np.inf).astype(np.float32),
            cell_type=cell_type,
            values_in_keys=is_latent,
            scale=width**-0.5,
        )
        yield methodcaller("attending", layer, msgspec.structs.replace(layer, q=q[1]))


def product_proofs(library: KernelLibrary) -> Iterator[Operation]:
    """One row, and a full group and a rest; experts with one row per token or slot."""
    random = np.random.default_rng(0)
    kinds = list(filter(library.multiplies, PRODUCT_TYPES))
    for kind in kinds:
        weights = random_weights(kind, 100, 512, random)
        cases = [
            ProductCase(
                weights=weights, activations=random.standard_normal((rows, 512), np.float32), weight_type=kind
            )
            for rows in (1, 7)
        ]
        yield methodcaller("multiplying_each", cases)
    for slots in (1, 4) if kinds else ():
        case = ProductCase(
            weights=random_weights(GgmlType.Q8_0, 5 * 100, 512, random).reshape(5, 100, -1),
            activations=random.standard_normal((9, slots, 512), np.float32),
            weight_type=GgmlType.Q8_0,
            experts=random.integers(0, 5, (9, 4), np.int32),
        )
        yield methodcaller("multiplying", case)


def tile_proofs() -> Iterator[Operation]:
    """A pair of blocks of rows and a rest; experts with enough rows and with too few."""
    random = np.random.default_rng(0)
    for kind in TILE_TYPES:
        depth = 512 if num_weights_of_block(kind) == 256 else 544
        case = ProductCase(
            weights=random_weights(kind, 100, depth, random, size=1e-2),
            activations=random.standard_normal((37, depth), np.float32),
            weight_type=kind,
        )
        yield methodcaller("multiplying", case)
    yield methodcaller(
        "multiplying",
        ProductCase(
            weights=random_weights(GgmlType.Q8_0, 5 * 100, 512, random, size=1e-2).reshape(5, 100, -1),
            activations=random.standard_normal((60, 1, 512), np.float32),
            weight_type=GgmlType.Q8_0,
            experts=np.minimum(random.integers(0, 50, (60, 1), np.int32), 4),
        ),
    )


def delta_net_proofs(tokens: Iterable[int] = (70,)) -> Iterator[Operation]:
    random = np.random.default_rng(0)
    for each in tokens:
        shape = 3, each
        case = DeltaNetCase(
            states=random.standard_normal((4, 4 * 64 * 64), np.float32),
            reads=(1, 0, 3),
            queries=random.standard_normal((*shape, 2, 64), np.float32),
            keys=random.standard_normal((*shape, 2, 64), np.float32) / np.float32(8),
            values=random.standard_normal((*shape, 4, 64), np.float32),
            gates=-np.abs(random.standard_normal((*shape, 4, 1), np.float32)),
            betas=random.random((*shape, 4, 1), np.float32),
        )
        yield methodcaller("recurring", case)


def recurrent_proofs() -> Iterator[Operation]:
    """One token and a prompt; states that stay, have two readers, or are overwritten."""
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Floats:
        return random.standard_normal(shape, np.float32)

    reads = (1, 0, 3)
    yield from delta_net_proofs(tokens=(1, 37))
    for tokens in (1, 37):
        shape = len(reads), tokens
        yield methodcaller(
            "recurring",
            ConvolutionCase(
                states=normal(4, 3 * 160), reads=reads, inputs=normal(*shape, 160), weights=normal(160, 4)
            ),
        )
        for heads, rows, decays in ((4, 8, normal(4, 1)), (40, 1, normal(40, 16))):
            width = 16 if rows == 1 else 64
            yield methodcaller(
                "recurring",
                ScanCase(
                    states=normal(4, heads * rows * width),
                    reads=(0, 1, 3),
                    x=normal(*shape, heads, rows),
                    steps=normal(*shape, heads),
                    decays=-np.abs(decays),
                    b=normal(*shape, 1, width),
                    c=normal(*shape, 1, width),
                ),
            )


def elementwise_proofs() -> Iterator[Operation]:
    random = np.random.default_rng(0)
    values, others = random.standard_normal((2, 3, 4, 64), np.float32)
    yield methodcaller("scaling", values, others[..., :1])
    yield methodcaller("gating", 5 * values, 5 * others)
    yield methodcaller("gating_by_gelu", 5 * values, others)
    yield methodcaller("normalising", values, None)
    yield methodcaller("normalising", values, others[0, 0])


def proved(
    library: KernelLibrary,
    kernel: Kernel,
    graphs: GgmlGraphs,
    operations: Iterator[Operation],
    pause: Callable[[], None] = lambda: None,
) -> KernelState:
    num_proved = 0
    for operation in operations:
        num_proved += 1
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
                tolerance = _TOLERANCES.get(kernel, _TOLERANCE)
                if not np.max(np.abs(found - expected)) <= tolerance * np.max(np.abs(expected)):
                    return KernelState.off("its results are not ggml's")
    if num_proved == 0:
        return KernelState.off("it computes nothing on this CPU")
    library.switch_on(kernel)
    return KernelState(instruction_set=TILES if kernel in _BY_TILES else library.instruction_set)
