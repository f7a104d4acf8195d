"""Folders from which vLLM's CPU backend serves dummy weights in a dense GGUF model's shape."""

from __future__ import annotations

import json
from pathlib import Path

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
"""vLLM's classes with exactly the matrices of the GGUF file, by architecture."""
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FORMS: dict[str, dict[str, object] | None] = {
    "bf16": None,
    "int4": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True},
    "int8": {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {**_INT8, "strategy": "channel", "dynamic": False},
                "input_activations": {**_INT8, "strategy": "token", "dynamic": True},
            }
        },
    },
}
"""Formats of weights with their `quantization_config`."""


def can_serve(model: Path) -> bool:
    return GgufHeader(model).architecture in _CLASSES


def cell_bytes(model: Path) -> int:
    """Return the bytes of a token's keys and values."""
    config = _shape(GgufHeader(model))
    return 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]


def model_folder(model: Path, form: str) -> Path:
    """Write the configuration, and a tokenizer that writes tokens as numbers and a space."""
    header = GgufHeader(model)
    num_tokens = header.array_length("tokenizer.ggml.tokens") or 0
    config: dict[str, object] = {
        "architectures": [_CLASSES[header.architecture]],
        "model_type": header.architecture,
        **_shape(header),
        "rms_norm_eps": header.get_float(header.for_architecture("attention.layer_norm_rms_epsilon")),
        "rope_theta": header.get_float(header.for_architecture("rope.freq_base")) or 10000.0,
        "vocab_size": num_tokens,
        "tie_word_embeddings": all(tensor.name != "output.weight" for tensor in model_tensors(header)),
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if (quantization := FORMS[form]) is not None:
        config["quantization_config"] = quantization
    vocabulary = {f"{number} ": number for number in range(num_tokens)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [],
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "0 "},
    }
    folder = user_cache_dir() / "models" / f"{model.stem}-vllm-{form}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "config.json": config,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"},
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


def _shape(header: GgufHeader) -> dict[str, int]:
    width, heads = header.arch_int("embedding_length") or 0, header.arch_int("attention.head_count") or 1
    return {
        "hidden_size": width,
        "num_hidden_layers": header.arch_int("block_count") or 0,
        "intermediate_size": header.arch_int("feed_forward_length") or 0,
        "num_attention_heads": heads,
        "num_key_value_heads": header.arch_int("attention.head_count_kv") or heads,
        "head_dim": header.arch_int("attention.key_length") or width // heads,
        "max_position_embeddings": header.arch_int("context_length") or 0,
    }
