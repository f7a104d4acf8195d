"""Facts from which a model is made, and tiny models of today's architectures, by their kind of memory."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

Facts = dict[str, Any]
"""Metadata of a file by GGUF keys; `*.` stands for the architecture."""

CONTEXT, WINDOW, VOCAB = 4_096, 32, 512
_LAYERS, _WIDTH, _HEADS, _HEAD, _FFN = 4, 64, 2, 32, 128

_COMMON: Facts = {
    "*.vocab_size": VOCAB,
    "*.context_length": CONTEXT,
    "*.embedding_length": _WIDTH,
    "*.block_count": _LAYERS,
    "*.feed_forward_length": _FFN,
    "*.attention.head_count": _HEADS,
    "*.attention.head_count_kv": 1,
    "*.attention.key_length": _HEAD,
    "*.attention.value_length": _HEAD,
    "*.attention.layer_norm_epsilon": 1e-5,
    "*.attention.layer_norm_rms_epsilon": 1e-5,
    "*.rope.dimension_count": _HEAD,
    "*.rope.freq_base": 10_000.0,
}
_EXPERTS: Facts = {
    "*.expert_count": 4,
    "*.expert_used_count": 2,
    "*.expert_feed_forward_length": _HEAD,
}
_WINDOW: Facts = {
    "*.attention.sliding_window": WINDOW,
    "*.attention.sliding_window_pattern": 2,  # every second layer sees all
}
_SECTIONS: Facts = {"*.rope.dimension_sections": [4, 6, 6, 0]}
_STATE: Facts = {
    "*.ssm.conv_kernel": 4,
    "*.ssm.inner_size": 2 * _WIDTH,
    "*.ssm.state_size": _HEAD,
    "*.ssm.time_step_rank": 4,
    "*.ssm.group_count": 2,
}
_ATTENTION_IN_SECOND: Facts = {"*.attention.head_count_kv": [0, 1, 0, 1]}
"""A layer without heads keeps a state."""


class Memory(enum.Enum):
    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    HYBRID = "hybrid"
    HYBRID_WINDOW = "hybrid-window"

    @property
    def has_state(self) -> bool:
        return self in (Memory.STATE, Memory.HYBRID, Memory.HYBRID_WINDOW)

    @property
    def has_window(self) -> bool:
        return self in (Memory.WINDOW, Memory.HYBRID_WINDOW)


@dataclass(frozen=True)
class Architecture:
    """Model with one of llama.cpp's architectures. llama.cpp itself reports which tensors it has."""

    name: str
    llama_name: str
    memory: Memory
    own_facts: Facts
    """Before `*.` is replaced."""
    embedding_std: float = 1.0
    """Gemma multiplies embeddings by the root of their width, so they would outweigh all layers."""
    query_key_norm: float = 1.6
    """Makes attention prefer some tokens. Less is enough without a division by the root of a head's width."""
    tied: bool = False
    alike: bool = False
    has_biases: bool = True
    """True if it has the biases and other tensors that llama.cpp can do without."""

    @property
    def vocab(self) -> int:
        vocab: int = self.own_facts["*.vocab_size"]
        return vocab

    @property
    def layers(self) -> int:
        layers: int = self.own_facts["*.block_count"]
        return layers

    @property
    def has_experts(self) -> bool:
        return "*.expert_count" in self.own_facts

    @property
    def facts(self) -> Facts:
        return {key.replace("*", self.llama_name): value for key, value in self.own_facts.items()}


def _tiny(
    name: str,
    llama_name: str,
    memory: Memory,
    special: Facts,
    *,
    embedding_std: float = 1.0,
    query_key_norm: float = 1.6,
) -> Architecture:
    facts = {**_COMMON, **special}
    return Architecture(name, llama_name, memory, facts, embedding_std, query_key_norm)


ARCHITECTURES = {
    one.name: one
    for one in (
        _tiny(
            # Latent attention: one wide head of cells for all.
            "tiny-deepseek2",
            "deepseek2",
            Memory.FULL,
            {
                **_EXPERTS,
                "*.leading_dense_block_count": 1,
                "*.expert_shared_count": 1,
                "*.expert_gating_func": 2,
                "*.attention.q_lora_rank": 32,
                "*.attention.kv_lora_rank": 48,
                "*.attention.key_length": 64,
                "*.attention.value_length": 48,
                "*.attention.key_length_mla": 48,
                "*.attention.value_length_mla": 32,
                "*.rope.dimension_count": 16,
            },
        ),
        _tiny("tiny-qwen3moe", "qwen3moe", Memory.FULL, _EXPERTS),
        # Positions of three numbers each (M-RoPE).
        _tiny("tiny-qwen2vl", "qwen2vl", Memory.FULL, _SECTIONS),
        _tiny("tiny-gemma3", "gemma3", Memory.WINDOW, _WINDOW, embedding_std=_WIDTH**-0.5),
        _tiny(
            # Embeddings for each layer, and cells that the last layers share.
            "tiny-gemma4",
            "gemma4",
            Memory.WINDOW,
            {
                "*.block_count": 6,
                "*.embedding_length_per_layer_input": 16,
                "*.attention.sliding_window": WINDOW,
                "*.attention.sliding_window_pattern": [True, True, False, True, True, False],
                "*.attention.shared_kv_layers": 3,
                "*.attention.key_length_swa": 16,
                "*.attention.value_length_swa": 16,
                "*.rope.dimension_count_swa": 16,
                "*.rope.freq_base_swa": 10_000.0,
            },
            embedding_std=_WIDTH**-0.5,
            query_key_norm=0.7,
        ),
        # Sinks: a part of the attention goes to no token.
        _tiny("tiny-gpt-oss", "gpt-oss", Memory.WINDOW, {**_EXPERTS, **_WINDOW}),
        _tiny("tiny-mamba", "mamba", Memory.STATE, {**_STATE, "*.attention.head_count_kv": 0}),
        _tiny(
            "tiny-rwkv7",
            "rwkv7",
            Memory.STATE,
            {
                "*.wkv.head_size": 64,  # ggml computes no smaller one with AVX-512
                "*.attention.head_count": 0,
                "*.attention.head_count_kv": 0,
                "*.attention.decay_lora_rank": 16,
                "*.attention.iclr_lora_rank": 16,
                "*.attention.value_residual_mix_lora_rank": 16,
                "*.attention.gate_lora_rank": 16,
            },
        ),
        _tiny(
            "tiny-qwen35", "qwen35", Memory.HYBRID, {**_STATE, **_SECTIONS, "*.full_attention_interval": 2}
        ),
        _tiny(
            "tiny-qwen3next",
            "qwen3next",
            Memory.HYBRID,
            {
                **_EXPERTS,
                **_STATE,
                "*.expert_shared_feed_forward_length": _HEAD,
                "*.full_attention_interval": 2,
            },
        ),
        _tiny("tiny-granitehybrid", "granitehybrid", Memory.HYBRID, {**_STATE, **_ATTENTION_IN_SECOND}),
        # Both in every layer.
        _tiny("tiny-falcon-h1", "falcon-h1", Memory.HYBRID, _STATE),
        _tiny("tiny-lfm2", "lfm2", Memory.HYBRID, {**_ATTENTION_IN_SECOND, "*.shortconv.l_cache": 3}),
        _tiny(
            "tiny-lfm2-window",
            "lfm2",
            Memory.HYBRID_WINDOW,
            {**_ATTENTION_IN_SECOND, "*.shortconv.l_cache": 3, "*.attention.sliding_window": WINDOW},
        ),
    )
}
