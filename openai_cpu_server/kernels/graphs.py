"""Single operations as graphs of ggml, through its C API: what kernels are compared on."""

from __future__ import annotations

import ctypes
import enum
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Computing = Callable[[int], Floats]
"""Computes an operation with a number of threads."""

_Layer = tuple[Any, tuple[int, ...], list[Any]]
"""The node of a layer's results, their shape, and the nodes that write states back."""
_OVERHEAD_BYTES = 4 << 20
"""A graph of a few nodes, what its tensors need beside their data, and ggml's scratch for a few threads."""


class GgmlType(enum.IntEnum):
    """`ggml_type` of ggml.h."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    I32 = 26
    BF16 = 30


PRODUCT_TYPES = tuple(kind for kind in GgmlType if kind.name.startswith("Q"))
"""The types of weights whose products we compute: all of these that quantise."""


class AttentionCase(msgspec.Struct, frozen=True, kw_only=True):
    q: Floats
    """(rows, heads, width)"""
    k: Floats
    """(cells, heads of keys and values, width)"""
    v: Floats
    mask: Floats | None
    """(rows, cells): 0, -inf, or something to add."""
    cell_type: GgmlType = GgmlType.F16
    scale: float = 1.0
    max_bias: float = 0.0
    """ALiBi's; 0: none."""
    soft_cap: float = 0.0
    sinks: Floats | None = None
    """(heads,)"""


class ProductCase(msgspec.Struct, frozen=True, kw_only=True):
    weights: Floats
    """(outputs, depth); of experts, or of batches, (experts, outputs, depth)"""
    activations: Floats
    """(rows, depth); of experts (tokens, slots or 1, depth), of batches (batches, rows, depth), where the
    batches are a multiple of those of the weights."""
    weight_type: GgmlType
    experts: Ints | None = None
    """(tokens, slots): the expert that each slot of a token has."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the result: (rows, outputs), (tokens, slots, outputs), (batches, rows, outputs)."""
        rows = self.activations.shape[:-1] if self.experts is None else self.experts.shape
        return *rows, self.weights.shape[-2]


class RecurrentCase(msgspec.Struct, frozen=True, kw_only=True):
    """A layer whose states are gathered from llama.cpp's memory, and written back to it.

    What is computed are the results and all of the memory, one behind the other.
    """

    states: Floats
    """(cells, values): one for each sequence. Cells for states of earlier tokens follow, as many for each."""
    reads: tuple[int, ...]
    """The cell that each sequence of the step reads."""
    first: int = 0
    """The cell that the first of them writes; the others write those behind it."""
    kept: int = 1
    """How many states of each sequence are written: the last, the one before it and so on."""


class DeltaNetCase(RecurrentCase, frozen=True, kw_only=True):
    queries: Floats
    """(sequences, tokens, heads, width)"""
    keys: Floats
    values: Floats
    """The same; heads may be a multiple of those of queries and keys."""
    gates: Floats
    """(sequences, tokens, heads, 1), or of each column: logarithms of what is left of a state."""
    betas: Floats
    """(sequences, tokens, heads, 1)"""


class ScanCase(RecurrentCase, frozen=True, kw_only=True):
    x: Floats
    """(sequences, tokens, heads, rows)"""
    steps: Floats
    """(sequences, tokens, heads)"""
    decays: Floats
    """(heads, 1) as Mamba 2 has them, or (heads, width) with one row for each head."""
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


