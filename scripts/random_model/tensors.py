"""Tensors with types and scales, and random weights in ggml's block layouts (ggml/src/ggml-common.h)."""

from __future__ import annotations

import enum
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

Bytes = npt.NDArray[np.uint8]
Gains = npt.NDArray[np.float32]


def _std_of_integers(count: int) -> float:
    return math.sqrt((count * count - 1) / 12)


def _put_half(blocks: Bytes, offset: int, values: Gains) -> None:
    """Write one little-endian fp16 per block. blocks: (n, block bytes), values: (n,)."""
    blocks[:, offset : offset + 2] = values.astype("<f2").view(np.uint8).reshape(-1, 2)


def _put_signed_half(blocks: Bytes, offset: int, values: Gains) -> None:
    """Keep the sign bits. Integers such as -8..7 have a mean beside 0, which would add up over the layers
    until every prompt gets the same output."""
    sign = blocks[:, offset + 1] & 0x80
    _put_half(blocks, offset, values)
    blocks[:, offset + 1] |= sign


_FP4_STD = math.sqrt(sum(level * level for level in (0, 0.5, 1, 1.5, 2, 3, 4, 6)) / 8)
"""Standard deviation of equally likely 4-bit floats: these levels and their negatives."""

# K-quants scale each group of weights by a small integer: here 8..15, drawn from the random bytes.
_GROUP_SCALE = math.sqrt(sum(scale * scale for scale in range(8, 16)) / 8)


def _fill_f32(blocks: Bytes, std: Gains) -> None:
    integers = blocks.view("<i4").reshape(len(std)).astype(np.float32)
    blocks[:] = (integers * (std / _std_of_integers(2**32))).view(np.uint8).reshape(-1, 4)


def _fill_f16(blocks: Bytes, std: Gains) -> None:
    integers = blocks.view("<i2").reshape(len(std)).astype(np.float32)
    _put_half(blocks, 0, integers * (std / _std_of_integers(65_536)))


def _fill_integers(levels: int, blocks: Bytes, std: Gains) -> None:
    """d (fp16), 32 x int8 or 4 bits: w = d * q, with q centred on zero."""
    _put_signed_half(blocks, 0, std / _std_of_integers(levels))


def _fill_with_minima(levels: int, blocks: Bytes, std: Gains) -> None:
    """d, dmin (fp16), 8 x (6-bit scale, 6-bit minimum), 256 x 4 or 5 bits: w = d * scale * q - dmin * min.
    Minimum = scale and dmin = (levels - 1) / 2 * d, which centres the levels on zero. Below 16, all bits of a
    scale lie in the low nibbles of the packed layout."""
    d = std / np.float32(_GROUP_SCALE * _std_of_integers(levels))
    scales = (blocks[:, 4:12] & 7) | 8
    blocks[:, 4:8] = scales[:, :4]
    blocks[:, 8:12] = scales[:, :4]
    blocks[:, 12:16] = scales[:, 4:] | scales[:, 4:] << 4
    _put_half(blocks, 0, d)
    _put_half(blocks, 2, d * np.float32((levels - 1) / 2))


def _fill_q6_k(blocks: Bytes, std: Gains) -> None:
    """256 x (4 + 2 bits), 16 x int8 scale, d (fp16): w = d * scale * (q - 32)."""
    blocks[:, 192:208] = (blocks[:, 192:208] & 7) | 8
    _put_signed_half(blocks, 208, std / np.float32(_GROUP_SCALE * _std_of_integers(64)))


def _fill_mxfp4(blocks: Bytes, std: Gains) -> None:
    """e (exponent of two, from -127), 32 x 4-bit float: w = 2^e * float. A power of two seldom gives the
    wanted deviation, so each block draws one of its neighbours, as often as makes the mean square right."""
    exponent = np.log2(std / np.float32(_FP4_STD))
    low = np.floor(exponent)
    share_of_high = (4 ** (exponent - low) - 1) / 3
    blocks[:, 0] = low + 127 + (blocks[:, 0] < 256 * share_of_high)


