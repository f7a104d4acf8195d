"""Rerankers with random weights: a BERT with a head for one score, and a Qwen3 that says yes or no; and what
they compute, in numpy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.llama.odd_models import copy_metadata, copy_tokenizer, written
from tests.tiny_bert import WIDTH, TinyBert

Floats = npt.NDArray[np.float64]


class TinyCrossEncoder:
    """As `BertForSequenceClassification`: a pooler over the first token, then a head of one number, or of one
    for each class."""

    def __init__(self, labels: Sequence[str] = ("LABEL_0",)) -> None:
        self._labels = labels
        random = np.random.default_rng(11)
        self._bert = TinyBert(pools_mean=False)
        self._head = {
            "cls.weight": _random(random, WIDTH, WIDTH),
            "cls.bias": _random(random, WIDTH),
            "cls.output.weight": _random(random, len(labels), WIDTH),
            "cls.output.bias": _random(random, len(labels)),
        }

    def write(self, folder: Path) -> Path:
        reader = gguf.GGUFReader(self._bert.write(folder / "bert.gguf"))
        writer = gguf.GGUFWriter(folder / "ranker.gguf", "bert")
        copy_metadata(reader, writer, skip={"bert.pooling_type"})
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(list(self._labels))
        for tensor in reader.tensors:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        for name, data in self._head.items():
            writer.add_tensor(name, data)
        return written(writer, folder / "ranker.gguf")

    def scores(self, tokens: Sequence[int]) -> Floats:
        head = self._head
        pooled = np.tanh(head["cls.weight"] @ self._bert.vector(tokens) + head["cls.bias"])
        scores: Floats = head["cls.output.weight"] @ pooled + head["cls.output.bias"]
        return scores


class TinyQwen3Ranker:
    """As Qwen3-Reranker is converted: of the head for the next token only the rows of yes and no are left."""

    _WIDTH, _HEADS, _KV_HEADS, _HEAD, _INNER, _LAYERS = 64, 4, 2, 32, 96, 2
    _EPS, _ROPE_BASE = 1e-6, 10_000.0

    def __init__(self, *, vocab_size: int) -> None:
        random = np.random.default_rng(13)
        self._w = {name: _random(random, *shape) for name, shape in self._shapes(vocab_size).items()}

    def write(self, folder: Path, *, tokenizer_of: Path) -> Path:
        path = folder / "qwen3.gguf"
        writer = gguf.GGUFWriter(path, "qwen3")
        copy_tokenizer(tokenizer_of, writer)
        writer.add_context_length(512)
        writer.add_embedding_length(self._WIDTH)
        writer.add_block_count(self._LAYERS)
        writer.add_feed_forward_length(self._INNER)
        writer.add_head_count(self._HEADS)
        writer.add_head_count_kv(self._KV_HEADS)
        writer.add_key_length(self._HEAD)
        writer.add_value_length(self._HEAD)
        writer.add_layer_norm_rms_eps(self._EPS)
        writer.add_rope_freq_base(self._ROPE_BASE)
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(["yes", "no"])
        for name, data in self._w.items():
            writer.add_tensor(name, data)
        return written(writer, path)

    def scores(self, tokens: Sequence[int]) -> Floats:
        """The probabilities of yes and no behind the tokens."""
        x = self._w["token_embd.weight"][list(tokens)].astype(np.float64)
        for layer in range(self._LAYERS):
            x = x + self._attention(self._norm(x, f"blk.{layer}.attn_norm"), f"blk.{layer}")
            x = x + self._feed_forward(self._norm(x, f"blk.{layer}.ffn_norm"), f"blk.{layer}")
        logits = self._w["cls.output.weight"] @ self._norm(x, "output_norm")[-1]
        return _softmax(logits)

    def _shapes(self, vocab_size: int) -> dict[str, tuple[int, ...]]:
        width, query, key = self._WIDTH, self._HEADS * self._HEAD, self._KV_HEADS * self._HEAD
        shapes: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (vocab_size, width),
            "output_norm.weight": (width,),
            "cls.output.weight": (2, width),
        }
        for layer in range(self._LAYERS):
            own = {
                "attn_norm": (width,),
                "attn_q": (query, width),
                "attn_k": (key, width),
                "attn_v": (key, width),
                "attn_q_norm": (self._HEAD,),
                "attn_k_norm": (self._HEAD,),
                "attn_output": (width, query),
                "ffn_norm": (width,),
                "ffn_gate": (self._INNER, width),
                "ffn_up": (self._INNER, width),
                "ffn_down": (width, self._INNER),
            }
            shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in own.items()}
        return shapes

    def _norm(self, x: Floats, name: str) -> Floats:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self._EPS)
        normed: Floats = x / scale * self._w[f"{name}.weight"]
        return normed

    def _attention(self, x: Floats, name: str) -> Floats:
        def heads(part: str, count: int) -> Floats:
            rows = x @ self._w[f"{name}.attn_{part}.weight"].T
            return rows.reshape(len(x), count, self._HEAD).transpose(1, 0, 2)

        q = self._turned(self._norm(heads("q", self._HEADS), f"{name}.attn_q_norm"))
        k = self._turned(self._norm(heads("k", self._KV_HEADS), f"{name}.attn_k_norm"))
        k, v = (np.repeat(side, self._HEADS // self._KV_HEADS, axis=0) for side in (k, heads("v", 2)))
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(self._HEAD)
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
        attended = (_softmax(scores) @ v).transpose(1, 0, 2).reshape(len(x), -1)
        return attended @ self._w[f"{name}.attn_output.weight"].T

    def _turned(self, x: Floats) -> Floats:
        """Rotary positions; the two numbers of a pair are half a head apart."""
        half = self._HEAD // 2
        angles = np.outer(np.arange(x.shape[1]), self._ROPE_BASE ** (-np.arange(half) / half))
        a, b, cos, sin = x[..., :half], x[..., half:], np.cos(angles), np.sin(angles)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    def _feed_forward(self, x: Floats, name: str) -> Floats:
        gate, up = (x @ self._w[f"{name}.ffn_{part}.weight"].T for part in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self._w[f"{name}.ffn_down.weight"].T


def _random(random: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    return (0.3 * random.standard_normal(shape)).astype(np.float32)


def _softmax(x: Floats) -> Floats:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    softened: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return softened
