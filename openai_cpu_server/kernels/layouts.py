"""Products of a file's weights as ggml graphs, plain and repacked, to measure which is faster."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import numpy as np

from openai_cpu_server.kernels.graphs import GgmlGraphs
from openai_cpu_server.kernels.tensors import OVERHEAD_BYTES, Computing, GgmlType

_CPU = 0


class StoredWeights(msgspec.Struct, frozen=True, kw_only=True):
    """Matrix, or several experts' matrices, in bytes of a file."""

    type: int
    """`ggml_type`."""
    depth: int
    outputs: int
    num_experts: int | None = None
    """Experts, to which rows go in turn (`ggml_mul_mat_id`), or None for one matrix (`ggml_mul_mat`)."""
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
        """Products of unchanged weights, by number of rows."""
        with self._room(weights, rows, len(weights.data)) as context:
            tensor = self._new_tensor(context, weights.shape, weights.type)
            ctypes.memmove(self._ggml.ggml_get_data(tensor), weights.data, len(weights.data))
            yield {count: self._multiplying(context, weights, tensor, count) for count in rows}

    @contextmanager
    def repacked(
        self, weights: StoredWeights, rows: Sequence[int]
    ) -> Iterator[Mapping[int, Computing] | None]:
        """Products of weights repacked as at load, or None if ggml does not repack them."""
        with ExitStack() as stack:
            context = stack.enter_context(self._room(weights, rows, 0))
            owner = stack.enter_context(self._memory(OVERHEAD_BYTES, holds_data=False))
            for layout in self._layouts():
                tensor = self._new_tensor(owner, weights.shape, weights.type)
                stack.callback(self._ggml.ggml_backend_buffer_free, self._stored_in(layout, tensor))
                if self._is_for(context, weights, tensor):
                    self._ggml.ggml_backend_tensor_set(tensor, weights.data, 0, len(weights.data))
                    yield {count: self._multiplying(context, weights, tensor, count) for count in rows}
                    return
            yield None

    def _layouts(self) -> Iterator[int]:
        """Buffer types that llama.cpp tries on the CPU, in its order."""
        device = self._ggml.ggml_backend_dev_by_type(_CPU)
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

    def _is_for(self, context: int, weights: StoredWeights, tensor: Any) -> bool:
        """llama.cpp makes the same test."""
        device = self._ggml.ggml_backend_dev_by_type(_CPU)
        return bool(self._ggml.ggml_backend_dev_supports_op(device, self._node(context, weights, tensor, 1)))

    def _multiplying(self, context: int, weights: StoredWeights, tensor: Any, rows: int) -> Computing:
        shape = rows * (weights.num_experts or 1), weights.outputs
        return self._computing(context, [self._node(context, weights, tensor, rows)], shape)

    def _node(self, context: int, weights: StoredWeights, tensor: Any, rows: int) -> Any:
        """`rows`: rows per expert."""
        count = rows * (weights.num_experts or 1)
        values = np.random.default_rng(0).standard_normal((count, weights.depth), np.float32)
        if weights.num_experts is None:
            return self._ggml.ggml_mul_mat(context, tensor, self._tensor(context, values, GgmlType.F32))
        activations = self._tensor(context, values.reshape(count, 1, weights.depth), GgmlType.F32)
        chosen = np.arange(count, dtype=np.int32)[:, None] % weights.num_experts
        return self._ggml.ggml_mul_mat_id(context, tensor, activations, self._integers(context, chosen))

    @contextmanager
    def _room(self, weights: StoredWeights, rows: Sequence[int], num_bytes: int) -> Iterator[int]:
        values = sum(rows) * (weights.num_experts or 1) * (weights.depth + weights.outputs)
        with self._memory(num_bytes + 4 * values + OVERHEAD_BYTES) as context:
            yield context

    def _declare(self) -> None:
        super()._declare()
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        for name, result, arguments in (
            ("ggml_backend_dev_by_type", pointer, [ctypes.c_int]),
            ("ggml_backend_dev_backend_reg", pointer, [pointer]),
            ("ggml_backend_reg_get_proc_address", pointer, [pointer, ctypes.c_char_p]),
            ("ggml_backend_buft_get_alloc_size", size, [pointer, pointer]),
            ("ggml_backend_buft_alloc_buffer", pointer, [pointer, size]),
            ("ggml_backend_buffer_get_base", pointer, [pointer]),
            ("ggml_backend_buffer_free", None, [pointer]),
            ("ggml_backend_tensor_alloc", ctypes.c_int, 3 * [pointer]),
            ("ggml_backend_tensor_set", None, [pointer, pointer, size, size]),
            ("ggml_backend_dev_supports_op", ctypes.c_bool, 2 * [pointer]),
        ):
            function = getattr(self._ggml, name)
            function.restype, function.argtypes = result, arguments
