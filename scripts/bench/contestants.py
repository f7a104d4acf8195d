"""Contestants: our server, whole and with features off, and its alternatives."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from bench.servers import OUR_COMMAND, ServerSpec


@dataclass(frozen=True)
class Room:
    pool_tokens: int
    request_tokens: int


@dataclass(frozen=True)
class Contestant:
    """`key` names it on the command line, `label` in tables."""

    key: str
    label: str
    spec: Callable[[Path, Room], ServerSpec] = field(compare=False, repr=False)
    is_peer: bool = True
    does_json: bool = False
    takes_pictures: bool = False
    """With a projector by `--mmproj`."""
    tells_cached: bool = False
    at_once: int | None = None
    """Largest number of concurrent requests, or None for no limit."""


class Variant(enum.Enum):
    WHOLE = ("ours", "ours", ())
    CACHE_OFF = ("cache-off", "cache off", ("--experiment", "prefix_sharing=off"))
    SEQUENTIAL = ("sequential", "one at a time", ("--experiment", "prefix_sharing=off", "--max-seqs", "1"))
    STATIC = ("static", "static batching", ("--experiment", "continuous_batching=off,mixed_steps=off"))
    PLAIN_STEPS = ("plain-steps", "plain steps", ("--experiment", "tile_filling=off,mixed_steps=off"))
    FIFO = ("fifo", "fifo", ("--policy", "fifo"))

    def __init__(self, key: str, label: str, options: tuple[str, ...]) -> None:
        self.key = key
        self.label = label
        self.options = options

    @property
    def contestant(self) -> Contestant:
        return Contestant(
            key=self.key,
            label=self.label,
            spec=self._in_room,
            is_peer=False,
            does_json=True,
            takes_pictures=True,
            tells_cached=True,
            at_once=1 if self is Variant.SEQUENTIAL else None,
        )

    def _in_room(self, model: Path, room: Room) -> ServerSpec:
        return ours(self, model, "--ctx-size", str(room.pool_tokens))


_REPRODUCIBLE = ("--profile", "off", "--jobs-db", "none", "--calibrate", "start")
"""Options against results of `tune`, guesses, and the user's batch jobs."""


def ours(variant: Variant, model: Path, *options: str) -> ServerSpec:
    where = ("--model", str(model), "--port", "{port}")
    command = (*OUR_COMMAND, *where, *_REPRODUCIBLE, *variant.options, *options)
    return ServerSpec(variant.label, command, ready="/ready")
