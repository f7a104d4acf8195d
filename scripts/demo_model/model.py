"""The llama architecture in PyTorch, with grouped-query attention and tied embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_model.shapes import Shape


class Llama(nn.Module):
    """Rotates neighbouring elements, as llama.cpp does here: rows need no permutation at export."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        cosines, sines = rotations(shape)
        self.register_buffer("cosines", cosines, persistent=False)
        self.register_buffer("sines", sines, persistent=False)
        self._initialise()

    def forward(self, tokens: Tensor) -> Tensor:
        """Hidden states [batch, length, width] of tokens [batch, length]."""
        length = tokens.shape[1]
        turn = self.cosines[:length], self.sines[:length]
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, turn)
        return self.norm(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.embedding.weight)

    def _initialise(self) -> None:
        nn.init.normal_(self.embedding.weight, std=0.02)
        for layer in self.layers:
            # Each layer adds nothing at first: training starts from a plain bigram model.
            nn.init.zeros_(layer.attention.output.weight)
            nn.init.zeros_(layer.feed_forward.down.weight)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention_norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.attention = Attention(shape)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.feed_forward = FeedForward(shape)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), turn)
        return hidden + self.feed_forward(self.ffn_norm(hidden))


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.head_width
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        query = rotate(self._split(self.query(hidden), self.heads), turn)
        key = rotate(self._split(self.key(hidden), self.kv_heads), turn)
        value = self._split(self.value(hidden), self.kv_heads)
        mixed = F.scaled_dot_product_attention(
            query,
            key,
            value,
            is_causal=True,
            enable_gqa=True,
        )
        return self.output(mixed.transpose(1, 2).flatten(2))

    def _split(self, rows: Tensor, heads: int) -> Tensor:
        return rows.view(*rows.shape[:2], heads, self.head_width).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate = nn.Linear(shape.width, shape.ffn, bias=False)
        self.up = nn.Linear(shape.width, shape.ffn, bias=False)
        self.down = nn.Linear(shape.ffn, shape.width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(hidden)) * self.up(hidden))


def rotations(shape: Shape) -> tuple[Tensor, Tensor]:
    """Cosines and sines [context, head width / 2] of each position's angles."""
    half = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
    angles = torch.outer(torch.arange(shape.context, dtype=torch.float32), shape.rope_base**-half)
    return angles.cos(), angles.sin()


def rotate(rows: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn neighbouring elements of [batch, heads, length, head width] by their position's angles."""
    cosines, sines = turn
    even, odd = rows[..., 0::2], rows[..., 1::2]
    turned = torch.stack((even * cosines - odd * sines, even * sines + odd * cosines), dim=-1)
    return turned.flatten(-2).to(rows.dtype)
