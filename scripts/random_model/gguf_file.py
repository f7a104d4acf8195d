"""Writes a model to disk: tensor by tensor, so that memory holds one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gguf import GGML_QUANT_VERSION, GGUFWriter

from random_model import vocabulary
from random_model.shapes import Shape
from random_model.tensors import Quant, Tensor, all_tensors
from random_model.vocabulary import Vocabulary

_CHAT_TEMPLATE = Path(__file__).with_name("chatml.jinja")

Progress = Callable[[int, int], None]
"""Gets the bytes written and the bytes in all, after each tensor."""


def write_model(
    path: Path, shape: Shape, quant: Quant, vocab: Vocabulary, *, seed: int, on_progress: Progress
) -> None:
    """Write the file whole or not at all. Equal arguments give equal bytes. Raises OSError."""
    tensors = list(all_tensors(shape, quant, vocab.quiet))
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        _write(partial, shape, quant, vocab, tensors, seed, on_progress)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _write(
    path: Path,
    shape: Shape,
    quant: Quant,
    vocab: Vocabulary,
    tensors: list[Tensor],
    seed: int,
    on_progress: Progress,
) -> None:
    writer = GGUFWriter(path, "llama")
    try:
        _add_facts(writer, shape, quant)
        _add_tokenizer(writer, vocab)
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


def _add_facts(writer: GGUFWriter, shape: Shape, quant: Quant) -> None:
    writer.add_name(f"random {shape.name}")
    writer.add_description("Random weights: says nothing sensible. For tests and benchmarks.")
    writer.add_file_type(quant.file_type)
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(shape.vocab)


def _add_tokenizer(writer: GGUFWriter, vocab: Vocabulary) -> None:
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
