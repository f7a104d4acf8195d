"""The models' sizes. Every row of a matrix is a multiple of 32 long, as Q8_0 and q8_0 KV cells need."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    name: str
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    context: int
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        return self.head_width * self.kv_heads

    @property
    def num_parameters(self) -> int:
        attention = 2 * self.width * self.width + 2 * self.width * self.kv_width
        norms = 2 * self.width
        layer = attention + 3 * self.width * self.ffn + norms
        return self.vocab * self.width + self.layers * layer + self.width


NUM_PIECES = 4096
CONTEXT = 1024

SHAPES = {
    shape.name: shape
    for shape in (
        Shape("demo", NUM_PIECES, width=256, layers=8, heads=4, kv_heads=2, ffn=704, context=CONTEXT),
        Shape("draft", NUM_PIECES, width=96, layers=3, heads=3, kv_heads=1, ffn=256, context=CONTEXT),
        Shape("tiny", NUM_PIECES, width=64, layers=2, heads=2, kv_heads=1, ffn=160, context=CONTEXT),
    )
}
