"""The llama architecture in PyTorch, with grouped-query attention and tied embeddings."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_model.shapes import Shape


class Llama(nn.Module):
    """A llama model. It rotates neighbouring elements, as llama.cpp does here:
    rows need no permutation at export."""

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
        future = torch.full((length, length), -torch.inf, device=tokens.device).triu(1)
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden, turn, future)
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

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], future: Tensor) -> Tensor:
        hidden = hidden + self.attention(self.attention_norm(hidden), turn, future)
        return hidden + self.feed_forward(self.ffn_norm(hidden))


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.head_width
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.value = nn.Linear(shape.width, shape.kv_width, bias=False)
        self.output = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, hidden: Tensor, turn: tuple[Tensor, Tensor], future: Tensor) -> Tensor:
        query = rotate(self._split(self.query(hidden), self.heads), turn)
        key = rotate(self._split(self.key(hidden), self.kv_heads), turn)
        value = self._split(self.value(hidden), self.kv_heads)
        mixed = attend(query, key, value, future)
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


def attend(query: Tensor, key: Tensor, value: Tensor, future: Tensor) -> Tensor:
    """Causal attention: [batch, heads, length, head width] from as many queries and fewer keys and values.

    `future` [length, length]: -inf where a position must not look. Two plain products and a softmax in 32
    bits: on a CPU PyTorch's fused kernel takes 2 to 10 times as long for such rows (bfloat16, backwards).
    """
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    together = query.reshape(batch, groups, -1, width) * width**-0.5
    scores = (together @ key.transpose(-1, -2)).float().view(batch, groups, -1, length, length)
    shares = scores.add_(future).softmax(-1).to(value.dtype).view(batch, groups, -1, length)
    return (shares @ value).view(batch, heads, length, width)


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
