"""What a server may take of the machine's memory, and what it takes of it."""

from __future__ import annotations

from typing import NamedTuple

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.model.kv_size import CELLS_GRANULARITY, KVType, bytes_per_cell, pool_cells

DRAFT_KV_TYPE = KVType.F16
"""The fastest."""
_STAGING_SHARE = 4
"""Of the pool's cells a quarter at most are beside it."""
_TILE = 16
_BATCH_TOKENS_MIN = 32


class Room(NamedTuple):
    """Beside the weights, a draft model's included."""

    free_bytes: int
    cell_bytes: int
    """Of one token, in the model's pool."""
    draft_cell_bytes: int
    """In the draft model's, which has as many cells; 0: there is none."""

    @classmethod
    def of(cls, header: GgufHeader, draft: GgufHeader | None, kv_type: KVType, free_bytes: int) -> Room:
        """`free_bytes`: before anything is loaded. Raises `StartupError` where a part of a file is missing.

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
        """Raises `StartupError`."""
        return pool_cells(requested, self.token_bytes, self.free_bytes)

    def staging_cells(self, options: EngineOptions, pool: int) -> int:
        """Beside a pool of so many; 0 where one step would fill them, or there is no memory for them."""
        pool = -(-pool // CELLS_GRANULARITY) * CELLS_GRANULARITY
        cells = min(options.staging_tokens, pool // _STAGING_SHARE)
        fits = pool * self.token_bytes + cells * self.cell_bytes <= self.free_bytes
        return cells if fits and cells >= min(batch_tokens(options), pool) else 0


def batch_tokens(options: EngineOptions) -> int:
    """Of a step at most."""
    tokens = max(options.prefill_tokens, options.max_seqs + _TILE, _BATCH_TOKENS_MIN)
    return -(-tokens // _TILE) * _TILE
