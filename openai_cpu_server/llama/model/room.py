"""How much of the machine's memory a server may take, and for what."""

from __future__ import annotations

from typing import NamedTuple

from openai_cpu_server.contract.cost import TILE_TOKENS
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.model.kv_size import KVType, bytes_per_cell, pool_cells

DRAFT_KV_TYPE = KVType.F16
"""The fastest type."""
_BATCH_TOKENS_MIN = 32
LEAST_TOKENS = 512
"""Of an encoder's input."""
_SHARE_OF_MEMORY = 8
"""llama.cpp reserves a row of logits for each token of a step, also where it never computes one. They may
take one part of so many of the free memory."""
_LOGIT_BYTES = 4


class Room(NamedTuple):
    """The memory that is left beside the weights of the model and the draft model."""

    free_bytes: int
    cell_bytes: int
    """Bytes of one token in the model's pool."""
    draft_cell_bytes: int
    """Bytes of one token in the draft model's pool, which has as many cells; 0 without a draft model."""

    @classmethod
    def of(cls, header: GgufHeader, draft: GgufHeader | None, kv_type: KVType, free_bytes: int) -> Room:
        """`free_bytes` are counted before anything is loaded. Raises `StartupError` where a part of a file is
        missing.

        Weights that stay mapped count as free memory of the machine's for ever: without them steps take as
        long as the disk.
        """
        weights = sum(total_bytes(model_files(one)) for one in (header, draft) if one is not None)
        draft_cell = bytes_per_cell(draft, DRAFT_KV_TYPE) if draft is not None else 0
        return cls(max(0, free_bytes - weights), bytes_per_cell(header, kv_type), draft_cell)

    @property
    def token_bytes(self) -> int:
        return self.cell_bytes + self.draft_cell_bytes

    def pool_cells(self, requested: int | None) -> int:
        """The number of cells in the pool. Raises `StartupError`."""
        return pool_cells(requested, self.token_bytes, self.free_bytes)


def batch_tokens(options: EngineOptions) -> int:
    """The most tokens that one step may have."""
    tokens = max(options.prefill_tokens, options.max_seqs + TILE_TOKENS, _BATCH_TOKENS_MIN)
    return -(-tokens // TILE_TOKENS) * TILE_TOKENS


def tokens_that_fit(free_bytes: int, vocab_size: int) -> int:
    """The longest input whose rows of logits, which llama.cpp reserves for encoders too, leave most of the
    memory free."""
    return max(LEAST_TOKENS, free_bytes // _SHARE_OF_MEMORY // (vocab_size * _LOGIT_BYTES))
