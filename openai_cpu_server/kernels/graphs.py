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
Ints = npt.NDArray[np.int32]
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


class GgmlGraphs:
    """Computes single operations. Threads are those of ggml."""

    def __init__(self, ggml: ctypes.CDLL) -> None:
        """`ggml`: the library that llama_cpp has loaded."""
        self._ggml = ggml
        self._declare()

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
        source = np.ascontiguousarray(values, np.int32)
        ctypes.memmove(self._ggml.ggml_get_data(tensor), source.ctypes.data, source.nbytes)
        return tensor

    def _new_tensor(self, context: int, shape: tuple[int, ...], kind: int) -> Any:
        sizes = (ctypes.c_int64 * len(shape))(*reversed(shape))
        return self._ggml.ggml_new_tensor(context, kind, len(shape), sizes)

    def _tensor(self, context: int, values: Floats, kind: GgmlType) -> Any:
        tensor = self._new_tensor(context, values.shape, kind)
        source, data = np.ascontiguousarray(values, np.float32), self._ggml.ggml_get_data(tensor)
        if kind is GgmlType.F32:
            ctypes.memmove(data, source.ctypes.data, source.nbytes)
        else:
            rows, width = source.size // values.shape[-1], values.shape[-1]
            self._ggml.ggml_quantize_chunk(kind, source.ctypes.data, data, 0, rows, width, None)
        return tensor

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
            status = self._ggml.ggml_graph_compute(graph, ctypes.byref(plan))
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
            ("ggml_graph_plan", _Plan, [pointer, integer, pointer]),
            ("ggml_graph_compute", integer, [pointer, ctypes.POINTER(_Plan)]),
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
