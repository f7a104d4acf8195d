"""Owns a `llama_context` that pools: tokens go in, one row of numbers for each input comes out."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import msgspec

from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import EmbeddingFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.abort import AbortSwitch
from openai_cpu_server.llama.cells.batch import Batch
from openai_cpu_server.llama.cells.context import SLOTS_MAX, Decoded, OwnedContext, common_params
from openai_cpu_server.llama.host.cores import Cores
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.native import native_log

INPUTS_MAX = SLOTS_MAX
"""Inputs of one step: each is a sequence of llama.cpp's."""


class PoolingOptions(msgspec.Struct, frozen=True, kw_only=True):
    step_tokens: int
    """The most tokens of all inputs of one step."""
    threads: int
    flash_attention: bool


class PoolingContext(OwnedContext):
    """Computes inputs together, each as a sequence of its own that sees no other.

    An encoder keeps no memory of tokens, and needs a step's inputs at once. A causal model has cells for one
    step; they are free again after it.
    """

    def __init__(self, model: Model, options: PoolingOptions, abort: AbortSwitch, cores: Cores) -> None:
        """Raises `StartupError`."""
        super().__init__(model, _params(model, options), abort, cores)
        self._batch = Batch(options.step_tokens)
        self.row_size = _row_size(model, self.handle)
        """Numbers in the row of an input."""

    def compute(self, inputs: Sequence[tuple[int, ...]]) -> Decoded:
        """Compute the rows of these inputs. Raises `EmbeddingFailed`; the context is as good as before."""
        assert 0 < len(inputs) <= INPUTS_MAX
        # An output for every token: pooling reads them all.
        spans = [Span(slot, 0, tokens, sample=False, targets=tokens) for slot, tokens in enumerate(inputs)]
        self._batch.fill(spans)
        log = native_log()
        log.clear()
        with self._cores.computing():
            code = self._compute()
        if code == 0:
            return Decoded.DONE
        if code == 2:
            return Decoded.INTERRUPTED
        raise EmbeddingFailed(f"llama.cpp returned {code}: {log.cause() or 'no reason given'}.")

    def rows(self, count: int) -> bytes:
        """The rows of the last computation's first `count` inputs: float32, `row_size` each."""
        size = self.row_size * ctypes.sizeof(ctypes.c_float)
        return b"".join(
            ctypes.string_at(llama_cpp.llama_get_embeddings_seq(self.handle, slot), size)
            for slot in range(count)
        )

    def _compute(self) -> int:
        if self._memory is None:
            return int(llama_cpp.llama_encode(self.handle, self._batch.native))
        try:
            return int(llama_cpp.llama_decode(self.handle, self._batch.native))
        finally:
            llama_cpp.llama_memory_clear(self._memory, False)


def _params(model: Model, options: PoolingOptions) -> llama_cpp.llama_context_params:
    params = common_params(flash_attention=options.flash_attention)
    params.n_ctx = params.n_batch = params.n_ubatch = options.step_tokens
    params.n_seq_max = INPUTS_MAX
    params.n_threads = params.n_threads_batch = options.threads
    params.embeddings = True
    params.pooling_type = _pooling(model)
    return params


def _pooling(model: Model) -> int:
    """What the file says. Where it says nothing an encoder's vectors are meant to be averaged, and a causal
    model's last token is the only one that has seen all."""
    header = model.header
    if header.get_int(header.for_architecture("pooling_type")):
        return int(llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED)
    is_causal = model.generates_text
    return int(llama_cpp.LLAMA_POOLING_TYPE_LAST if is_causal else llama_cpp.LLAMA_POOLING_TYPE_MEAN)


def _row_size(model: Model, handle: object) -> int:
    if llama_cpp.llama_pooling_type(handle) == llama_cpp.LLAMA_POOLING_TYPE_RANK:
        return int(llama_cpp.llama_model_n_cls_out(model.handle))
    return int(llama_cpp.llama_model_n_embd_out(model.handle))
