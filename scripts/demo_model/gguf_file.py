"""The model as llama.cpp reads it: shape, tokenizer, chat template, weights."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGML_QUANT_VERSION, GGMLQuantizationType, GGUFWriter, LlamaFileType, TokenType, quants
from numpy.typing import NDArray
from tokenizers import Tokenizer

from demo_model.chat import CHAT_TEMPLATE, CONTROL_TOKENS, END, END_OF_TEXT
from demo_model.model import Llama
from demo_model.shapes import Shape
from demo_model.tokenizer import PRE

_DESCRIPTION = (
    "A tiny English model, trained from scratch on generated text by scripts/demo_model of openai-cpu-server."
)


class Quant(enum.Enum):
    F32 = "f32"
    Q8_0 = "q8_0"


_FILE_TYPES = {Quant.F32: LlamaFileType.ALL_F32, Quant.Q8_0: LlamaFileType.MOSTLY_Q8_0}


def write_gguf(path: Path, model: Llama, tokenizer: Tokenizer, quant: Quant) -> None:
    """Write the file whole or not at all. Norms stay in float32."""
    partial = path.with_name(f".{path.name}.partial")
    writer = GGUFWriter(partial, "llama")
    try:
        _add_facts(writer, model.shape, quant)
        _add_tokenizer(writer, tokenizer)
        for name, values in tensors(model):
            _add_tensor(writer, name, values, quant)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def tensors(model: Llama) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """The tensors by llama.cpp's names. The embeddings are the output's matrix, too."""
    yield "token_embd.weight", _array(model.embedding.weight)
    yield "output_norm.weight", _array(model.norm.weight)
    for index, layer in enumerate(model.layers):
        attention, ffn = layer.attention, layer.feed_forward
        parts = {
            "attn_norm": layer.attention_norm,
            "attn_q": attention.query,
            "attn_k": attention.key,
            "attn_v": attention.value,
            "attn_output": attention.output,
            "ffn_norm": layer.ffn_norm,
            "ffn_gate": ffn.gate,
            "ffn_up": ffn.up,
            "ffn_down": ffn.down,
        }
        for name, part in parts.items():
            yield f"blk.{index}.{name}.weight", _array(part.weight)


def _add_tensor(writer: GGUFWriter, name: str, values: NDArray[np.float32], quant: Quant) -> None:
    if quant is Quant.F32 or values.ndim == 1:
        writer.add_tensor(name, values)
        return
    kind = GGMLQuantizationType.Q8_0
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def _add_facts(writer: GGUFWriter, shape: Shape, quant: Quant) -> None:
    writer.add_name(shape.name)
    writer.add_description(_DESCRIPTION)
    writer.add_license("MIT")
    writer.add_languages(["en"])
    writer.add_file_type(_FILE_TYPES[quant])
    writer.add_quantization_version(GGML_QUANT_VERSION)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_rope_dimension_count(shape.head_width)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab)


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer) -> None:
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    assert [vocabulary[piece] for piece in pieces] == list(range(len(pieces)))
    kinds = (TokenType.CONTROL if piece in CONTROL_TOKENS else TokenType.NORMAL for piece in pieces)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE)
    writer.add_token_list(pieces)
    writer.add_token_types([int(kind) for kind in kinds])
    writer.add_token_merges([" ".join(pair) for pair in _merges(tokenizer)])
    writer.add_bos_token_id(vocabulary[END_OF_TEXT])
    writer.add_eos_token_id(vocabulary[END])
    writer.add_eot_token_id(vocabulary[END])
    writer.add_pad_token_id(vocabulary[END_OF_TEXT])
    # Conversations begin with their first turn's marker.
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE.read_text(encoding="utf-8").rstrip("\n"))


def _merges(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    return [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]


def _array(weight: object) -> NDArray[np.float32]:
    array: NDArray[np.float32] = weight.detach().float().cpu().numpy()  # type: ignore[attr-defined]
    return array
