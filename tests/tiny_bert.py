"""A BERT with random weights in the files of sentence-transformers, and what it computes, in numpy."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from openai_cpu_server.model_source.bert import write_bert

Floats = npt.NDArray[np.float64]

WIDTH, INNER, HEADS, LAYERS, POSITIONS = 64, 128, 2, 2, 48
_EPS = 1e-12
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), "the", "sun", "##ny"]
CLS, SEP = TOKENS.index("[CLS]"), TOKENS.index("[SEP]")


class TinyBert:
    """Weights are rounded to f16 where the converter rounds them."""

    def __init__(self, *, pools_mean: bool = True) -> None:
        self._pools_mean = pools_mean
        random = np.random.default_rng(7)
        self._tensors = {
            name: (0.3 * random.standard_normal(shape)).astype(np.float16).astype(np.float32)
            for name, shape in _shapes().items()
        }

    def write(self, path: Path) -> Path:
        """As GGUF, through the converter."""
        with path.open("wb") as file:
            write_bert(self.files().__getitem__, file, name="tiny-bert")
        return path

    def files(self) -> dict[str, bytes]:
        config = {
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "layer_norm_eps": _EPS,
            "max_position_embeddings": POSITIONS,
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "type_vocab_size": 2,
        }
        tokenizer = {
            "added_tokens": [{"id": n, "content": text, "special": True} for n, text in enumerate(SPECIAL)],
            "normalizer": {"lowercase": True, "strip_accents": None},
            "model": {
                "type": "WordPiece",
                "continuing_subword_prefix": "##",
                "vocab": {token: number for number, token in enumerate(TOKENS)},
            },
        }
        pooling = {
            "pooling_mode_mean_tokens": self._pools_mean,
            "pooling_mode_cls_token": not self._pools_mean,
        }
        texts = {"config.json": config, "tokenizer.json": tokenizer, "1_Pooling/config.json": pooling}
        return {
            **{name: json.dumps(content).encode() for name, content in texts.items()},
            "model.safetensors": safetensors(self._tensors),
        }

    def vector(self, tokens: Sequence[int]) -> Floats:
        """What it embeds these as, computed by the book."""
        w = self._weight
        x = w("embeddings.word_embeddings.weight")[list(tokens)]
        x = x + w("embeddings.position_embeddings.weight")[: len(tokens)]
        x = self._norm(x + w("embeddings.token_type_embeddings.weight")[0], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            x = self._layer(x, f"encoder.layer.{layer}")
        return x.mean(axis=0) if self._pools_mean else x[0]

    def _layer(self, x: Floats, name: str) -> Floats:
        q, k, v = (self._linear(x, f"{name}.attention.self.{part}") for part in ("query", "key", "value"))
        heads = [
            _attention(*(side[:, start : start + WIDTH // HEADS] for side in (q, k, v)))
            for start in range(0, WIDTH, WIDTH // HEADS)
        ]
        attended = self._linear(np.concatenate(heads, axis=1), f"{name}.attention.output.dense")
        x = self._norm(x + attended, f"{name}.attention.output.LayerNorm")
        inner = _gelu(self._linear(x, f"{name}.intermediate.dense"))
        return self._norm(x + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _weight(self, name: str) -> Floats:
        return self._tensors[name].astype(np.float64)

    def _linear(self, x: Floats, name: str) -> Floats:
        return x @ self._weight(f"{name}.weight").T + self._weight(f"{name}.bias")

    def _norm(self, x: Floats, name: str) -> Floats:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=1, keepdims=True) + _EPS)
        return x * self._weight(f"{name}.weight") + self._weight(f"{name}.bias")


def safetensors(tensors: dict[str, npt.NDArray[np.float32]]) -> bytes:
    header, data = {}, b""
    for name, tensor in tensors.items():
        start, data = len(data), data + tensor.tobytes()
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, len(data))}
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(head)) + head + data


def _shapes() -> dict[str, tuple[int, ...]]:
    """The width last. A layer's matrices have biases; norms are vectors, each with a bias."""
    shapes: dict[str, tuple[int, ...]] = {
        f"embeddings.{name}_embeddings.weight": (rows, WIDTH)
        for name, rows in (("word", len(TOKENS)), ("position", POSITIONS), ("token_type", 2))
    }
    matrices = {
        **{f"attention.{name}": (WIDTH, WIDTH) for name in ("self.query", "self.key", "self.value")},
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (INNER, WIDTH),
        "output.dense": (WIDTH, INNER),
        "attention.output.LayerNorm": (WIDTH,),
        "output.LayerNorm": (WIDTH,),
    }
    layers = {f"encoder.layer.{n}.{name}": shape for n in range(LAYERS) for name, shape in matrices.items()}
    for name, shape in ({"embeddings.LayerNorm": (WIDTH,)} | layers).items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    return shapes


def _attention(q: Floats, k: Floats, v: Floats) -> Floats:
    scores = q @ k.T / np.sqrt(q.shape[1])
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ v


def _gelu(x: Floats) -> Floats:
    """ggml computes the approximation by tanh."""
    scaled: Callable[[Floats], Floats] = np.tanh
    return 0.5 * x * (1 + scaled(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
