"""Implementation of the contract's `EmbedBackend` with llama.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from openai_cpu_server.contract.embedding import EmbedResult
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize, not_taken
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Kernels, ModelInfo, ModelKind
from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import EmbeddingFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.batch import TokenBatch
from openai_cpu_server.llama.cells.context import (
    AbortSwitch,
    DecodeOutcome,
    OwnedContext,
    common_params,
)
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, model_kind, pooling_type, total_bytes
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.loading import ModelPlan, switch_kernels
from openai_cpu_server.llama.measure.layout import leave_to_ggml
from openai_cpu_server.llama.model.kv_size import SLOTS_MAX, embedding_tokens, longest_input
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary

INPUTS_MAX = SLOTS_MAX
"""Inputs of one step, each a sequence."""


class PoolingContext(OwnedContext):
    """Computes inputs together as isolated sequences.

    An encoder keeps no memory of tokens, and needs the inputs of a step at once. A causal model has cells for
    one step.
    """

    def __init__(
        self,
        model: Model,
        abort: AbortSwitch,
        *,
        step_tokens: int,
        threads: int,
        flash_attention: bool,
        cells_beside_layers: bool = False,
    ) -> None:
        """`step_tokens`: most tokens of one step. Raises `StartupError`."""
        params = common_params(flash_attention=flash_attention)
        params.n_ctx = params.n_batch = params.n_ubatch = step_tokens
        params.n_seq_max = INPUTS_MAX
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True
        params.offload_kqv = cells_beside_layers
        params.pooling_type = _pooling(model)
        super().__init__(model, params, abort, ComputeThreads(threads))
        self._batch = TokenBatch(step_tokens)
        self.row_size = _row_size(model, self.handle)

    @property
    def step_tokens(self) -> int:
        return self._batch.capacity

    def compute(self, inputs: Sequence[tuple[int, ...]]) -> DecodeOutcome:
        """Compute the rows of these inputs. Raises `EmbeddingFailed`; the context stays usable."""
        assert 0 < len(inputs) <= INPUTS_MAX
        # An output for every token: pooling reads them all.
        spans = [Span(slot, 0, tokens, sample=False, targets=tokens) for slot, tokens in enumerate(inputs)]
        self._batch.fill(spans)
        log = native_log().cleared()
        with self._computing():
            code = self._compute()
        if code == 0:
            return DecodeOutcome.DONE
        if code == 2:
            return DecodeOutcome.INTERRUPTED
        raise EmbeddingFailed(f"llama.cpp returned {code}: {log.cause() or 'no reason given'}.")

    def rows(self, count: int) -> bytes:
        """Rows of the first `count` inputs: float32, `row_size` each."""
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


def _pooling(model: Model) -> int:
    """Without a type in the file, an encoder's vectors are averaged, and a causal model's last token is
    the only one that has seen all."""
    if pooling_type(model.header) is not None:
        return int(llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED)
    is_causal = model.generates_text
    return int(llama_cpp.LLAMA_POOLING_TYPE_LAST if is_causal else llama_cpp.LLAMA_POOLING_TYPE_MEAN)


def _row_size(model: Model, handle: object) -> int:
    if llama_cpp.llama_pooling_type(handle) == llama_cpp.LLAMA_POOLING_TYPE_RANK:
        return int(llama_cpp.llama_model_n_cls_out(model.handle))
    return int(llama_cpp.llama_model_n_embd_out(model.handle))


def _labels(model: Model, count: int) -> tuple[str, ...]:
    """Names of the classes, or () if the file does not name them."""
    if model_kind(model.header) is not ModelKind.RERANKS:
        return ()
    found = [llama_cpp.llama_model_cls_label(model.handle, index) for index in range(count)]
    return () if None in found else tuple(label.decode(errors="replace") for label in found)


class LlamaEmbedder:
    """Owns model and context. Not thread-safe except for `interrupt`."""

    def __init__(self, model: Model, context: PoolingContext, abort: AbortSwitch, info: ModelInfo) -> None:
        """Take ownership of `model` and `context`."""
        self.info = info
        self._model = model
        self._context = context
        self._abort = abort

    @classmethod
    def load_cold(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaEmbedder:
        """Load a model. Raises `StartupError` with one line; then nothing stays loaded."""
        machine = machine or Machine()
        header = GgufHeader(Path(options.model_path))
        with ExitStack() as undo:
            kernels = switch_kernels(options.kernels, pause=lambda: on_progress(0.0))
            memory = machine.free_memory()
            free_bytes = max(0, memory - total_bytes(model_files(header)))
            plan = ModelPlan.of(header, options, kernels, memory, pause=lambda: on_progress(0.0))
            leave_to_ggml(plan.weights, kernels)
            model = plan.open(options, on_progress)
            undo.callback(model.close)
            vocabulary = Vocabulary(model)
            max_input = longest_input(options, model.context_trained, vocabulary.vocab_size, free_bytes)
            abort = AbortSwitch()
            context = PoolingContext(
                model,
                abort,
                step_tokens=embedding_tokens(max_input),
                threads=options.threads_batch or options.threads or machine.num_threads(),
                flash_attention=options.flash_attention,
                cells_beside_layers=plan.places.cells_beside_layers,
            )
            undo.callback(context.close)
            info = _info(model, vocabulary, context, max_input, kernels, plan)
            undo.pop_all()
        return cls(model, context, abort, info)

    def warm_up(self) -> bool:
        """Compute a step of the largest size, so that all memory is resident. Return False if interrupted."""
        token, count = min(1, self.info.vocab_size - 1), self.info.max_input_tokens
        with self._abort.armed():
            return self._context.compute([(token,) * count]) is not DecodeOutcome.INTERRUPTED

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Return the rows of these inputs. Raises `EmbeddingFailed`; the embedder stays usable."""
        most = self.info.max_step_tokens
        assert sum(map(len, inputs)) <= most, f"more than {most} tokens in a step"
        with self._abort.armed():
            if self._context.compute(inputs) is DecodeOutcome.INTERRUPTED:
                return EmbedResult(interrupted=True)
        rows = self._context.rows(len(inputs))
        if not np.isfinite(np.frombuffer(rows, np.float32)).all():
            raise EmbeddingFailed("What came of it are no numbers.")
        return EmbedResult(rows)

    @property
    def threads(self) -> ComputeThreads:
        return self._context.compute_threads

    def interrupt(self) -> None:
        self._abort.press()

    def measure(self, size: MediaSize) -> MeasuredMedia:
        return not_taken(size)

    def close(self) -> None:
        self._context.close()
        self._model.close()


def _info(
    model: Model,
    vocabulary: Vocabulary,
    context: PoolingContext,
    max_input: int,
    kernels: Kernels,
    plan: ModelPlan,
) -> ModelInfo:
    return ModelInfo(
        path=str(model.path),
        description=model.description,
        architecture=model.header.architecture,
        num_parameters=model.num_parameters,
        file_bytes=model.file_bytes,
        vocab_size=vocabulary.vocab_size,
        context_trained=model.context_trained or max_input,
        kv_tokens=0,
        kv_bytes_per_token=0,
        kv_type="f16",
        max_seqs=INPUTS_MAX,
        max_step_tokens=context.step_tokens,
        max_step_outputs=INPUTS_MAX,
        threads=context.threads,
        end_tokens=vocabulary.end_tokens,
        kernels=kernels,
        weights=plan.weights,
        placement=plan.places.placement,
        kind=model_kind(model.header),
        embedding_size=context.row_size,
        labels=_labels(model, context.row_size),
        max_input_tokens=max_input,
    )
