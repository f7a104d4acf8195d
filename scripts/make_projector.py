#!/usr/bin/env python3
"""Make the GGUF file of a projector with random weights: a real kind and speed, no meaning."""

from __future__ import annotations

import argparse
import math
import os
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from gguf import GGUFWriter

Weights = npt.NDArray[np.floating]


@dataclass(frozen=True)
class Shape:
    width: int
    ffn: int
    heads: int
    layers: int

    @property
    def facts(self) -> dict[str, int]:
        return {
            "embedding_length": self.width,
            "feed_forward_length": self.ffn,
            "block_count": self.layers,
            "attention__head_count": self.heads,
        }


@dataclass(frozen=True)
class PictureShape(Shape):
    picture: int
    patch: int
    merged: int


@dataclass(frozen=True)
class SoundShape(Shape):
    mels: int


PICTURE_SHAPES = {
    "tiny": PictureShape(picture=128, patch=16, width=32, ffn=64, heads=2, layers=2, merged=2),
    # SigLIP's two sizes, as SmolVLM 500M and Gemma 3 have them.
    "siglip-base": PictureShape(picture=512, patch=16, width=768, ffn=3072, heads=12, layers=12, merged=4),
    "siglip-so400m": PictureShape(picture=896, patch=14, width=1152, ffn=4304, heads=16, layers=27, merged=4),
}
SOUND_SHAPES = {
    "tiny": SoundShape(mels=128, width=40, ffn=64, heads=2, layers=2),
    # Whisper's; Ultravox, Qwen2-Audio and Voxtral have the large one.
    "whisper-small": SoundShape(mels=80, width=768, ffn=3072, heads=12, layers=12),
    "whisper-large": SoundShape(mels=128, width=1280, ffn=5120, heads=20, layers=32),
}
SEEING = ("gemma3", "idefics3", "lfm2", "qwen2vl_merger", "qwen3vl_merger")
HEARING = ("qwen2a", "qwen3a", "ultravox", "voxtral")
"""llama.cpp's names."""
_STACKED = {"ultravox": 8, "voxtral": 4}
"""Rows that become one. llama.cpp crashes with some widths: see `llama/gguf/encoders.py`."""
_SOUND_ROWS = 1500
"""Half of the 3,000 frames of 30 seconds."""
_CONVOLVED = 16