class GgmlGraphs:
    """Computes single operations. Threads are those of ggml."""

    def __init__(self, ggml: ctypes.CDLL) -> None:
        """`ggml`: the library that llama_cpp has loaded."""
        self._ggml = ggml
        self._declare()
        self._backend = ggml.ggml_backend_cpu_init()
        weakref.finalize(self, ggml.ggml_backend_free, self._backend)

    def attention(self, case: AttentionCase, *, threads: int) -> Floats:
        """(rows, heads, width), by `ggml_flash_attn_ext`."""
        with self.attending(case) as compute:
            return compute(threads)

    @contextmanager
    def attending(self, case: AttentionCase) -> Iterator[Computing]:
        """The same as often as one likes. Tensors are laid out as llama.cpp does it."""
        with self._context(case.q, case.k, case.v, case.mask) as context:
            q = self._rows_by_head(context, case.q, GgmlType.F32)
            k = self._rows_by_head(context, case.k, case.cell_type)
            v = self._rows_by_head(context, case.v, case.cell_type)
            mask = None if case.mask is None else self._tensor(context, case.mask, GgmlType.F16)
            node = self._ggml.ggml_flash_attn_ext(
                context, q, k, v, mask, case.scale, case.max_bias, case.soft_cap
            )
            if case.sinks is not None:
                self._ggml.ggml_flash_attn_ext_add_sinks(
                    node, self._tensor(context, case.sinks, GgmlType.F32)
                )
            yield self._computing(context, [node], case.q.shape)

    def product(self, case: ProductCase, *, threads: int) -> Floats:
        """By `ggml_mul_mat`, or `ggml_mul_mat_id` where there are experts."""
        with self.multiplying(case) as compute:
            return compute(threads)

    @contextmanager
    def multiplying(self, case: ProductCase, *, copies: int = 1) -> Iterator[Computing]:
        """The same as often as one likes, with one copy of the weights after another each time."""
        results = np.empty((copies, *case.shape), np.float32)
        with self._context(*copies * [case.weights], case.activations, results) as context:
            activations = self._tensor(context, case.activations, GgmlType.F32)
            first = self._tensor(context, case.weights, case.weight_type)
            weights = [first, *(self._copy(context, first) for _ in range(copies - 1))]
            if case.experts is None:
                nodes = [self._ggml.ggml_mul_mat(context, one, activations) for one in weights]
            else:
                experts = self._integers(context, case.experts)
                nodes = [self._ggml.ggml_mul_mat_id(context, one, activations, experts) for one in weights]
            yield self._computing(context, nodes, case.shape)

    @contextmanager
    def recurring(self, case: RecurrentCase) -> Iterator[Computing]:
        """The same as often as one likes, from the same states each time. Nodes are those of llama.cpp."""
        arrays = [value for value in msgspec.structs.astuple(case) if isinstance(value, np.ndarray)]
        with self._context(*arrays, *arrays, *4 * [case.states]) as context:
            memory = self._tensor(context, case.states, GgmlType.F32)
            nodes = {DeltaNetCase: self._delta_net, ScanCase: self._scan, ConvolutionCase: self._convolution}
            result, shape, copies = nodes[type(case)](context, case, memory)
            run = self._running(context, [*copies, result])

            def compute(threads: int) -> Floats:
                self._fill(memory, case.states)
                run(threads)
                values = self._values(result, shape), self._values(memory, case.states.shape)
                return np.concatenate([each.ravel() for each in values])

            yield compute

    def _delta_net(self, context: int, case: DeltaNetCase, memory: Any) -> _Layer:
        sequences, _, heads, width = case.values.shape
        inputs = (case.queries, case.keys, case.values, case.gates, case.betas)
        tensors = [self._tensor(context, each, GgmlType.F32) for each in inputs]
        gathered = self._ggml.ggml_get_rows(context, memory, self._integers(context, np.asarray(case.reads)))
        states = self._ggml.ggml_reshape_4d(context, gathered, width, width, heads, sequences)
        node = self._ggml.ggml_gated_delta_net(context, *tensors, states, case.kept)
        return node, case.values.shape, [self._written_back(context, case, memory, node, case.values.shape)]

    def _scan(self, context: int, case: ScanCase, memory: Any) -> _Layer:
        heads, rows = case.x.shape[2:]
        inputs = (case.x, case.steps, case.decays, case.b, case.c)
        tensors = [self._tensor(context, each, GgmlType.F32) for each in inputs]
        width = case.b.shape[-1]
        states = self._ggml.ggml_reshape_4d(context, memory, width, rows, heads, len(case.states))
        reads = self._integers(context, np.asarray(case.reads))
        node = self._ggml.ggml_ssm_scan(context, states, *tensors, reads, case.kept)
        return node, case.x.shape, [self._written_back(context, case, memory, node, case.x.shape)]

    def _written_back(
        self, context: int, case: RecurrentCase, memory: Any, node: Any, results: tuple[int, ...]
    ) -> Any:
        """The copy of the states that follow a node's results of such a shape."""
        (sequences, tokens), row = results[:2], 4 * case.states.shape[1]
        kept, cells = min(case.kept, tokens), len(case.states) // case.kept
        sizes, view = (row // 4, sequences, kept), self._ggml.ggml_view_3d
        states = view(context, node, *sizes, row, row * sequences, 4 * math.prod(results))
        place = view(context, memory, *sizes, row, row * cells, row * case.first)
        return self._ggml.ggml_cpy(context, states, place)

    def _convolution(self, context: int, case: ConvolutionCase, memory: Any) -> _Layer:
        sequences, tokens, channels = case.inputs.shape
        before, row = case.weights.shape[1] - 1, 4 * case.states.shape[1]
        ggml = self._ggml
        gathered = ggml.ggml_get_rows(context, memory, self._integers(context, np.asarray(case.reads)))
        states = ggml.ggml_reshape_4d(context, gathered, before, channels, sequences, 1)
        inputs = ggml.ggml_transpose(context, self._tensor(context, case.inputs, GgmlType.F32))
        matrix = ggml.ggml_concat(context, states, inputs, 0)
        column, cells = 4 * (before + tokens), len(case.states) // case.kept
        copies = []
        for slot in range(min(case.kept, tokens)):
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

    def as_stored(self, values: Floats, cell_type: GgmlType) -> Floats:
        """What is left of values that are stored in a type."""
        with self._context(values, values) as context:
            stored = self._tensor(context, values, cell_type)
            node = self._ggml.ggml_cast(context, stored, GgmlType.F32)
            return self._computing(context, [node], values.shape)(1)

    @contextmanager
    def _context(self, *values: Floats | None) -> Iterator[int]:
        data_bytes = sum(4 * array.size for array in values if array is not None)
        with self._memory(2 * data_bytes + _OVERHEAD_BYTES) as context:
            yield context

    @contextmanager
    def _memory(self, num_bytes: int, *, holds_data: bool = True) -> Iterator[int]:
        """`holds_data`: that of its tensors, too."""
        context = self._ggml.ggml_init(_InitParams(num_bytes, None, not holds_data))
        assert context is not None
        try:
            yield context
        finally:
            self._ggml.ggml_free(context)

    def _rows_by_head(self, context: int, values: Floats, kind: GgmlType) -> Any:
        """A view (width, rows, heads) of values whose heads lie beside each other, as in llama.cpp's pool."""
        return self._ggml.ggml_permute(context, self._tensor(context, values, kind), 0, 2, 1, 3)

    def _integers(self, context: int, values: Ints) -> Any:
        tensor = self._new_tensor(context, values.shape, GgmlType.I32)
        self._fill(tensor, values.astype(np.int32))
        return tensor

    def _new_tensor(self, context: int, shape: tuple[int, ...], kind: GgmlType) -> Any:
        sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
        return self._ggml.ggml_new_tensor(context, kind, len(shape), sizes)

    def _tensor(self, context: int, values: Floats, kind: GgmlType) -> Any:
        tensor = self._new_tensor(context, values.shape, kind)
        if kind is GgmlType.F32:
            self._fill(tensor, values)
        else:
            source, data = np.ascontiguousarray(values, np.float32), self._ggml.ggml_get_data(tensor)
            rows, width = source.size // values.shape[-1], values.shape[-1]
            self._ggml.ggml_quantize_chunk(kind, source.ctypes.data, data, 0, rows, width, None)
        return tensor

    def _fill(self, tensor: Any, values: npt.NDArray[Any]) -> None:
        source = np.ascontiguousarray(values)
        ctypes.memmove(self._ggml.ggml_get_data(tensor), source.ctypes.data, source.nbytes)

    def _values(self, tensor: Any, shape: tuple[int, ...]) -> Floats:
        values = (ctypes.c_float * math.prod(shape)).from_address(self._ggml.ggml_get_data(tensor))
        return np.array(values, np.float32).reshape(shape)

    def _copy(self, context: int, tensor: Any) -> Any:
        """Another tensor of the same content: quantising takes far longer."""
        copy = self._ggml.ggml_dup_tensor(context, tensor)
        get_data, num_bytes = self._ggml.ggml_get_data, self._ggml.ggml_nbytes(tensor)
        ctypes.memmove(get_data(copy), get_data(tensor), num_bytes)
        return copy

    def _computing(self, context: int, nodes: list[Any], shape: tuple[int, ...]) -> Computing:
        run = self._running(context, nodes)

        def compute(threads: int) -> Floats:
            run(threads)
            return self._values(nodes[-1], shape)

        return compute

    def _running(self, context: int, nodes: list[Any]) -> Callable[[int], None]:
        """Computes the nodes as llama.cpp does: whole graphs pass by our library too."""
        graph = self._ggml.ggml_new_graph(context)
        for node in nodes:
            self._ggml.ggml_build_forward_expand(graph, node)

        def run(threads: int) -> None:
            self._ggml.ggml_backend_cpu_set_n_threads(self._backend, threads)
            status = self._ggml.ggml_backend_graph_compute(self._backend, graph)
            assert status == 0, f"ggml could not compute a graph: {status}"

        return run

    def _declare(self) -> None:
        pointer, integer, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
        sizes = ctypes.POINTER(ctypes.c_int64)
        chunk = [integer, pointer, pointer, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer]
        for name, result, arguments in (
            ("ggml_init", pointer, [_InitParams]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor", pointer, [pointer, integer, integer, sizes]),
            ("ggml_permute", pointer, [pointer, pointer, *4 * [integer]]),
            ("ggml_cast", pointer, [pointer, pointer, integer]),
            ("ggml_mul_mat", pointer, 3 * [pointer]),
            ("ggml_mul_mat_id", pointer, 4 * [pointer]),
            ("ggml_flash_attn_ext", pointer, [*5 * [pointer], *3 * [number]]),
            ("ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
            ("ggml_quantize_chunk", ctypes.c_size_t, chunk),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_dup_tensor", pointer, [pointer, pointer]),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_get_rows", pointer, 3 * [pointer]),
            ("ggml_reshape_4d", pointer, [pointer, pointer, *4 * [ctypes.c_int64]]),
            ("ggml_view_3d", pointer, [pointer, pointer, *3 * [ctypes.c_int64], *3 * [ctypes.c_size_t]]),
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
        ):
            function = getattr(self._ggml, name)
            function.restype, function.argtypes = result, arguments


class _InitParams(ctypes.Structure):
    """`ggml_init_params` of ggml.h."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )
