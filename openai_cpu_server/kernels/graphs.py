"""Single operations as ggml graphs, through its C API, on which kernels are compared."""

from __future__ import annotations

import ctypes
import enum
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Packed = npt.NDArray[np.uint8]
Computing = Callable[[int], Floats]

_OVERHEAD_BYTES = 4 << 20


class GgmlType(enum.IntEnum):
    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q2_K = 10
    Q3_K = 11
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    IQ2_XXS = 16
    IQ2_XS = 17
    IQ3_XXS = 18
    IQ4_NL = 20
    IQ3_S = 21
    IQ2_S = 22
    IQ4_XS = 23
    I32 = 26
    BF16 = 30
    MXFP4 = 39


_Layer = tuple[Any, tuple[int, ...], list[Any]]
"""Node of the results, their shape, and the nodes that write states back."""


class _Block(NamedTuple):
    num_weights: int
    num_bytes: int
    halves: tuple[int, ...] = (0,)
    """Offsets of half-precision scales."""


_BLOCKS = {
    GgmlType.Q4_0: _Block(32, 18),
    GgmlType.Q4_1: _Block(32, 20, (0, 2)),
    GgmlType.Q5_0: _Block(32, 22),
    GgmlType.Q5_1: _Block(32, 24, (0, 2)),
    GgmlType.Q8_0: _Block(32, 34),
    GgmlType.Q2_K: _Block(256, 84, (80, 82)),
    GgmlType.Q3_K: _Block(256, 110, (108,)),
    GgmlType.Q4_K: _Block(256, 144, (0, 2)),
    GgmlType.Q5_K: _Block(256, 176, (0, 2)),
    GgmlType.Q6_K: _Block(256, 210, (208,)),
    GgmlType.IQ2_XXS: _Block(256, 66),
    GgmlType.IQ2_XS: _Block(256, 74),
    GgmlType.IQ3_XXS: _Block(256, 98),
    GgmlType.IQ4_NL: _Block(32, 18),
    GgmlType.IQ3_S: _Block(256, 110),
    GgmlType.IQ2_S: _Block(256, 82),
    GgmlType.IQ4_XS: _Block(256, 136),
    GgmlType.MXFP4: _Block(32, 17, ()),
    GgmlType.F16: _Block(1, 2),
    GgmlType.BF16: _Block(1, 2, ()),
}

TILE_TYPES = tuple(_BLOCKS)
PRODUCT_TYPES = TILE_TYPES[:-2]
"""Types for few rows, if `KernelLibrary.multiplies` them on this CPU."""


def num_weights_of_block(kind: GgmlType) -> int:
    return _BLOCKS[kind].num_weights


