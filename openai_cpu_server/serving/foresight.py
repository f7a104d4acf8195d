"""What is known of a model before it is loaded: facts, and the memory that it will take."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.file_types import file_type_name
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.gguf.kind import model_kind
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.model.kv_size import CELLS_GRANULARITY, KVType, bytes_per_cell, pool_cells
from openai_cpu_server.llama.model.room import DRAFT_KV_TYPE, batch_tokens, tokens_that_fit
from openai_cpu_server.models.memory_budget import MemoryNeed
from openai_cpu_server.reader.model import ReadTokenizer

_PROCESS_BYTES = 150 * 1024 * 1024
"""An engine process without its model: Python, llama.cpp, numpy, llguidance."""


class Share(NamedTuple):
    """What one of several models may count on."""

    budget_bytes: int
    """For all models."""
    num_models: int
    own_bytes: int | None
    """What this one may take at most."""

    @property
    def cache_bytes(self) -> int:
        """Of the budget a quarter is for prefix caches, as of the machine where a model is alone."""
        return (self.own_bytes or self.budget_bytes // self.num_models) // 4


class Foreseen(NamedTuple):
    options: EngineOptions
    """With the size of the KV pool."""
    need: MemoryNeed
    info: ModelInfo


def foresee(options: EngineOptions, vocabulary: ReadTokenizer, share: Share | None) -> Foreseen:
    """`share`: None for a model that is alone. Raises StartupError for files that cannot be read."""
    header = GgufHeader(Path(options.model_path))
    draft = GgufHeader(Path(options.draft_model_path)) if options.draft_model_path else None
    kind, kv_type = model_kind(header), KVType.named(options.kv_type)
    generates = kind is ModelKind.GENERATES
    weights = sum(total_bytes(model_files(one)) for one in (header, draft) if one is not None)
    token_bytes = bytes_per_cell(header, kv_type) if generates else 0
    draft_bytes = bytes_per_cell(draft, DRAFT_KV_TYPE) if draft is not None else 0
    need = MemoryNeed(
        weights=weights,
        cells=0,
        buffers=_PROCESS_BYTES + _buffer_bytes(header, options, vocabulary.vocab_size),
        cache=options.cache_bytes if generates else 0,
    )
    cells = _cells(options.kv_tokens, token_bytes + draft_bytes, need, share) if generates else 0
    if generates:
        options = msgspec.structs.replace(options, kv_tokens=cells)
    elif options.kv_tokens is None:
        # Said once: what memory is free at each load would make it another length, and refuse late.
        longest = tokens_that_fit(_free_bytes(share) - need.total, vocabulary.vocab_size)
        options = msgspec.structs.replace(options, kv_tokens=longest)
    need = msgspec.structs.replace(need, cells=cells * (token_bytes + draft_bytes))
    return Foreseen(options, need, _info(header, kind, options, vocabulary, cells, token_bytes))


def _free_bytes(share: Share | None) -> int:
    if share is None:
        return Machine().free_memory()
    return share.budget_bytes if share.own_bytes is None else share.own_bytes


def _buffer_bytes(header: GgufHeader, options: EngineOptions, vocab_size: int) -> int:
    """Activations and logits of the largest step, in f32: a row has the logits of all tokens, or some copies
    of the widest activation."""
    width = header.get_int(header.for_architecture("feed_forward_length")) or 0
    return 4 * batch_tokens(options) * (vocab_size + 4 * width)


def _cells(requested: int | None, token_bytes: int, need: MemoryNeed, share: Share | None) -> int:
    """As many as asked for; else up to 16,384 in half of what is free beside the weights, of which with
    several models each has an equal part."""
    if requested is not None:
        return requested
    if share is None:
        free = Machine().free_memory() - need.weights
    elif share.own_bytes is not None:
        free = 2 * (share.own_bytes - need.total)  # all of it: this is what the model may have
    else:
        free = (share.budget_bytes - need.total) // share.num_models
    try:
        return pool_cells(None, token_bytes, max(0, free))
    except StartupError:
        return CELLS_GRANULARITY  # it will be said that it does not fit, with all of the arithmetic


def _info(
    header: GgufHeader,
    kind: ModelKind,
    options: EngineOptions,
    vocabulary: ReadTokenizer,
    cells: int,
    token_bytes: int,
) -> ModelInfo:
    """What cannot be known before (kernels, what the memory can do) stands at the least, and nobody asks for
    it before the model is loaded."""
    trained = header.get_int(header.for_architecture("context_length")) or cells
    parameters = sum(tensor.num_values for tensor in model_tensors(header))
    embeds = kind is not ModelKind.GENERATES
    width = header.get_int(header.for_architecture("embedding_length")) or 0
    number = header.get_int("general.file_type")
    file_type = None if number is None else file_type_name(number)
    return ModelInfo(
        path=options.model_path,
        description=" ".join(filter(None, (header.architecture, f"{parameters / 1e6:.4g}M", file_type))),
        architecture=header.architecture,
        num_parameters=parameters,
        file_bytes=total_bytes(model_files(header)),
        vocab_size=vocabulary.vocab_size,
        context_trained=trained,
        kv_tokens=cells,
        kv_bytes_per_token=token_bytes,
        kv_type=options.kv_type,
        max_seqs=options.max_seqs,
        max_step_tokens=batch_tokens(options),
        max_step_outputs=options.max_seqs,
        threads=options.threads or Machine().num_threads(),
        end_tokens=vocabulary.end_tokens,
        can_share=False,
        can_trim=False,
        kind=kind,
        embedding_size=(1 if kind is ModelKind.RERANKS else width) if embeds else 0,
        max_input_tokens=min(trained, options.kv_tokens or trained) if embeds else 0,
    )
