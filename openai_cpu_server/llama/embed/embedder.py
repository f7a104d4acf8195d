"""The contract's `EmbedBackend` on llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from openai_cpu_server.contract.embedding import EmbedResult
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Kernels, ModelInfo
from openai_cpu_server.errors import EmbeddingFailed, StartupError
from openai_cpu_server.llama.cells.abort import AbortSwitch
from openai_cpu_server.llama.cells.context import Decoded
from openai_cpu_server.llama.embed.context import INPUTS_MAX, PoolingContext, PoolingOptions
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.llama.host.cores import Cores
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.kernels import switch_kernels
from openai_cpu_server.llama.loading import repacks
from openai_cpu_server.llama.model.model import Model
from openai_cpu_server.llama.model.room import LEAST_TOKENS, tokens_that_fit
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_STEP_TOKENS = 256
"""The least room of a step. Longer inputs have more."""


class LlamaEmbedder:
    """Owns model and context. Not thread-safe but for `interrupt`."""

    def __init__(self, model: Model, context: PoolingContext, abort: AbortSwitch, info: ModelInfo) -> None:
        """The embedder owns `model` and `context` from here on, and closes them."""
        self.info = info
        self._model = model
        self._context = context
        self._abort = abort

    @classmethod
    def load_cold(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaEmbedder:
        """Load a model; `warm_up` follows. Raises `StartupError` with one line; then nothing stays loaded.

        Whoever is told of the progress may let others compute before it returns.
        """
        machine = machine or Machine()
        header = GgufHeader(Path(options.model_path))
        with ExitStack() as undo:
            kernels = switch_kernels(options.kernels, pause=lambda: on_progress(0.0))
            free_bytes = max(0, machine.free_memory() - total_bytes(model_files(header)))
            repack = repacks(options, header, our_products=kernels.products.is_on)
            model = Model.open(header, repack=repack, on_progress=on_progress)
            undo.callback(model.close)
            vocabulary = Vocabulary(model)
            max_input = _max_input(options, model, vocabulary.vocab_size, free_bytes)
            abort, threads = AbortSwitch(), options.threads_batch or options.threads or machine.num_threads()
            pooling = PoolingOptions(
                step_tokens=max(max_input, _STEP_TOKENS),
                threads=threads,
                flash_attention=options.flash_attention,
            )
            context = PoolingContext(model, pooling, abort, Cores(threads))
            undo.callback(context.close)
            info = _info(model, vocabulary, context, pooling, max_input, kernels)
            undo.pop_all()
        return cls(model, context, abort, info)

    def warm_up(self) -> bool:
        """Compute one step of the largest size, so that all memory is there. False: it was interrupted."""
        token, count = self._any_token(), self.info.max_input_tokens
        with self._abort.armed():
            return self._context.compute([(token,) * count]) is not Decoded.INTERRUPTED

    def embed(self, inputs: Sequence[tuple[int, ...]]) -> EmbedResult:
        """Raises `EmbeddingFailed`; the embedder is as good as before."""
        most = self.info.max_step_tokens
        assert sum(map(len, inputs)) <= most, f"more than {most} tokens in a step"
        with self._abort.armed():
            if self._context.compute(inputs) is Decoded.INTERRUPTED:
                return EmbedResult(interrupted=True)
        rows = self._context.rows(len(inputs))
        if not np.isfinite(np.frombuffer(rows, np.float32)).all():
            raise EmbeddingFailed("What came of it are no numbers.")
        return EmbedResult(rows)

    def interrupt(self) -> None:
        self._abort.press()

    def close(self) -> None:
        self._context.close()
        self._model.close()

    def _any_token(self) -> int:
        return min(1, self.info.vocab_size - 1)


def _max_input(options: EngineOptions, model: Model, vocab_size: int, free_bytes: int) -> int:
    """The longest input in tokens: what the model was trained for, or what `--ctx-size` or the memory
    allows. Raises `StartupError`."""
    trained = model.context_trained
    if options.kv_tokens is not None:
        if options.kv_tokens < 1:
            raise StartupError(f"--ctx-size must be at least 1, not {options.kv_tokens}.")
        return min(trained or options.kv_tokens, options.kv_tokens)
    return min(trained or LEAST_TOKENS, tokens_that_fit(free_bytes, vocab_size))


def _info(
    model: Model,
    vocabulary: Vocabulary,
    context: PoolingContext,
    pooling: PoolingOptions,
    max_input: int,
    kernels: Kernels,
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
        max_step_tokens=pooling.step_tokens,
        max_step_outputs=INPUTS_MAX,
        threads=context.threads,
        end_tokens=vocabulary.end_tokens,
        can_share=False,
        can_trim=False,
        kernels=kernels,
        kind=model_kind(model.header),
        embedding_size=context.row_size,
        max_input_tokens=max_input,
    )
