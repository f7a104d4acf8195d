"""What fits into this machine's memory beside the weights."""

from __future__ import annotations

import msgspec
import psutil

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.inspection.facts import Facts
from openai_cpu_server.llama.gguf_header import GgufHeader
from openai_cpu_server.llama.kv_size import KVType, bytes_per_cell, pool_cells
from openai_cpu_server.llama.machine import Machine

_LENGTHS = (1_024, 4_096)


class Fit(msgspec.Struct, frozen=True):
    """Sequences of so many tokens that fit at once, when they share nothing."""

    tokens: int
    sequences: int


class KvCost(msgspec.Struct, frozen=True):
    type: str
    bytes_per_token: int
    tokens: int
    """That fit in total."""
    fits: list[Fit]


class Memory(msgspec.Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    left_bytes: int
    """Beside the weights; 0 if they do not fit."""
    kv_type: str
    """That `serve` would take."""
    kv_types: list[KvCost]
    """Empty: the model has no KV cells."""
    pool_tokens: int | None
    """That `serve` would set aside for all its requests; None: it would not start."""
    context: int | None
    """Tokens that it would grant to one request."""
    problem: str | None
    """Why it would not start."""


def read_memory(header: GgufHeader, facts: Facts, options: EngineOptions, machine: Machine) -> Memory:
    """`options`: those that `serve` would have."""
    free = machine.free_memory()
    left = max(0, free - facts.file_bytes)
    pool, problem = _pool(header, options, left)
    trained = facts.shape.context_trained
    return Memory(
        total_bytes=int(psutil.virtual_memory().total),
        free_bytes=free,
        left_bytes=left,
        kv_type=options.kv_type,
        kv_types=_costs(header, left, trained),
        pool_tokens=pool,
        context=pool if pool is None or trained is None else min(pool, trained),
        problem=problem,
    )


def _pool(header: GgufHeader, options: EngineOptions, left: int) -> tuple[int | None, str | None]:
    try:
        cell_bytes = bytes_per_cell(header, KVType.named(options.kv_type))
        return pool_cells(options.kv_tokens, cell_bytes, left), None
    except StartupError as error:
        return None, str(error)


def _costs(header: GgufHeader, left: int, trained: int | None) -> list[KvCost]:
    costs = [(kind.label, bytes_per_cell(header, kind)) for kind in KVType]
    lengths = [length for length in _LENGTHS if trained is None or length < trained]
    lengths += [trained] if trained is not None else []
    return [
        KvCost(label, cell_bytes, tokens, [Fit(length, tokens // length) for length in lengths])
        for label, cell_bytes in costs
        if cell_bytes > 0 and (tokens := left // cell_bytes) >= 0
    ]
