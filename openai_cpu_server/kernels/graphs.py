"""Single operations as graphs of ggml, through its C API: what kernels are compared on."""

from __future__ import annotations

import ctypes
import enum
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Computing = Callable[[int], Floats]
"""Computes an operation with a number of threads."""

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
    BF16 = 30


PRODUCT_TYPES = tuple(kind for kind in GgmlType if kind.name.startswith("Q"))
"""The types of weights whose products we compute: all of these that quantise."""


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
    weights: Floats
    """(outputs, depth)"""
    activations: Floats
    """(rows, depth)"""
    weight_type: GgmlType


class GgmlGraphs:
    """Computes single operations. Threads are those of ggml."""

    def __init__(self, ggml: ctypes.CDLL) -> None:
        """`ggml`: the library that llama_cpp has loaded."""
        self._ggml = ggml
        self._graph_compute = ctypes.CDLL(None).ggml_graph_compute
        """As ggml's own calls find it: ours may stand in front."""
        self._graph_compute.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Plan)]
        self._declare()

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
        """(rows, outputs), by `ggml_mul_mat`."""
        with self.multiplying(case) as compute:
            return compute(threads)

    @contextmanager
    def multiplying(self, case: ProductCase, *, copies: int = 1) -> Iterator[Computing]:
        """The same as often as one likes, with one copy of the weights after another each time."""
        shape = len(case.activations), len(case.weights)
        results = np.empty((copies, *shape), np.float32)
        with self._context(*copies * [case.weights], case.activations, results) as context:
            activations = self._tensor(context, case.activations, GgmlType.F32)
            first = self._tensor(context, case.weights, case.weight_type)
            weights = [first, *(self._copy(context, first) for _ in range(copies - 1))]
            nodes = [self._ggml.ggml_mul_mat(context, one, activations) for one in weights]
            yield self._computing(context, nodes, shape)

    def as_stored(self, values: Floats, cell_type: GgmlType) -> Floats:
        """What is left of values that are stored in a type."""
        with self._context(values, values) as context:
            stored = self._tensor(context, values, cell_type)
            node = self._ggml.ggml_cast(context, stored, GgmlType.F32)
            return self._computing(context, [node], values.shape)(1)

    @contextmanager
    def _context(self, *values: Floats | None) -> Iterator[int]:
        data_bytes = sum(4 * array.size for array in values if array is not None)
        context = self._ggml.ggml_init(_InitParams(2 * data_bytes + _OVERHEAD_BYTES, None, False))
        assert context is not None
        try:
            yield context
        finally:
            self._ggml.ggml_free(context)

    def _rows_by_head(self, context: int, values: Floats, kind: GgmlType) -> Any:
        """A view (width, rows, heads) of values whose heads lie beside each other, as in llama.cpp's pool."""
        return self._ggml.ggml_permute(context, self._tensor(context, values, kind), 0, 2, 1, 3)

    def _tensor(self, context: int, values: Floats, kind: GgmlType) -> Any:
        sizes = (ctypes.c_int64 * values.ndim)(*reversed(values.shape))
        tensor = self._ggml.ggml_new_tensor(context, kind, values.ndim, sizes)
        self._store(tensor, values, kind)
        return tensor

    def _store(self, tensor: Any, values: Floats, kind: GgmlType) -> None:
        source, data = np.ascontiguousarray(values, np.float32), self._ggml.ggml_get_data(tensor)
        if kind is GgmlType.F32:
            ctypes.memmove(data, source.ctypes.data, source.nbytes)
        else:
            rows, width = source.size // values.shape[-1], values.shape[-1]
            self._ggml.ggml_quantize_chunk(kind, source.ctypes.data, data, 0, rows, width, None)

    def _copy(self, context: int, tensor: Any) -> Any:
        """Another tensor of the same content: quantising takes far longer."""
        copy = self._ggml.ggml_dup_tensor(context, tensor)
        get_data, num_bytes = self._ggml.ggml_get_data, self._ggml.ggml_nbytes(tensor)
        ctypes.memmove(get_data(copy), get_data(tensor), num_bytes)
        return copy

    def _computing(self, context: int, nodes: list[Any], shape: tuple[int, ...]) -> Computing:
        graph = self._ggml.ggml_new_graph(context)
        for node in nodes:
            self._ggml.ggml_build_forward_expand(graph, node)
        values = (ctypes.c_float * math.prod(shape)).from_address(self._ggml.ggml_get_data(nodes[-1]))

        def compute(threads: int) -> Floats:
            plan = self._ggml.ggml_graph_plan(graph, threads, None)
            scratch = ctypes.create_string_buffer(plan.work_size)
            plan.work_data = ctypes.addressof(scratch)
            status = self._graph_compute(graph, ctypes.byref(plan))
            assert status == 0, f"ggml could not compute a graph: {status}"
            return np.array(values, np.float32).reshape(shape)

        return compute

    def _declare(self) -> None:
        pointer, integer, number = ctypes.c_void_p, ctypes.c_int, ctypes.c_float
        sizes = ctypes.POINTER(ctypes.c_int64)
        chunk = [integer, pointer, pointer, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, pointer]
        for name, result, arguments in (
            ("ggml_init", pointer, [_InitParams]),
            ("ggml_free", None, [pointer]),
            ("ggml_new_tensor", pointer, [pointer, integer, integer, sizes]),
            ("ggml_permute", pointer, [pointer, pointer, *4 * [integer]]),
            ("ggml_view_3d", pointer, [*2 * [pointer], *3 * [ctypes.c_int64], *3 * [ctypes.c_size_t]]),
            ("ggml_row_size", ctypes.c_size_t, [integer, ctypes.c_int64]),
            ("ggml_cast", pointer, [pointer, pointer, integer]),
            ("ggml_mul_mat", pointer, 3 * [pointer]),
            ("ggml_flash_attn_ext", pointer, [*5 * [pointer], *3 * [number]]),
            ("ggml_flash_attn_ext_add_sinks", None, [pointer, pointer]),
            ("ggml_quantize_chunk", ctypes.c_size_t, chunk),
            ("ggml_get_data", pointer, [pointer]),
            ("ggml_dup_tensor", pointer, [pointer, pointer]),
            ("ggml_nbytes", ctypes.c_size_t, [pointer]),
            ("ggml_new_graph", pointer, [pointer]),
            ("ggml_build_forward_expand", None, [pointer, pointer]),
            ("ggml_graph_plan", _Plan, [pointer, integer, pointer]),
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


class _Plan(ctypes.Structure):
    """`ggml_cplan` of ggml-cpu.h."""

    _fields_ = (
        ("work_size", ctypes.c_size_t),
        ("work_data", ctypes.c_void_p),
        ("n_threads", ctypes.c_int),
        ("threadpool", ctypes.c_void_p),
        ("abort_callback", ctypes.c_void_p),
        ("abort_callback_data", ctypes.c_void_p),
        ("use_ref", ctypes.c_bool),
    )