class ProjectorFile:
    def __init__(self, path: Path, *, rows_width: int, quant: str, seed: int) -> None:
        self.writer = GGUFWriter(path, "clip")
        self.rows_width = rows_width
        self._seed = seed
        self._type = np.float16 if quant == "f16" else np.float32

    def write(self, kinds: Sequence[str], shape: str) -> None:
        writer = self.writer
        writer.add_name(f"random {'+'.join(kinds)}")
        writer.add_file_type(1 if self._type is np.float16 else 0)
        writer.add_bool("clip.use_gelu", True)
        for kind in kinds:
            sense = "vision" if kind in SEEING else "audio"
            writer.add_bool(f"clip.has_{sense}_encoder", True)
            writer.add_string(f"clip.{sense}.projector_type" if kinds[1:] else "clip.projector_type", kind)
            if kind in SEEING:
                add_picture_encoder(self, kind, PICTURE_SHAPES[shape])
            else:
                add_sound_encoder(self, kind, SOUND_SHAPES[shape])
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def facts(self, sense: str, **numbers: int) -> None:
        for name, value in numbers.items():
            self.writer.add_uint32(f"clip.{sense}.{name.replace('__', '.')}", value)

    def layers(self, at: str, shape: Shape, *, fused: bool = False, keys_biased: bool = True) -> None:
        for layer in range(shape.layers):
            name = f"{at}.blk.{layer}"
            self.norm(f"{name}.ln1", shape.width)
            self.norm(f"{name}.ln2", shape.width)
            if fused:
                self.linear(f"{name}.attn_qkv", shape.width, 3 * shape.width)
            else:
                self.linear(f"{name}.attn_q", shape.width, shape.width)
                self.linear(f"{name}.attn_k", shape.width, shape.width, biased=keys_biased)
                self.linear(f"{name}.attn_v", shape.width, shape.width)
            self.linear(f"{name}.attn_out", shape.width, shape.width)
            self.linear(f"{name}.ffn_up", shape.width, shape.ffn)
            self.linear(f"{name}.ffn_down", shape.ffn, shape.width)

    def norm(self, name: str, width: int) -> None:
        self.vector(f"{name}.weight", width, 1.0)
        self.vector(f"{name}.bias", width, 0.0)

    def linear(self, name: str, inputs: int, outputs: int, *, biased: bool = True) -> None:
        self.matrix(f"{name}.weight", (outputs, inputs), std=inputs**-0.5)
        if biased:
            self.vector(f"{name}.bias", outputs, 0.0)

    def convolution(self, name: str, kernel: tuple[int, ...], bias: int | tuple[int, ...]) -> None:
        std = math.prod(kernel[1:]) ** -0.5
        self.matrix(f"{name}.weight", kernel, std=std, dtype=np.float16)
        self.vector(f"{name}.bias", bias, 0.0)

    def vector(self, name: str, size: int | tuple[int, ...], value: float) -> None:
        self.writer.add_tensor(name, np.full(size, value, np.float32))

    def matrix(
        self, name: str, shape: tuple[int, ...], *, std: float, dtype: type[np.floating] | None = None
    ) -> None:
        random = np.random.default_rng([self._seed, zlib.crc32(name.encode())])
        weights: Weights = random.normal(0, std, shape).astype(dtype or self._type)
        self.writer.add_tensor(name, weights)


