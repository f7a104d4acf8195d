#!/usr/bin/env python3
"""Make the GGUF file of a projector with random weights: of a real kind and speed, it sees no sense."""

from __future__ import annotations

import argparse
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

Weights = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Shape:
    """An encoder: its picture in pixels, its patches, its layers."""

    picture: int
    patch: int
    width: int
    ffn: int
    heads: int
    layers: int
    merged: int
    """So many patches on each side become one row."""

    @property
    def patches(self) -> int:
        return (self.picture // self.patch) ** 2


TINY = Shape(picture=128, patch=16, width=32, ffn=64, heads=2, layers=2, merged=2)
SHAPES = {
    "tiny": TINY,
    # SigLIP's two sizes, as SmolVLM 500M and Gemma 3 have them.
    "siglip-base": Shape(picture=512, patch=16, width=768, ffn=3072, heads=12, layers=12, merged=4),
    "siglip-so400m": Shape(picture=896, patch=14, width=1152, ffn=4304, heads=16, layers=27, merged=4),
}
KINDS = ("gemma3", "idefics3", "lfm2", "qwen2vl_merger", "qwen3vl_merger")
"""llama.cpp's names."""


class ProjectorFile:
    def __init__(
        self, path: Path, kind: str, shape: Shape, *, rows_width: int, quant: str, seed: int
    ) -> None:
        self._writer = GGUFWriter(path, "clip")
        self._kind, self._shape, self._rows_width, self._seed = kind, shape, rows_width, seed
        self._type = np.float16 if quant == "f16" else np.float32

    def write(self) -> None:
        self._add_facts()
        self._add_encoder()
        self._add_merger()
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()

    def _add_facts(self) -> None:
        writer, shape = self._writer, self._shape
        writer.add_name(f"random {self._kind}")
        writer.add_file_type(1 if self._type is np.float16 else 0)
        writer.add_bool("clip.has_vision_encoder", True)
        writer.add_string("clip.projector_type", self._kind)
        writer.add_bool("clip.use_gelu", True)
        vision = {
            "embedding_length": shape.width,
            "feed_forward_length": shape.ffn,
            "block_count": shape.layers,
            "attention.head_count": shape.heads,
            "projection_dim": self._rows_width,
            "image_size": shape.picture,
            "patch_size": shape.patch,
            "projector.scale_factor": shape.merged,
            "spatial_merge_size": shape.merged,
            "preproc_image_size": 2 * shape.picture,
        }
        for name, value in vision.items():
            writer.add_uint32(f"clip.vision.{name}", value)
        writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
        writer.add_array("clip.vision.image_mean", [0.5] * 3)
        writer.add_array("clip.vision.image_std", [0.5] * 3)
        if self._is_qwen:
            writer.add_array("clip.vision.is_deepstack_layers", [False] * shape.layers)

    @property
    def _is_qwen(self) -> bool:
        return self._kind.startswith("qwen")

    def _add_encoder(self) -> None:
        shape = self._shape
        patch = (shape.width, 3, shape.patch, shape.patch)
        self._matrix("v.patch_embd.weight", patch, std=(3 * shape.patch**2) ** -0.5)
        if self._is_qwen:
            self._matrix("v.patch_embd.weight.1", patch, std=(3 * shape.patch**2) ** -0.5)
        if self._kind != "qwen2vl_merger":
            self._matrix("v.position_embd.weight", (shape.patches, shape.width), std=0.5, is_plain=True)
            self._vector("v.patch_embd.bias", shape.width, 0.0)
        self._norm("v.post_ln", shape.width)
        for layer in range(shape.layers):
            self._add_layer(f"v.blk.{layer}")

    def _add_layer(self, at: str) -> None:
        shape = self._shape
        self._norm(f"{at}.ln1", shape.width)
        self._norm(f"{at}.ln2", shape.width)
        if self._kind == "qwen3vl_merger":
            self._linear(f"{at}.attn_qkv", shape.width, 3 * shape.width)
        else:
            for name in ("attn_q", "attn_k", "attn_v"):
                self._linear(f"{at}.{name}", shape.width, shape.width)
        self._linear(f"{at}.attn_out", shape.width, shape.width)
        self._linear(f"{at}.ffn_up", shape.width, shape.ffn)
        self._linear(f"{at}.ffn_down", shape.ffn, shape.width)

    def _add_merger(self) -> None:
        shape, rows = self._shape, self._rows_width
        joined = shape.width * shape.merged**2
        match self._kind:
            case "gemma3":
                self._matrix("mm.input_projection.weight", (shape.width, rows), std=shape.width**-0.5)
                self._vector("mm.soft_emb_norm.weight", shape.width, 1.0)
            case "idefics3":
                self._matrix("mm.model.fc.weight", (rows, joined), std=joined**-0.5)
            case "lfm2":
                self._vector("mm.input_norm.weight", joined, 1.0)
                self._vector("mm.input_norm.bias", joined, 0.0)
                self._linear("mm.1", joined, shape.ffn)
                self._linear("mm.2", shape.ffn, rows)
            case _:
                self._linear("mm.0", joined, joined)
                self._linear("mm.2", joined, rows)

    def _norm(self, name: str, width: int) -> None:
        self._vector(f"{name}.weight", width, 1.0)
        self._vector(f"{name}.bias", width, 0.0)

    def _linear(self, name: str, inputs: int, outputs: int) -> None:
        self._matrix(f"{name}.weight", (outputs, inputs), std=inputs**-0.5)
        self._vector(f"{name}.bias", outputs, 0.0)

    def _vector(self, name: str, size: int, value: float) -> None:
        self._writer.add_tensor(name, np.full(size, value, np.float32))

    def _matrix(self, name: str, shape: tuple[int, ...], *, std: float, is_plain: bool = False) -> None:
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        weights: Weights = random.normal(0, std, shape).astype(np.float32 if is_plain else self._type)
        self._writer.add_tensor(name, weights)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make_projector.py", description=__doc__)
    parser.add_argument("--kind", required=True, choices=KINDS)
    parser.add_argument("--shape", default="tiny", choices=SHAPES)
    parser.add_argument(
        "--rows-width", required=True, type=int, metavar="N", help="that of the model's embeddings"
    )
    parser.add_argument("--quant", default="f32", choices=("f32", "f16"))
    parser.add_argument("--output", required=True, type=Path, metavar="PATH")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args()
    partial = args.output.with_name(f".{args.output.name}.{os.getpid()}.partial")
    try:
        ProjectorFile(
            partial,
            args.kind,
            SHAPES[args.shape],
            rows_width=args.rows_width,
            quant=args.quant,
            seed=args.seed,
        ).write()
        partial.replace(args.output)
    except OSError as error:
        print(f"make_projector: {error}", file=sys.stderr)
        return 1
    finally:
        partial.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
