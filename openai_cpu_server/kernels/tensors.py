"""Tensors and graphs of ggml, through its C API."""

from __future__ import annotations

import ctypes
import enum
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int32]
Packed = npt.NDArray[np.uint8]
Computing = Callable[[int], Floats]
"""Computes an operation with a number of threads."""

OVERHEAD_BYTES = 4 << 20
"""Graph, tensor headers, and ggml's scratch for a few threads."""


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


class GgmlTensors:
    def __init__(self, ggml: ctypes.CDLL) -> None:
        """`ggml`: loaded by llama_cpp."""
        self._ggml = ggml
        self._declare()
        self._backend = ggml.ggml_backend_cpu_init()
        weakref.finalize(self, ggml.ggml_backend_free, self._backend)

    def as_stored(self, values: Floats, cell_type: GgmlType) -> Floats:
        """Return values after rounding to a storage type."""
        with self._context(values, values) as context:
            stored = self._tensor(context, values, cell_type)
            node = self._ggml.ggml_cast(context, stored, GgmlType.F32)
            return self._computing(context, [node], values.shape)(1)

    @contextmanager
    def _context(self, *values: Floats | Packed | None) -> Iterator[int]:
        data_bytes = sum(array.nbytes for array in values if array is not None)
        with self._memory(2 * data_bytes + OVERHEAD_BYTES) as context:
            yield context

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


class _InitParams(ctypes.Structure):
    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))