_FILL: dict[GGMLQuantizationType, Callable[[Bytes, Gains], None]] = {
    GGMLQuantizationType.F32: _fill_f32,
    GGMLQuantizationType.F16: _fill_f16,
    GGMLQuantizationType.Q8_0: partial(_fill_integers, 256),
    GGMLQuantizationType.Q4_0: partial(_fill_integers, 16),
    GGMLQuantizationType.Q4_K: partial(_fill_with_minima, 16),
    GGMLQuantizationType.Q5_K: partial(_fill_with_minima, 32),
    GGMLQuantizationType.Q6_K: _fill_q6_k,
    GGMLQuantizationType.MXFP4: _fill_mxfp4,
}


@dataclass(frozen=True)
class BlockType:
    type: GGMLQuantizationType

    def row_bytes(self, columns: int) -> int:
        weights, size = GGML_QUANT_SIZES[self.type]
        if columns % weights:
            raise ValueError(
                f"rows of {columns} weights do not divide into {self.type.name} blocks of {weights}"
            )
        return int(columns // weights * size)

    def random(self, bits: np.random.BitGenerator, std: Gains, columns: int) -> Bytes:
        """Return rows of random weights with mean near 0: (rows, row bytes). std: (rows,), one per row."""
        weights, size = GGML_QUANT_SIZES[self.type]
        row_bytes = self.row_bytes(columns)
        num_bytes = len(std) * row_bytes
        raw = bits.random_raw(-(-num_bytes // 8)).astype("<u8", copy=False).view(np.uint8)[:num_bytes]
        _FILL[self.type](raw.reshape(-1, size), np.repeat(std, columns // weights))
        return raw.reshape(len(std), row_bytes)


QUIET = 1 / 16
"""Scale of the output rows of unwanted tokens: their logits stay near 0."""

LOGIT_STD = 3.0
"""Wide enough for clear winners, and narrow enough for sampling to vary."""

QUERY_KEY_GAIN = 1.6
"""Makes attention prefer some tokens. With 1 it averages over all, and every text ends in the same loop."""

TIED_EMBEDDING_STD = 0.02
"""Far below the 1 that each layer adds, or tied embeddings repeat the last token for ever."""


F32, Q8_0, Q5_K, Q6_K, MXFP4 = (
    BlockType(GGMLQuantizationType[name]) for name in ("F32", "Q8_0", "Q5_K", "Q6_K", "MXFP4")
)


class Quant(enum.Enum):
    F32 = "f32"
    F16 = "f16"
    Q8_0 = "q8_0"
    Q4_0 = "q4_0"
    Q4_K_M = "q4_k_m"
    MXFP4 = "mxfp4"

    @property
    def file_type(self) -> LlamaFileType:
        if self is Quant.F32:
            return LlamaFileType.ALL_F32
        return LlamaFileType.MOSTLY_MXFP4_MOE if self is Quant.MXFP4 else LlamaFileType[f"MOSTLY_{self.name}"]

    def block(self, kind: str, *, is_of_experts: bool, gets_more_bits: bool) -> BlockType:
        """Return llama.cpp's type of such a matrix (`llama_tensor_get_type_impl`)."""
        if self is Quant.MXFP4:
            return MXFP4 if is_of_experts else Q8_0
        if kind == "output.weight" and self in (Quant.Q4_0, Quant.Q4_K_M):
            return Q6_K
        if self is Quant.Q4_K_M and kind == "attn_qkv.weight":
            return Q5_K
        if self is Quant.Q4_K_M and kind.startswith(("attn_v", "ffn_down")) and gets_more_bits:
            return Q6_K
        return BlockType(GGMLQuantizationType[self.name.removesuffix("_M")])


@dataclass(frozen=True)
class Constant:
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
    """Random weights of mean 0 and this standard deviation, in quiet rows smaller by `QUIET`."""

    name: str
    shape: tuple[int, ...]
    """Columns come last."""
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
        """Return (rows, bytes of a row). Depends on the seed and the name only."""
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
