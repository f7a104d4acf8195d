"""Computes what fits into this machine's memory beside the weights."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from openai_cpu_server.commands.inspect.facts import Facts
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.llama.model.room import Room

_LENGTHS = (1_024, 4_096)


class Fit(msgspec.Struct, frozen=True):
    """How many sequences of this length fit at once, if they share nothing."""

    tokens: int
    sequences: int


class KvCost(msgspec.Struct, frozen=True):
    type: str
    bytes_per_token: int
    """The bytes of one token, its cell in the draft model's pool included."""
    tokens: int
    """The tokens that fit in total."""
    fits: list[Fit]


class Memory(msgspec.Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    left_bytes: int
    """The memory left beside the weights, the draft model's included; 0 if they do not fit."""
    draft_model: str | None
    kv_type: str
    """The KV type that `serve` would use."""
    kv_types: list[KvCost]
    """The cost of each KV type; [] if the model has no KV cells."""
    pool_tokens: int | None
    """The tokens that `serve` would set aside for all its requests; None: it would not start."""
    context: int | None
    """The most tokens that it would grant to one request."""
    problem: str | None
    """Why it would not start; None: it would."""


def read_memory(
    header: GgufHeader,
    facts: Facts,
    options: EngineOptions,
    machine: Machine,
    draft: GgufHeader | None = None,
) -> Memory:
    """`options` are those that `serve` would have."""
    free, trained = machine.free_memory(), facts.shape.context_trained
    rooms = {kind: Room.of(header, draft, kind, free) for kind in KVType}
    left = rooms[KVType.F16].free_bytes
    pool, problem = None, None
    try:
        room = rooms[KVType.named(options.kv_type)]
        pool = room.pool_cells(options.kv_tokens)
    except StartupError as error:
        problem = str(error)
    return Memory(
        total_bytes=machine.total_memory(),
        free_bytes=free,
        left_bytes=left,
        draft_model=str(draft.path) if draft is not None else None,
        kv_type=options.kv_type,
        kv_types=_costs(rooms, trained),
        pool_tokens=pool,
        context=pool if pool is None or trained is None else min(pool, trained),
        problem=problem,
    )


def _costs(rooms: Mapping[KVType, Room], trained: int | None) -> list[KvCost]:
    lengths = [length for length in _LENGTHS if trained is None or length < trained]
    lengths += [trained] if trained is not None else []
    return [
        KvCost(kind.label, room.token_bytes, tokens, [Fit(length, tokens // length) for length in lengths])
        for kind, room in rooms.items()
        if room.cell_bytes > 0 and (tokens := room.free_bytes // room.token_bytes) >= 0
    ]
