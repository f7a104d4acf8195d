"""Writes a model to disk, tensor by tensor, so that memory holds one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gguf import GGML_QUANT_VERSION, GGUFWriter

from random_model import vocabulary
from random_model.architectures import Architecture
from random_model.tensors import Quant, Tensor
from random_model.vocabulary import Vocabulary
from random_model.wanted import add_facts, wanted_tensors

_CHAT_TEMPLATE = Path(__file__).with_name("chatml.jinja")

Progress = Callable[[int, int], None]


def write_model(
    path: Path,
    model: Architecture,
    quant: Quant,
    vocab: Vocabulary,
    *,
    seed: int,
    on_progress: Progress,
) -> None:
    """Write the file whole or not at all. Equal arguments give equal bytes. Raises OSError."""
    tensors = wanted_tensors(model, quant, vocab.quiet)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _write(partial, model, quant, vocab, tensors, seed, on_progress)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write(
    path: Path,
    model: Architecture,
    quant: Quant,
    vocab: Vocabulary,
    tensors: list[Tensor],
    seed: int,
    on_progress: Progress,
) -> None:
    writer = GGUFWriter(path, model.llama_name)
    try:
        _add_facts(writer, model, quant)
        add_tokenizer(writer, vocab)
        for tensor in tensors:
            writer.add_tensor_info(tensor.name, tensor.shape, "f4", tensor.num_bytes, raw_dtype=tensor.type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        _write_data(writer, tensors, seed, on_progress)
    finally:
        writer.close()


def _write_data(writer: GGUFWriter, tensors: list[Tensor], seed: int, on_progress: Progress) -> None:
    total, written = sum(tensor.num_bytes for tensor in tensors), 0
    for tensor in tensors:
        writer.write_tensor_data(tensor.data(seed))
        written += tensor.num_bytes
        on_progress(written, total)


def _add_facts(writer: GGUFWriter, model: Architecture, quant: Quant) -> None:
    writer.add_name(f"random {model.name}")
    writer.add_description("Random weights: says nothing sensible. For tests and benchmarks.")
    writer.add_file_type(quant.file_type)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    add_facts(writer, model.facts)


def add_tokenizer(writer: GGUFWriter, vocab: Vocabulary) -> None:
    tokenizer = vocab.tokenizer
    writer.add_tokenizer_model(tokenizer.model)
    writer.add_token_list(vocab.texts)
    writer.add_token_types([int(kind) for kind in vocab.kinds])
    if tokenizer.pre is None:
        writer.add_token_scores(vocab.scores)
    else:
        writer.add_tokenizer_pre(tokenizer.pre)
        writer.add_token_merges(vocab.merges)
    writer.add_bos_token_id(tokenizer.bos)
    writer.add_eos_token_id(tokenizer.eos)
    writer.add_unk_token_id(tokenizer.unknown)
    writer.add_add_bos_token(tokenizer.adds_bos)
    writer.add_add_eos_token(False)
    # Decoding gives back exactly what was encoded; a first word without a space is spelt in fragments.
    writer.add_add_space_prefix(False)
    _add_fim_tokens(writer, vocab)
    writer.add_chat_template(_CHAT_TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))


def _add_fim_tokens(writer: GGUFWriter, vocab: Vocabulary) -> None:
    if vocabulary.FIM_PREFIX not in vocab.texts:
        return
    writer.add_uint32("tokenizer.ggml.fim_pre_token_id", vocab.index(vocabulary.FIM_PREFIX))
    writer.add_uint32("tokenizer.ggml.fim_suf_token_id", vocab.index(vocabulary.FIM_SUFFIX))
    writer.add_uint32("tokenizer.ggml.fim_mid_token_id", vocab.index(vocabulary.FIM_MIDDLE))
