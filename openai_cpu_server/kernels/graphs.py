"""Single operations as graphs of ggml, through its C API: what kernels are compared on."""

from __future__ import annotations

import ctypes
import enum
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Packed = npt.NDArray[np.uint8]
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


class _Block(NamedTuple):
    num_weights: int
    num_bytes: int
    halves: tuple[int, ...] = (0,)
    """Where numbers in half precision stand."""


_BLOCKS = {
    GgmlType.F16: _Block(32, 64, tuple(range(0, 64, 2))),
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
    GgmlType.BF16: _Block(32, 64, ()),
    GgmlType.MXFP4: _Block(32, 17, ()),
}

PRODUCT_TYPES = tuple(_BLOCKS)
"""The types of weights whose products we compute, if `KernelLibrary.multiplies` them on this CPU."""


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
    """(outputs, bytes of a row): bytes of a range, with scales of about `size`.

    To quantise numbers would take far longer than their product, and some types need an importance matrix.
    """
    if kind is GgmlType.BF16:
        numbers = np.float32(size) * random.standard_normal((outputs, depth), np.float32)
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    block = _BLOCKS[kind]
    shape = (outputs, depth // block.num_weights, block.num_bytes)
    packed = random.integers(bytes_of.start, bytes_of.stop, shape, np.uint8)
    for place in block.halves:
        scales = size * random.uniform(0.5, 1, packed.shape[:2]) * random.choice([-1, 1], packed.shape[:2])
        packed[..., place : place + 2] = scales.astype(np.float16)[..., None].view(np.uint8)
    if kind is GgmlType.MXFP4:
        packed[..., 0] = random.integers(126, 130, packed.shape[:2]) + round(math.log2(size))
    return packed.reshape(outputs, -1)


class AttentionCase(msgspec.Struct, frozen=True, kw_only=True):
    q: Floats
    """(rows, heads, width of keys)"""
    k: Floats
    """(cells, heads of keys and values, width of keys)"""
    v: Floats
    """(cells, heads of keys and values, width of values)"""
    mask: Floats | None
    """(rows, cells): 0, -inf, or something to add."""
    cell_type: GgmlType = GgmlType.F16
    value_type: GgmlType | None = None
    """None: as the keys."""
    values_in_keys: bool = False
    """Whether values are a view of the first numbers of the keys, which they must be equal to."""
    scale: float = 1.0
    max_bias: float = 0.0
    """ALiBi's; 0: none."""
    soft_cap: float = 0.0
    sinks: Floats | None = None
    """(heads,)"""


class ProductCase(msgspec.Struct, frozen=True, kw_only=True):
    weights: Packed
    """(outputs, bytes of a row), as the type stores them; of experts, or of batches, (experts, outputs,
    bytes)"""
    activations: Floats
    """(rows, depth); of experts (tokens, slots or 1, depth), of batches (batches, rows, depth), where the
    batches are a multiple of those of the weights."""
    weight_type: GgmlType
    experts: Ints | None = None
    """(tokens, slots): the expert that each slot of a token has."""

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """(outputs, depth), or (experts, outputs, depth)."""
        return *self.weights.shape[:-1], self.activations.shape[-1]

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
    def attending(self, *cases: AttentionCase) -> Iterator[Computing]:
        """The same as often as one likes; of several in one graph, as of layers, the last one's result.

        Tensors are laid out as llama.cpp does it. Cases that have the same mask, not only an equal one, share
        its tensor, and masks are stored anew each time, as in steps.
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

            yield compute_step

    def _attention(self, context: int, case: AttentionCase, mask: Any) -> Any:
        q = self._rows_by_head(context, case.q, GgmlType.F32)
        k = self._rows_by_head(context, case.k, case.cell_type)
        if case.values_in_keys:
            v = self._first_numbers(context, k, case)
        else:
            v = self._rows_by_head(context, case.v, case.value_type or case.cell_type)
        node = self._ggml.ggml_flash_attn_ext(
            context, q, k, v, mask, case.scale, case.max_bias, case.soft_cap
        )
        if case.sinks is not None:
            sinks = self._tensor(context, case.sinks, GgmlType.F32)
            self._ggml.ggml_flash_attn_ext_add_sinks(node, sinks)
        return node

    def _first_numbers(self, context: int, keys: Any, case: AttentionCase) -> Any:
        cells, heads, width = case.v.shape
        row_bytes = self._ggml.ggml_row_size(case.cell_type, case.k.shape[2])
        return self._ggml.ggml_view_3d(context, keys, width, cells, heads, heads * row_bytes, row_bytes, 0)

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
            first = self._packed(context, case)
            weights = [first, *(self._copy(context, first) for _ in range(copies - 1))]
            if case.experts is None:
                nodes = [self._ggml.ggml_mul_mat(context, one, activations) for one in weights]
            else:
                experts = self._stored(context, case.experts, case.experts.shape, GgmlType.I32)
                nodes = [self._ggml.ggml_mul_mat_id(context, one, activations, experts) for one in weights]
            yield self._computing(context, nodes, case.shape)

    @contextmanager
    def multiplying_each(self, cases: Sequence[ProductCase]) -> Iterator[Computing]:
        """Several products in one graph, for to begin one takes longer than a small product. Their results
        are told one behind the other, without a shape."""
        arrays = [array for case in cases for array in (case.weights, case.activations)]
        with self._context(*arrays, *(np.empty(case.shape, np.float32) for case in cases)) as context:
            nodes = [
                self._ggml.ggml_mul_mat(
                    context,
                    self._packed(context, case),
                    self._tensor(context, case.activations, GgmlType.F32),
                )
                for case in cases
            ]
            run = self._running(context, nodes)
            results = [self._result(node, case.shape) for node, case in zip(nodes, cases, strict=True)]

            def compute(threads: int) -> Floats:
                run(threads)
                return np.concatenate([result.ravel() for result in results])

            yield compute

    def unpacked(self, case: ProductCase) -> Floats:
        """What the weights stand for."""
        shape = case.weight_shape
        with self._context(case.weights, np.empty(shape, np.float32)) as context:
            node = self._ggml.ggml_cast(context, self._packed(context, case), GgmlType.F32)
            return self._computing(context, [node], shape)(1)

    @contextmanager
    def recurring(self, case: RecurrentCase) -> Iterator[Computing]:
        """The same as often as one likes, from the same states each time. Nodes are those of llama.cpp."""
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
    def _context(self, *values: Floats | Packed | None) -> Iterator[int]:
        data_bytes = sum(array.nbytes for array in values if array is not None)
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

    def _packed(self, context: int, case: ProductCase) -> Any:
        return self._stored(context, case.weights, case.weight_shape, case.weight_type)

    def _stored(self, context: int, data: npt.NDArray[Any], shape: tuple[int, ...], kind: GgmlType) -> Any:
        """`data`: as the type has it."""
        tensor = self._new_tensor(context, shape, kind)
        self._fill(tensor, data)
        return tensor

    def _fill(self, tensor: Any, values: npt.NDArray[Any]) -> None:
        source = np.ascontiguousarray(values)
        assert self._ggml.ggml_nbytes(tensor) == source.nbytes
        ctypes.memmove(self._ggml.ggml_get_data(tensor), source.ctypes.data, source.nbytes)

    def _copy(self, context: int, tensor: Any) -> Any:
        """Another tensor of the same content."""
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
        """A view of what was computed last."""
        values = (ctypes.c_float * math.prod(shape)).from_address(self._ggml.ggml_get_data(node))
        return np.ctypeslib.as_array(values).reshape(shape)

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
            ("ggml_row_size", ctypes.c_size_t, [integer, ctypes.c_int64]),
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
