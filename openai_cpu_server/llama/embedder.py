"""Implementation of the contract's `EmbedBackend`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from openai_cpu_server.contract.embedding import EmbedResult
from openai_cpu_server.contract.media import not_taken
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import EmbeddingFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import AbortSwitch, OwnedContext, TokenBatch, common_params
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, model_kind, pooling_type, total_bytes
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.loading import WeightsPlan, switch_kernels
from openai_cpu_server.llama.measure.layout import chosen_layout, use_layout
from openai_cpu_server.llama.model.kv_size import SLOTS_MAX, embedding_tokens, longest_input
from openai_cpu_server.llama.model.model import Model, native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.offload.choice import chosen_places

INPUTS_MAX = SLOTS_MAX


class PoolingContext(OwnedContext):
    """Context of isolated sequences. An encoder keeps no cells and needs all inputs at once; a causal model
    has cells for one step."""

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
        params = common_params(flash_attention=flash_attention)
        params.n_ctx = params.n_batch = params.n_ubatch = step_tokens
        params.n_seq_max = INPUTS_MAX
        params.n_threads = params.n_threads_batch = threads
        params.embeddings = True
        params.offload_kqv = cells_beside_layers
        if pooling_type(model.header) is not None:
            params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_UNSPECIFIED
        elif model.generates_text:  # only the last token has seen all
            params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_LAST
        else:
            params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_MEAN
        super().__init__(model, params, abort, ComputeThreads(threads))
        self._batch = TokenBatch(step_tokens)
        ranks = llama_cpp.llama_pooling_type(self.handle) == llama_cpp.LLAMA_POOLING_TYPE_RANK
        size_of = llama_cpp.llama_model_n_cls_out if ranks else llama_cpp.llama_model_n_embd_out
        self.row_size = int(size_of(model.handle))

    @property
    def step_tokens(self) -> int:
        return self._batch.capacity

    def compute(self, inputs: Sequence[tuple[int, ...]]) -> bool:
        """Return False if interrupted. Raises `EmbeddingFailed`; the context stays usable."""
        assert 0 < len(inputs) <= INPUTS_MAX
        # An output for every token: pooling reads them all.
        spans = [Span(slot, 0, tokens, sample=False, targets=tokens) for slot, tokens in enumerate(inputs)]
        self._batch.fill(spans)
        log = native_log().cleared()
        if self._memory is None:
            code = self._run(llama_cpp.llama_encode, self._batch)
        else:
            code = self._run(llama_cpp.llama_decode, self._batch)
            llama_cpp.llama_memory_clear(self._memory, False)
        if code in (0, 2):
            return code == 0
        raise EmbeddingFailed(f"llama.cpp returned {code}: {log.cause() or 'no reason given'}.")

    def rows(self, count: int) -> bytes:
        """Return float32 rows of `row_size` bytes each."""
        size = self.row_size * ctypes.sizeof(ctypes.c_float)
        return b"".join(
            ctypes.string_at(llama_cpp.llama_get_embeddings_seq(self.handle, slot), size)
            for slot in range(count)
        )


@dataclass(eq=False)
class LlamaEmbedder:
    """Owner of model and context. Not thread-safe except for `interrupt`."""

    model: Model
    context: PoolingContext
    abort: AbortSwitch
    info: ModelInfo
    measure = staticmethod(not_taken)

    @classmethod
    def load_cold(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaEmbedder:
        machine = machine or Machine()
        header = GgufHeader(Path(options.model_path))
        with ExitStack() as undo:
            kernels = switch_kernels(options.kernels, pause=lambda: on_progress(0.0))
            memory = machine.free_memory()
            free_bytes = max(0, memory - total_bytes(model_files(header)))
            layout = chosen_layout(options, header, kernels, pause=lambda: on_progress(0.0))
            plan = WeightsPlan(header, layout, chosen_places(options, memory))
            use_layout(layout, kernels)
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
            kind, labels = model_kind(header), []
            if kind is ModelKind.RERANKS:
                label = llama_cpp.llama_model_cls_label
                labels = [label(model.handle, index) for index in range(context.row_size)]
            info = ModelInfo(
                path=str(model.path),
                description=model.description,
                architecture=header.architecture,
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
                weights=plan.layout,
                placement=plan.places.placement,
                kind=kind,
                embedding_size=context.row_size,
                # No names unless the file names all classes.
                labels=() if None in labels else tuple(name.decode(errors="replace") for name in labels),
                max_input_tokens=max_input,
            )
            undo.pop_all()
        return cls(model, context, abort, info)

    def warm_up(self) -> bool:
        """Make all memory resident. Return False if interrupted."""
        token, count = min(1, self.info.vocab_size - 1), self.info.max_input_tokens
        with self.abort.armed():
            return self.context.compute([(token,) * count])

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Compute rows. Raises `EmbeddingFailed`; the embedder stays usable."""
        most = self.info.max_step_tokens
        assert sum(map(len, inputs)) <= most, f"more than {most} tokens in a step"
        with self.abort.armed():
            if not self.context.compute(inputs):
                return EmbedResult(interrupted=True)
        rows = self.context.rows(len(inputs))
        if not np.isfinite(np.frombuffer(rows, np.float32)).all():
            raise EmbeddingFailed("The embedding has values that are not numbers.")
        return EmbedResult(rows)

    @property
    def threads(self) -> ComputeThreads:
        return self.context.compute_threads

    def interrupt(self) -> None:
        self.abort.press()

    def close(self) -> None:
        self.context.close()
        self.model.close()
