"""The tensors of a model, and how each is stored and scaled."""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, LlamaFileType

from random_model.blocks import BlockType
from random_model.shapes import Shape

QUIET = 1 / 16
"""The scale of the output rows of tokens that should not come up: their logits stay near 0."""

LOGIT_STD = 3.0
"""The spread of the logits, wide enough for clear winners and narrow enough for sampling to vary."""

QUERY_KEY_GAIN = 1.6
"""Makes attention prefer some tokens; with 1 it averages over all, and every text ends in the same loop."""

TIED_EMBEDDING_STD = 0.02
"""Far below the 1 that each layer adds, or a model with tied embeddings repeats its last token for ever."""


class Quant(enum.Enum):
    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_K_M = "q4_k_m"

    @property
    def file_type(self) -> LlamaFileType:
        return LlamaFileType.ALL_F32 if self is Quant.F32 else LlamaFileType[f"MOSTLY_{self.name}"]

    @property
    def base(self) -> BlockType:
        """The type of most weights."""
        return BlockType(GGMLQuantizationType[self.name.removesuffix("_M")])

    @property
    def better(self) -> BlockType:
        """The type that llama.cpp gives to some of `attn_v` and `ffn_down`."""
        return BlockType(GGMLQuantizationType.Q6_K) if self is Quant.Q4_K_M else self.base

    @property
    def output(self) -> BlockType:
        """The type that llama.cpp gives to the output matrix."""
        return BlockType(GGMLQuantizationType.Q6_K) if self in (Quant.Q4_0, Quant.Q4_K_M) else self.base


@dataclass(frozen=True)
class Constant:
    """One number all over, as in a norm's weights."""

    name: str
    shape: tuple[int, ...]
    value: float = 1.0

    type = GGMLQuantizationType.F32

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * 4

    def data(self, seed: int) -> npt.NDArray[np.float32]:
        return np.full(self.shape, self.value, dtype="<f4")


@dataclass(frozen=True)
class Matrix:
    """Random weights of mean 0 and this standard deviation. In quiet rows it is smaller by `QUIET`."""

    name: str
    shape: tuple[int, ...]
    """The last number is that of the columns."""
    block: BlockType
    std: float
    quiet_rows: tuple[int, ...] = ()

    @property
    def type(self) -> GGMLQuantizationType:
        return self.block.type

    @property
    def rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def num_bytes(self) -> int:
        return self.rows * self.block.row_bytes(self.shape[-1])

    def data(self, seed: int) -> npt.NDArray[np.uint8]:
        """(rows, bytes of a row). Depends on the seed and the name only."""
        std = np.full(self.rows, self.std, dtype=np.float32)
        std[list(self.quiet_rows)] *= QUIET
        return self.block.random(_random_bits(seed, self.name), std, self.shape[-1])


@dataclass(frozen=True)
class Negative:
    """Random weights below 0, evenly from `least` up to `most`: how fast a state forgets."""

    name: str
    shape: tuple[int, ...]
    least: float
    most: float

    type = GGMLQuantizationType.F32

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * 4

    def data(self, seed: int) -> npt.NDArray[np.float32]:
        random = np.random.Generator(_random_bits(seed, self.name))
        return random.uniform(self.least, self.most, self.shape).astype("<f4")


def _random_bits(seed: int, name: str) -> np.random.SFC64:
    return np.random.SFC64(np.random.SeedSequence([seed, zlib.crc32(name.encode())]))


Tensor = Constant | Matrix | Negative


def all_tensors(shape: Shape, quant: Quant, quiet: list[int]) -> Iterator[Tensor]:
    """Every tensor of the file, in order. `quiet` are tokens that should hardly ever be sampled."""
    unit, rows = 1 / math.sqrt(shape.width), tuple(quiet)
    if shape.tied:
        yield Matrix("token_embd.weight", (shape.vocab, shape.width), quant.output, TIED_EMBEDDING_STD, rows)
        yield Constant("output_norm.weight", (shape.width,), LOGIT_STD * unit / TIED_EMBEDDING_STD)
    else:
        yield Matrix("token_embd.weight", (shape.vocab, shape.width), quant.base, 1.0)
        yield Constant("output_norm.weight", (shape.width,), LOGIT_STD)
        yield Matrix("output.weight", (shape.vocab, shape.width), quant.output, unit, rows)
    for layer in range(shape.layers):
        yield from _layer(shape, quant, layer)


def _layer(shape: Shape, quant: Quant, layer: int) -> Iterator[Tensor]:
    """Scaled so that a normalised input gives each sublayer an output of about 1 per element."""
    mixed = quant.better if _gets_more_bits(layer, shape.layers) else quant.base
    width, kv_width, ffn = shape.width, shape.kv_width, shape.ffn
    unit, name = 1 / math.sqrt(width), f"blk.{layer}."
    yield Constant(name + "attn_norm.weight", (width,))
    yield Matrix(name + "attn_q.weight", (width, width), quant.base, QUERY_KEY_GAIN * unit)
    yield Matrix(name + "attn_k.weight", (kv_width, width), quant.base, QUERY_KEY_GAIN * unit)
    yield Matrix(name + "attn_v.weight", (kv_width, width), mixed, unit)
    yield Matrix(name + "attn_output.weight", (width, width), quant.base, unit)
    yield Constant(name + "ffn_norm.weight", (width,))
    yield Matrix(name + "ffn_gate.weight", (ffn, width), quant.base, unit)
    yield Matrix(name + "ffn_up.weight", (ffn, width), quant.base, unit)
    yield Matrix(name + "ffn_down.weight", (width, ffn), mixed, 2 / math.sqrt(ffn))


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's own choice for Q4_K_M (`use_more_bits` in src/llama-quant.cpp)."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