def add_picture_encoder(file: ProjectorFile, kind: str, shape: PictureShape) -> None:
    file.facts(
        "vision",
        **shape.facts,
        projection_dim=file.rows_width,
        image_size=shape.picture,
        patch_size=shape.patch,
        projector__scale_factor=shape.merged,
        spatial_merge_size=shape.merged,
        preproc_image_size=2 * shape.picture,
    )
    file.writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    file.writer.add_array("clip.vision.image_mean", [0.5] * 3)
    file.writer.add_array("clip.vision.image_std", [0.5] * 3)
    is_qwen = kind.startswith("qwen")
    if is_qwen:
        file.writer.add_array("clip.vision.is_deepstack_layers", [False] * shape.layers)
    patch = (shape.width, 3, shape.patch, shape.patch)
    for name in ("v.patch_embd.weight", *(("v.patch_embd.weight.1",) if is_qwen else ())):
        file.matrix(name, patch, std=(3 * shape.patch**2) ** -0.5)
    if kind != "qwen2vl_merger":
        places = ((shape.picture // shape.patch) ** 2, shape.width)
        file.matrix("v.position_embd.weight", places, std=0.5, dtype=np.float32)
        file.vector("v.patch_embd.bias", shape.width, 0.0)
    file.norm("v.post_ln", shape.width)
    file.layers("v", shape, fused=kind == "qwen3vl_merger")
    joined, rows = shape.width * shape.merged**2, file.rows_width
    match kind:
        case "gemma3":
            file.matrix("mm.input_projection.weight", (shape.width, rows), std=shape.width**-0.5)
            file.vector("mm.soft_emb_norm.weight", shape.width, 1.0)
        case "idefics3":
            file.matrix("mm.model.fc.weight", (rows, joined), std=joined**-0.5)
        case "lfm2":
            file.norm("mm.input_norm", joined)
            file.linear("mm.1", joined, shape.ffn)
            file.linear("mm.2", shape.ffn, rows)
        case _:
            file.linear("mm.0", joined, joined)
            file.linear("mm.2", joined, rows)


def add_sound_encoder(file: ProjectorFile, kind: str, shape: SoundShape) -> None:
    """Add Whisper's, or one with convolutions over time and bands (`qwen3a`)."""
    stacked, rows, width = _STACKED.get(kind, 1), file.rows_width, shape.width
    file.facts(
        "audio", **shape.facts, projection_dim=rows, num_mel_bins=shape.mels, projector__stack_factor=stacked
    )
    file.writer.add_float32("clip.audio.attention.layer_norm_epsilon", 1e-5)
    if kind == "qwen3a":
        for number in (1, 2, 3):
            inputs = _CONVOLVED if number > 1 else 1
            file.convolution(f"a.conv2d.{number}", (_CONVOLVED, inputs, 3, 3), _CONVOLVED)
        file.linear("a.conv_out", _CONVOLVED * shape.mels // 8, width, biased=False)
    else:
        for number, inputs in ((1, shape.mels), (2, width)):
            file.convolution(f"a.conv1d.{number}", (width, inputs, 3), (width, 1))
    file.matrix("a.position_embd.weight", (_SOUND_ROWS, width), std=0.5, dtype=np.float32)
    file.layers("a", shape, keys_biased=False)
    file.norm("a.post_ln", width)
    match kind:
        case "ultravox":
            file.vector("mm.a.norm_pre.weight", width * stacked, 1.0)
            file.linear("mm.a.mlp.1", width * stacked, 2 * shape.ffn, biased=False)
            file.vector("mm.a.norm_mid.weight", shape.ffn, 1.0)
            file.linear("mm.a.mlp.2", shape.ffn, rows, biased=False)
        case "voxtral":
            file.linear("mm.a.mlp.1", width * stacked, rows, biased=False)
            file.linear("mm.a.mlp.2", rows, rows, biased=False)
        case "qwen2a":
            file.linear("mm.a.fc", width, rows)
        case _:
            file.linear("mm.a.mlp.1", width, width)
            file.linear("mm.a.mlp.2", width, rows)


def _kinds(text: str) -> list[str]:
    kinds = text.split("+")
    if not all(kind in (*SEEING, *HEARING) for kind in kinds):
        raise argparse.ArgumentTypeError(f"kinds are {', '.join((*SEEING, *HEARING))}")
    if sum(kind in SEEING for kind in kinds) > 1 or sum(kind in HEARING for kind in kinds) > 1:
        raise argparse.ArgumentTypeError("one kind that sees, one that hears, or both")
    return kinds


def main() -> int:
    parser = argparse.ArgumentParser(prog="make_projector.py", description=__doc__)
    parser.add_argument(
        "--kind",
        required=True,
        type=_kinds,
        metavar="KIND[+KIND]",
        help=f"one that sees ({', '.join(SEEING)}), one that hears ({', '.join(HEARING)}), or both",
    )
    parser.add_argument(
        "--shape", default="tiny", choices=list(dict.fromkeys([*PICTURE_SHAPES, *SOUND_SHAPES]))
    )
    parser.add_argument(
        "--rows-width", required=True, type=int, metavar="N", help="width of the model's embeddings"
    )
    parser.add_argument("--quant", default="f32", choices=("f32", "f16"))
    parser.add_argument("--output", required=True, type=Path, metavar="PATH")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    args = parser.parse_args()
    if any(args.shape not in (PICTURE_SHAPES if kind in SEEING else SOUND_SHAPES) for kind in args.kind):
        parser.error(f"--shape {args.shape} is not one of what {' and '.join(args.kind)} take")
    partial = args.output.with_name(f".{args.output.name}.{os.getpid()}.partial")
    try:
        file = ProjectorFile(partial, rows_width=args.rows_width, quant=args.quant, seed=args.seed)
        file.write(args.kind, args.shape)
        partial.replace(args.output)
    except OSError as error:
        print(f"make_projector: {error}", file=sys.stderr)
        return 1
    finally:
        partial.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
