"""Tensors of a model, with their types and scales."""

from __future__ import annotations

import enum
import math
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, LlamaFileType

from random_model.blocks import BlockType

QUIET = 1 / 16
"""Scale of the output rows of tokens that should not come up: their logits stay near 0."""

LOGIT_STD = 3.0
"""Spread of the logits, wide enough for clear winners and narrow enough for sampling to vary."""

QUERY_KEY_GAIN = 1.6
"""Makes attention prefer some tokens. With 1 it averages over all, and every text ends in the same loop."""

TIED_EMBEDDING_STD = 0.02
"""Far below the 1 that each layer adds, or a model with tied embeddings repeats its last token for ever."""


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
        """Return the type that llama.cpp gives to such a matrix (`llama_tensor_get_type_impl`)."""
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
