"""Sizes of the models that can be made: those of real ones, with a vocabulary of 32,000."""

from __future__ import annotations

from collections.abc import Iterable

from random_model.architectures import Architecture, Facts, Memory


def _shape(
    name: str,
    *,
    layers: int,
    width: int,
    heads: int,
    kv_heads: int | list[int],
    head_width: int,
    ffn: int,
    vocab: int = 32_000,
    context: int = 32_768,
    rope_base: float = 10_000.0,
    llama_name: str = "llama",
    memory: Memory = Memory.FULL,
    special: Facts | None = None,
    tied: bool = False,
    has_biases: bool = False,
) -> Architecture:
    """Rows are multiples of 256, so that every block type fits. `kv_heads`: of all layers, or of each."""
    facts: Facts = {
        "*.context_length": context,
        "*.embedding_length": width,
        "*.block_count": layers,
        "*.feed_forward_length": ffn,
        "*.attention.head_count": heads,
        "*.attention.head_count_kv": kv_heads,
        "*.attention.layer_norm_rms_epsilon": 1e-5,
        "*.rope.dimension_count": head_width,
        "*.rope.freq_base": rope_base,
        "*.vocab_size": vocab,
    }
    if heads * head_width != width:
        facts |= {"*.attention.key_length": head_width, "*.attention.value_length": head_width}
    facts |= special or {}
    alike = memory in (Memory.FULL, Memory.WINDOW)
    return Architecture(name, llama_name, memory, facts, tied=tied, alike=alike, has_biases=has_biases)


def _experts(count: int, used: int, ffn: int) -> Facts:
    return {"*.expert_count": count, "*.expert_used_count": used, "*.expert_feed_forward_length": ffn}


def _state(heads: int, head_width: int, state: int, groups: int) -> Facts:
    return {
        "*.ssm.conv_kernel": 4,
        "*.ssm.inner_size": heads * head_width,
        "*.ssm.state_size": state,
        "*.ssm.time_step_rank": heads,
        "*.ssm.group_count": groups,
    }


def _in_layers(attending: set[int], layers: int, kv_heads: int) -> list[int]:
    return [kv_heads if layer in attending else 0 for layer in range(layers)]


SHAPES = {
    shape.name: shape
    for shape in (
        _shape(
            "tiny",
            layers=2,
            width=256,
            heads=4,
            kv_heads=2,
            head_width=64,
            ffn=512,
            vocab=1_024,
            context=4_096,
        ),
        _shape("50m", layers=6, width=512, heads=8, kv_heads=4, head_width=64, ffn=1_280),
        # 1.04 B parameters: Llama-3.2-1B.
        _shape(
            "1b",
            layers=16,
            width=2_048,
            heads=32,
            kv_heads=8,
            head_width=64,
            ffn=8_192,
            rope_base=500_000.0,
            tied=True,
        ),
        # 7.24 B parameters: Mistral-7B-Instruct-v0.2.
        _shape(
            "mistral-7b",
            layers=32,
            width=4_096,
            heads=32,
            kv_heads=8,
            head_width=128,
            ffn=14_336,
            rope_base=1_000_000.0,
        ),
        # 1.76 B parameters, 0.35 B for each token: Qwen3-30B-A3B, half as wide, of a third of its layers.
        _shape(
            "qwen3-moe",
            llama_name="qwen3moe",
            layers=16,
            width=1_024,
            heads=16,
            kv_heads=4,
            head_width=128,
            ffn=512,
            rope_base=1_000_000.0,
            special=_experts(64, used=8, ffn=512),
        ),
        # 1.3 B parameters, 0.25 B for each token: gpt-oss-20b, a third as wide, of half of its layers.
        # Every second one has a window.
        _shape(
            "gpt-oss",
            llama_name="gpt-oss",
            memory=Memory.WINDOW,
            layers=12,
            width=1_024,
            heads=16,
            kv_heads=2,
            head_width=64,
            ffn=1_024,
            rope_base=150_000.0,
            special={**_experts(32, used=4, ffn=1_024), "*.attention.sliding_window": 128},
            has_biases=True,
        ),
        # 0.53 B parameters: Qwen3.5-0.8B, whose vocabulary is the rest.
        # Delta nets, and attention in each fourth layer.
        _shape(
            "qwen3.5",
            llama_name="qwen35",
            memory=Memory.HYBRID,
            layers=24,
            width=1_024,
            heads=8,
            kv_heads=2,
            head_width=256,
            ffn=3_584,
            rope_base=10_000_000.0,
            special={
                **_state(heads=16, head_width=128, state=128, groups=16),
                "*.full_attention_interval": 4,
                "*.rope.dimension_count": 64,
                "*.rope.dimension_sections": [11, 11, 10, 0],
            },
            tied=True,
        ),
        # 0.69 B parameters: LFM2-700M. Short convolutions, and attention in six layers.
        _shape(
            "lfm2",
            llama_name="lfm2",
            memory=Memory.HYBRID,
            layers=16,
            width=1_536,
            heads=24,
            kv_heads=_in_layers({2, 5, 8, 10, 12, 14}, 16, kv_heads=8),
            head_width=64,
            ffn=6_912,
            rope_base=1_000_000.0,
            special={"*.shortconv.l_cache": 3},
            tied=True,
        ),
        # 0.48 B parameters, between Granite-4.0-H-350M and -1B. Mamba 2, and attention without positions.
        _shape(
            "granitehybrid",
            llama_name="granitehybrid",
            memory=Memory.HYBRID,
            layers=32,
            width=1_024,
            heads=16,
            kv_heads=_in_layers({5, 13, 21, 29}, 32, kv_heads=4),
            head_width=64,
            ffn=2_560,
            special={
                **_state(heads=32, head_width=64, state=128, groups=1),
                "*.rope.scaling.finetuned": False,
            },
            tied=True,
        ),
    )
}


def spelt(name: str, known: Iterable[str]) -> str:
    """Return the name that is the same but for dots and hyphens, as `qwen35`, or else the name itself."""
    return next((each for each in known if _bare(each) == _bare(name)), name)


def _bare(name: str) -> str:
    return name.replace(".", "").replace("-", "")
