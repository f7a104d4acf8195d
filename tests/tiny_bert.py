"""A BERT with random weights in the files of sentence-transformers."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from openai_cpu_server.model_source.bert import write_bert

WIDTH, INNER, HEADS, LAYERS, POSITIONS = 64, 128, 2, 2, 48
_LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,!?'"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TOKENS = [*SPECIAL, *_LETTERS, *(f"##{letter}" for letter in _LETTERS), "the", "sun", "##ny"]
CLS, SEP = TOKENS.index("[CLS]"), TOKENS.index("[SEP]")


class TinyBert:
    """A model whose weights are rounded to f16 in advance, as the converter rounds them."""

    def __init__(self, *, pools_mean: bool = True) -> None:
        self._pools_mean = pools_mean
        random = np.random.default_rng(7)
        self._tensors = {
            name: (0.3 * random.standard_normal(shape)).astype(np.float16).astype(np.float32)
            for name, shape in _shapes().items()
        }

    def write(self, path: Path) -> Path:
        """Write a GGUF file with the converter."""
        with path.open("wb") as file:
            write_bert(self.files().__getitem__, file, name="tiny-bert")
        return path

    def files(self) -> dict[str, bytes]:
        config = {
            "model_type": "bert",
            "hidden_act": "gelu",
            "hidden_size": WIDTH,
            "intermediate_size": INNER,
            "layer_norm_eps": 1e-12,
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


def safetensors(tensors: dict[str, npt.NDArray[np.float32]]) -> bytes:
    header, data = {}, b""
    for name, tensor in tensors.items():
        start, data = len(data), data + tensor.tobytes()
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (start, len(data))}
    head = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    return struct.pack("<Q", len(head)) + head + data


def _shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes, the width last. A layer's matrices and its norms, which are vectors, have biases."""
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