def random_weights(
    kind: GgmlType,
    outputs: int,
    depth: int,
    random: np.random.Generator,
    *,
    size: float = 1.0,
    bytes_of: range = range(256),
) -> Packed:
    """Return packed weights, (outputs, bytes of a row), with scales of about `size`."""
    block = _BLOCKS[kind]
    shape = (outputs, depth // block.num_weights, block.num_bytes)
    packed = random.integers(bytes_of.start, bytes_of.stop, shape, np.uint8)
    for place in block.halves:
        scales = size * random.uniform(0.5, 1, packed.shape[:2]) * random.choice([-1, 1], packed.shape[:2])
        packed[..., place : place + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind is GgmlType.MXFP4:
        packed[..., 0] = random.integers(126, 130, packed.shape[:2]) + round(math.log2(size))
    if kind is GgmlType.BF16:
        numbers = np.float32(size) * random.standard_normal(packed.shape[:2], np.float32)
        packed = (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return packed.reshape(outputs, -1)


class AttentionCase(msgspec.Struct, frozen=True, kw_only=True):
    q: Floats
    """(rows, heads, width of keys)"""
    k: Floats
    """(cells, KV heads, width of keys)"""
    v: Floats
    """(cells, KV heads, width of values)"""
    mask: Floats | None
    """(rows, cells): 0, -inf, or a bias."""
    cell_type: GgmlType = GgmlType.F16
    value_type: GgmlType | None = None
    """Type, or None for the keys'."""
    values_in_keys: bool = False
    """True: values are a view of the first numbers of the keys, and must equal them."""
    scale: float = 1.0
    max_bias: float = 0.0
    """ALiBi's, or 0 for none."""
    soft_cap: float = 0.0
    sinks: Floats | None = None
    """(heads,)"""


class ProductCase(msgspec.Struct, frozen=True, kw_only=True):
    weights: Packed
    """(outputs, bytes of a row); for experts or batches (experts, outputs, bytes)."""
    activations: Floats
    """(rows, depth); for experts (tokens, slots or 1, depth); for batches (batches, rows, depth), batches a
    multiple of the weights'."""
    weight_type: GgmlType
    experts: Ints | None = None
    """(tokens, slots)"""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        return *self.weights.shape[:-1], self.activations.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """(rows, outputs), (tokens, slots, outputs), or (batches, rows, outputs)."""
        rows = self.activations.shape[:-1] if self.experts is None else self.experts.shape
        return *rows, self.weights.shape[-2]


class RecurrentCase(msgspec.Struct, frozen=True, kw_only=True):
    """Layer with states in llama.cpp's memory. The result is its output followed by that memory."""

    states: Floats
    """(cells, values): one cell per sequence, then as many for each earlier state."""
    reads: tuple[int, ...]
    """Cell read by each sequence."""
    first: int = 0
    """Cell written by the first sequence; the others follow."""
    num_states: int = 1
    """States written per sequence, from the last one backwards."""


class DeltaNetCase(RecurrentCase, frozen=True, kw_only=True):
    queries: Floats
    """(sequences, tokens, heads, width)"""
    keys: Floats
    values: Floats
    """(sequences, tokens, heads, width); heads may be a multiple of those of queries and keys."""
    gates: Floats
    """(sequences, tokens, heads, 1), or one per column: logarithm of a state's remaining share."""
    betas: Floats
    """(sequences, tokens, heads, 1)"""


class ScanCase(RecurrentCase, frozen=True, kw_only=True):
    x: Floats
    """(sequences, tokens, heads, rows)"""
    steps: Floats
    """(sequences, tokens, heads)"""
    decays: Floats
    """(heads, 1) in Mamba 2, or (heads, width)."""
    b: Floats
    """(sequences, tokens, groups, width)"""
    c: Floats


class ConvolutionCase(RecurrentCase, frozen=True, kw_only=True):
    inputs: Floats
    """(sequences, tokens, channels)"""
    weights: Floats
    """(channels, taps)"""
    bias: Floats | None = None
    """(channels,)"""
    has_silu: bool = True


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class GgmlGraphs:
    def __init__(self, ggml: ctypes.CDLL) -> None:
        """`ggml`: loaded by llama_cpp."""
        self._ggml = ggml
        self._declare()
        self._backend = ggml.ggml_backend_cpu_init()
        weakref.finalize(self, ggml.ggml_backend_free, self._backend)

    def as_stored(self, values: Floats, cell_type: GgmlType) -> Floats:
        with self._context(values, values) as context:
            stored = self._tensor(context, values, cell_type)
            node = self._ggml.ggml_cast(context, stored, GgmlType.F32)
            return self._computing(context, [node], values.shape)(1)

    @contextmanager
    def attending(self, *cases: AttentionCase, masks_change: bool = False) -> Iterator[Computing]:
        """Compute several cases in one graph, like layers, with the last one's result.

        Cases with the same mask object share its tensor. `masks_change`: store masks again each time.
        """
        arrays = [array for case in cases for array in (case.q, case.k, case.v, case.mask)]
        masks = {id(case.mask): case.mask for case in cases if case.mask is not None}
        with self._context(*arrays) as context:
            stored = {key: self._tensor(context, mask, GgmlType.F16) for key, mask in masks.items()}
            nodes = [self._attention(context, case, stored.get(id(case.mask))) for case in cases]
            compute = self._computing(context, nodes, (*cases[-1].q.shape[:2], cases[-1].v.shape[2]))

            def compute_step(threads: int) -> Floats:
                for key, mask in masks.items():
                    self._store(stored[key], mask, GgmlType.F16)
                return compute(threads)

            yield compute_step if masks_change else compute

    def _attention(self, context: int, case: AttentionCase, mask: Any) -> Any:
        q = self._rows_by_head(context, case.q, GgmlType.F32)
        k = self._rows_by_head(context, case.k, case.cell_type)
        if case.values_in_keys:
            cells, heads, width = case.v.shape
            row = self._ggml.ggml_row_size(case.cell_type, case.k.shape[2])
            v = self._ggml.ggml_view_3d(context, k, width, cells, heads, heads * row, row, 0)
        else:
            v = self._rows_by_head(context, case.v, case.value_type or case.cell_type)
        node = self._ggml.ggml_flash_attn_ext(
            context, q, k, v, mask, case.scale, case.max_bias, case.soft_cap
        )
        if case.sinks is not None:
            sinks = self._tensor(context, case.sinks, GgmlType.F32)
            self._ggml.ggml_flash_attn_ext_add_sinks(node, sinks)
        return node

    @contextmanager
    def multiplying(self, case: ProductCase, *, copies: int = 1) -> Iterator[Computing]:
        """Compute a product with each copy of the weights in turn."""
        results = np.empty((copies, *case.shape), np.float32)
        with self._context(*copies * [case.weights], case.activations, results) as context:
            activations = self._tensor(context, case.activations, GgmlType.F32)
            first = self._packed(context, case)
            weights = [first, *(self._copy(context, first) for _ in range(copies - 1))]
            if case.experts is None:
                nodes = [self._ggml.ggml_mul_mat(context, one, activations) for one in weights]
            else:
                experts = self._integers(context, case.experts)
                nodes = [self._ggml.ggml_mul_mat_id(context, one, activations, experts) for one in weights]
            yield self._computing(context, nodes, case.shape)

    @contextmanager
    def multiplying_each(self, cases: Sequence[ProductCase]) -> Iterator[Computing]:
        """Compute products in one graph, because starting one takes longer than a small product. Results are
        concatenated."""
        arrays = [array for case in cases for array in (case.weights, case.activations)]
        with self._context(*arrays, *(np.empty(case.shape, np.float32) for case in cases)) as context:
            activations = {id(case.activations): case.activations for case in cases}
            stored = {key: self._tensor(context, one, GgmlType.F32) for key, one in activations.items()}
            nodes = [
                self._ggml.ggml_mul_mat(context, self._packed(context, case), stored[id(case.activations)])
                for case in cases
            ]
            run = self._running(context, nodes)
            results = [self._result(node, case.shape) for node, case in zip(nodes, cases, strict=True)]

            def compute(threads: int) -> Floats:
                run(threads)
                return np.concatenate([result.ravel() for result in results])

            yield compute

    def unpacked(self, case: ProductCase) -> Floats:
        shape = case.weight_shape
        with self._context(case.weights, np.empty(shape, np.float32)) as context:
            node = self._ggml.ggml_cast(context, self._packed(context, case), GgmlType.F32)
            return self._computing(context, [node], shape)(1)

    @contextmanager
    def recurring(self, case: RecurrentCase) -> Iterator[Computing]:
        arrays = [value for value in msgspec.structs.astuple(case) if isinstance(value, np.ndarray)]
        with self._context(*arrays, *arrays, *4 * [case.states]) as context:
            memory = self._tensor(context, case.states, GgmlType.F32)
            layers: dict[type, Callable[[int, Any, Any], _Layer]] = {
                DeltaNetCase: self._delta_net,
                ScanCase: self._scan,
                ConvolutionCase: self._convolution,
            }
            result, shape, copies = layers[type(case)](context, case, memory)
            run = self._running(context, [*copies, result])

            def compute(threads: int) -> Floats:
                self._fill(memory, case.states)
                run(threads)
                values = self._result(result, shape), self._result(memory, case.states.shape)
                return np.concatenate([each.ravel() for each in values])

            yield compute

    def _delta_net(self, context: int, case: DeltaNetCase, memory: Any) -> _Layer:
        sequences, _, heads, width = case.values.shape
        inputs = (case.queries, case.keys, case.values, case.gates, case.betas)
        tensors = [self._tensor(context, each, GgmlType.F32) for each in inputs]
        gathered = self._ggml.ggml_get_rows(context, memory, self._integers(context, case.reads))
        states = self._ggml.ggml_reshape_4d(context, gathered, width, width, heads, sequences)
        node = self._ggml.ggml_gated_delta_net(context, *tensors, states, case.num_states)
        return node, case.values.shape, [self._written_back(context, case, memory, node, case.values.shape)]

    def _scan(self, context: int, case: ScanCase, memory: Any) -> _Layer:
        heads, rows = case.x.shape[2:]
        inputs = (case.x, case.steps, case.decays, case.b, case.c)
        tensors = [self._tensor(context, each, GgmlType.F32) for each in inputs]
        width = case.b.shape[-1]
        states = self._ggml.ggml_reshape_4d(context, memory, width, rows, heads, len(case.states))
        reads = self._integers(context, case.reads)
        node = self._ggml.ggml_ssm_scan(context, states, *tensors, reads, case.num_states)
        return node, case.x.shape, [self._written_back(context, case, memory, node, case.x.shape)]

    def _written_back(
        self, context: int, case: RecurrentCase, memory: Any, node: Any, results: tuple[int, ...]
    ) -> Any:
        """States follow the results in the node's output."""
        (sequences, tokens), row = results[:2], 4 * case.states.shape[1]
        num_states, cells = min(case.num_states, tokens), len(case.states) // case.num_states
        sizes, view = (row // 4, sequences, num_states), self._ggml.ggml_view_3d
        states = view(context, node, *sizes, row, row * sequences, 4 * math.prod(results))
        place = view(context, memory, *sizes, row, row * cells, row * case.first)
        return self._ggml.ggml_cpy(context, states, place)

    def _convolution(self, context: int, case: ConvolutionCase, memory: Any) -> _Layer:
        sequences, tokens, channels = case.inputs.shape
        before, row = case.weights.shape[1] - 1, 4 * case.states.shape[1]
        ggml = self._ggml
        gathered = ggml.ggml_get_rows(context, memory, self._integers(context, case.reads))
        states = ggml.ggml_reshape_4d(context, gathered, before, channels, sequences, 1)
        inputs = ggml.ggml_transpose(context, self._tensor(context, case.inputs, GgmlType.F32))
        matrix = ggml.ggml_concat(context, states, inputs, 0)
        column, cells = 4 * (before + tokens), len(case.states) // case.num_states
        copies = []
        for slot in range(min(case.num_states, tokens)):
            sizes = (before, channels, sequences, column, column * channels)
            ends = ggml.ggml_view_3d(context, matrix, *sizes, 4 * (tokens - slot))
            start = row * (slot * cells + case.first)
            place = ggml.ggml_view_3d(context, memory, row // 4, sequences, 1, row, row * sequences, start)
            copies.append(ggml.ggml_cpy(context, ends, place))
        node = ggml.ggml_ssm_conv(context, matrix, self._tensor(context, case.weights, GgmlType.F32))
        if case.bias is not None:
            node = ggml.ggml_add(context, node, self._tensor(context, case.bias, GgmlType.F32))
        if case.has_silu:
            node = ggml.ggml_silu(context, node)
        return node, case.inputs.shape, copies

    def scaling(self, rows: Floats, factors: Floats) -> AbstractContextManager[Computing]:
        return self._of_two(self._ggml.ggml_mul, rows, factors)

    def gating(
        self, gates: Floats, ups: Floats, *, alpha: float = 1.702, limit: float = 7.0
    ) -> AbstractContextManager[Computing]:
        return self._of_two(self._ggml.ggml_swiglu_oai, gates, ups, alpha, limit)

    def gating_by_gelu(self, gates: Floats, ups: Floats) -> AbstractContextManager[Computing]:
        return self._of_two(self._ggml.ggml_geglu_split, gates, ups)

    @contextmanager
    def normalising(self, rows: Floats, weights: Floats | None, epsilon: float = 1e-6) -> Iterator[Computing]:
        with self._context(rows, rows, *([] if weights is None else [weights])) as context:
            node = self._ggml.ggml_rms_norm(context, self._tensor(context, rows, GgmlType.F32), epsilon)
            if weights is not None:
                node = self._ggml.ggml_mul(context, node, self._tensor(context, weights, GgmlType.F32))
            yield self._computing(context, [node], rows.shape)

    @contextmanager
    def _of_two(
        self, operation: Callable[..., Any], first: Floats, second: Floats, *options: float
    ) -> Iterator[Computing]:
        with self._context(first, first, second) as context:
            tensors = [self._tensor(context, values, GgmlType.F32) for values in (first, second)]
            yield self._computing(context, [operation(context, *tensors, *options)], first.shape)

    def _rows_by_head(self, context: int, values: Floats, kind: GgmlType) -> Any:
        return self._ggml.ggml_permute(context, self._tensor(context, values, kind), 0, 2, 1, 3)

    def _packed(self, context: int, case: ProductCase) -> Any:
        return self._stored(context, case.weights, case.weight_shape, case.weight_type)

    def _context(self, *values: Floats | Packed | None) -> AbstractContextManager[int]:
        data_bytes = sum(array.nbytes for array in values if array is not None)
        return self._memory(2 * data_bytes + _OVERHEAD_BYTES)

    @contextmanager
    def _memory(self, num_bytes: int, *, holds_data: bool = True) -> Iterator[int]:
        context = self._ggml.ggml_init(_InitParams(num_bytes, None, not holds_data))
        assert context is not None
        try:
            yield context
        finally:
            self._ggml.ggml_free(context)

    def _integers(self, context: int, values: Ints | tuple[int, ...]) -> Any:
        numbers = np.asarray(values, np.int32)
        return self._stored(context, numbers, numbers.shape, GgmlType.I32)

    def _new_tensor(self, context: int, shape: tuple[int, ...], kind: int) -> Any:
        sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
        return self._ggml.ggml_new_tensor(context, kind, len(shape), sizes)

    def _tensor(self, context: int, values: Floats, kind: GgmlType) -> Any:
        tensor = self._new_tensor(context, values.shape, kind)
        self._store(tensor, values, kind)
        return tensor

    def _store(self, tensor: Any, values: Floats, kind: GgmlType) -> None:
        if kind is GgmlType.F32:
            self._fill(tensor, values)
        else:
            source, data = np.ascontiguousarray(values, np.float32), self._ggml.ggml_get_data(tensor)
            rows, width = source.size // values.shape[-1], values.shape[-1]
            self._ggml.ggml_quantize_chunk(kind, source.ctypes.data, data, 0, rows, width, None)

    def _stored(self, context: int, data: npt.NDArray[Any], shape: tuple[int, ...], kind: GgmlType) -> Any:
        tensor = self._new_tensor(context, shape, kind)
        self._fill(tensor, data)
        return tensor

    def _fill(self, tensor: Any, values: npt.NDArray[Any]) -> None:
        source = np.ascontiguousarray(values)
        assert self._ggml.ggml_nbytes(tensor) == source.nbytes
        ctypes.memmove(self._ggml.ggml_get_data(tensor), source.ctypes.data, source.nbytes)

    def _copy(self, context: int, tensor: Any) -> Any:
        copy = self._ggml.ggml_dup_tensor(context, tensor)
        get_data, num_bytes = self._ggml.ggml_get_data, self._ggml.ggml_nbytes(tensor)
        ctypes.memmove(get_data(copy), get_data(tensor), num_bytes)
        return copy

    def _computing(self, context: int, nodes: list[Any], shape: tuple[int, ...]) -> Computing:
        run, result = self._running(context, nodes), self._result(nodes[-1], shape)

        def compute(threads: int) -> Floats:
            run(threads)
            return result.copy()

        return compute

    def _result(self, node: Any, shape: tuple[int, ...]) -> Floats:
        values = (ctypes.c_float * math.prod(shape)).from_address(self._ggml.ggml_get_data(node))
        return np.ctypeslib.as_array(values).reshape(shape)

    def _running(self, context: int, nodes: list[Any]) -> Callable[[int], None]:
        """Whole graphs are computed, as in llama.cpp, so that they pass through our library."""
        graph = self._ggml.ggml_new_graph(context)
        for node in nodes:
            self._ggml.ggml_build_forward_expand(graph, node)

        def run(threads: int) -> None:
            self._ggml.ggml_backend_cpu_set_n_threads(self._backend, threads)
            status = self._ggml.ggml_backend_graph_compute(self._backend, graph)
            assert status == 0, f"ggml could not compute a graph: {status}"

        return run

    def _declare(self) -> None:
        pointer, integer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_size_t
        sizes = ctypes.POINTER(ctypes.c_int64)
        chunk = [integer, pointer, pointer, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer]
        for name, result, arguments in (
            ("ggml_init", pointer, [_InitParams]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor", pointer, [pointer, integer, integer, sizes]),
            ("ggml_permute", pointer, [pointer, pointer, *4 * [integer]]),
            ("ggml_row_size", size, [integer, ctypes.c_int64]),
            ("ggml_cast", pointer, [pointer, pointer, integer]),
            ("ggml_mul", pointer, 3 * [pointer]),
            ("ggml_swiglu_oai", pointer, [*3 * [pointer], *2 * [number]]),
            ("ggml_geglu_split", pointer, 3 * [pointer]),
            ("ggml_rms_norm", pointer, [pointer, pointer, number]),
            ("ggml_mul_mat", pointer, 3 * [pointer]),
            ("ggml_mul_mat_id", pointer, 4 * [pointer]),
            ("ggml_flash_attn_ext", pointer, [*5 * [pointer], *3 * [number]]),
            ("ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
            ("ggml_quantize_chunk", size, chunk),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_dup_tensor", pointer, [pointer, pointer]),
            ("ggml_nbytes", size, [pointer]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_get_rows", pointer, 3 * [pointer]),
            ("ggml_reshape_4d", pointer, [pointer, pointer, *4 * [ctypes.c_int64]]),
            ("ggml_view_3d", pointer, [pointer, pointer, *3 * [ctypes.c_int64], *3 * [size]]),
            ("ggml_transpose", pointer, 2 * [pointer]),
            ("ggml_concat", pointer, [*3 * [pointer], integer]),
            ("ggml_cpy", pointer, 3 * [pointer]),
            ("ggml_add", pointer, 3 * [pointer]),
            ("ggml_silu", pointer, 2 * [pointer]),
            ("ggml_ssm_conv", pointer, 3 * [pointer]),
            ("ggml_ssm_scan", pointer, [*8 * [pointer], ctypes.c_int64]),
            ("ggml_gated_delta_net", pointer, [*7 * [pointer], ctypes.c_int64]),
            ("ggml_backend_cpu_init", pointer, []),
            ("ggml_backend_free", None, [pointer]),
            ("ggml_backend_cpu_set_n_threads", None, [pointer, integer]),
            ("ggml_backend_graph_compute", integer, 2 * [pointer]),
            ("ggml_backend_dev_by_type", pointer, [integer]),
            ("ggml_backend_dev_backend_reg", pointer, [pointer]),
            ("ggml_backend_reg_get_proc_address", pointer, [pointer, ctypes.c_char_p]),
            ("ggml_backend_buft_get_alloc_size", size, 2 * [pointer]),
            ("ggml_backend_buft_alloc_buffer", pointer, [pointer, size]),
            ("ggml_backend_buffer_get_base", pointer, [pointer]),
            ("ggml_backend_buffer_free", None, [pointer]),
            ("ggml_backend_tensor_alloc", integer, 3 * [pointer]),
            ("ggml_backend_tensor_set", None, [pointer, pointer, size, size]),
            ("ggml_backend_dev_supports_op", ctypes.c_bool, 2 * [pointer]),
        ):
            function = getattr(self._ggml, name)
            function.restype, function.argtypes = result, arguments


_CPU_DEVICE = 0


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    type: int
    """`ggml_type`."""
    depth: int
    outputs: int
    num_experts: int | None = None
    """Rows go to experts in turn (`ggml_mul_mat_id`); None for one matrix (`ggml_mul_mat`)."""
    data: bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """((experts,) outputs, depth)"""
        experts = () if self.num_experts is None else (self.num_experts,)
        return (*experts, self.outputs, self.depth)

    @property
    def num_values(self) -> int:
        return self.depth * self.outputs * (self.num_experts or 1)


class LayoutGraphs(GgmlGraphs):
    """Computes products in every layout that llama.cpp would choose from (`use_extra_bufts`)."""

    @contextmanager
    def plain(self, weights: StoredWeights, rows: Sequence[int]) -> Iterator[Mapping[int, Computing]]:
        with self._room(weights, rows, len(weights.data)) as context:
            tensor = self._new_tensor(context, weights.shape, weights.type)
            ctypes.memmove(self._ggml.ggml_get_data(tensor), weights.data, len(weights.data))
            yield {count: self._multiplying(context, weights, tensor, count) for count in rows}

    @contextmanager
    def repacked(
        self, weights: StoredWeights, rows: Sequence[int]
    ) -> Iterator[Mapping[int, Computing] | None]:
        """Yield None if ggml does not repack these weights."""
        with ExitStack() as stack:
            context = stack.enter_context(self._room(weights, rows, 0))
            owner = stack.enter_context(self._memory(_OVERHEAD_BYTES, holds_data=False))
            device = self._ggml.ggml_backend_dev_by_type(_CPU_DEVICE)
            for layout in self._layouts(device):
                tensor = self._new_tensor(owner, weights.shape, weights.type)
                stack.callback(self._ggml.ggml_backend_buffer_free, self._stored_in(layout, tensor))
                node = self._node(context, weights, tensor, 1)
                if self._ggml.ggml_backend_dev_supports_op(device, node):  # as llama.cpp tests it
                    self._ggml.ggml_backend_tensor_set(tensor, weights.data, 0, len(weights.data))
                    yield {count: self._multiplying(context, weights, tensor, count) for count in rows}
                    return
            yield None

    def _layouts(self, device: int) -> Iterator[int]:
        registry = self._ggml.ggml_backend_dev_backend_reg(device)
        address = self._ggml.ggml_backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        if address is None:
            return
        found = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device)
        for layout in found or ():
            if layout is None:
                return
            yield layout

    def _stored_in(self, layout: int, tensor: Any) -> Any:
        num_bytes = self._ggml.ggml_backend_buft_get_alloc_size(layout, tensor)
        buffer = self._ggml.ggml_backend_buft_alloc_buffer(layout, num_bytes)
        assert buffer is not None
        self._ggml.ggml_backend_tensor_alloc(buffer, tensor, self._ggml.ggml_backend_buffer_get_base(buffer))
        return buffer

    def _multiplying(self, context: int, weights: StoredWeights, tensor: Any, rows: int) -> Computing:
        shape = rows * (weights.num_experts or 1), weights.outputs
        return self._computing(context, [self._node(context, weights, tensor, rows)], shape)

    def _node(self, context: int, weights: StoredWeights, tensor: Any, rows: int) -> Any:
        count = rows * (weights.num_experts or 1)
        values = np.random.default_rng(0).standard_normal((count, weights.depth), np.float32)
        if weights.num_experts is None:
            return self._ggml.ggml_mul_mat(context, tensor, self._tensor(context, values, GgmlType.F32))
        activations = self._tensor(context, values.reshape(count, 1, weights.depth), GgmlType.F32)
        chosen = np.arange(count, dtype=np.int32)[:, None] % weights.num_experts
        return self._ggml.ggml_mul_mat_id(context, tensor, activations, self._integers(context, chosen))

    def _room(
        self, weights: StoredWeights, rows: Sequence[int], num_bytes: int
    ) -> AbstractContextManager[int]:
        values = sum(rows) * (weights.num_experts or 1) * (weights.depth + weights.outputs)
        return self._memory(num_bytes + 4 * values + _OVERHEAD_BYTES)
