"""The sizes of the models that can be made."""

from __future__ import annotations

from dataclasses import dataclass

from random_model.architectures import Facts


@dataclass(frozen=True)
class Shape:
    """A llama. Rows are multiples of 256, so that every block type fits."""

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    vocab: int
    context: int
    rope_base: float = 10_000.0
    tied: bool = False
    """Whether the output matrix is the embedding matrix."""
    llama_name = "llama"

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.head_width * self.kv_heads

    @property
    def facts(self) -> Facts:
        """What its file says of it."""
        return {
            "llama.context_length": self.context,
            "llama.embedding_length": self.width,
            "llama.block_count": self.layers,
            "llama.feed_forward_length": self.ffn,
            "llama.attention.head_count": self.heads,
            "llama.attention.head_count_kv": self.kv_heads,
            "llama.attention.layer_norm_rms_epsilon": 1e-5,
            "llama.rope.dimension_count": self.head_width,
            "llama.rope.freq_base": self.rope_base,
            "llama.vocab_size": self.vocab,
        }


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", layers=2, width=256, heads=4, kv_heads=2, ffn=512, vocab=1_024, context=4_096),
        Shape("50m", layers=6, width=512, heads=8, kv_heads=4, ffn=1_280, vocab=32_000, context=32_768),
        # 1.04 B parameters: Llama-3.2-1B with a vocabulary of 32,000.
        Shape(
            "1b",
            layers=16,
            width=2_048,
            heads=32,
            kv_heads=8,
            ffn=8_192,
            vocab=32_000,
            context=32_768,
            rope_base=500_000.0,
            tied=True,
        ),
        # 7.24 B parameters: Mistral-7B-Instruct-v0.2.
        Shape(
            "mistral-7b",
            layers=32,
            width=4_096,
            heads=32,
            kv_heads=8,
            ffn=14_336,
            vocab=32_000,
            context=32_768,
            rope_base=1_000_000.0,
        ),
    )
}
