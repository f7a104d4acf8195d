"""What the command and the process that does the work tell each other: JSON, an object a line."""

from __future__ import annotations

from typing import Union

import msgspec

from openai_cpu_server.llama.gguf.quantize import Plan, QuantizeOptions


class Job(msgspec.Struct, frozen=True):
    """The first line that the process gets; it answers `Planned` or `Failed`."""

    source: str
    options: QuantizeOptions


class Go(msgspec.Struct, frozen=True):
    """The second line; `Began` for each tensor and then `Done` or `Failed` come back."""

    folder: str
    """Where the output is made; removed if nobody is left who would."""
    target: str
    """File in it; of several parts, what their names begin with."""


class Planned(msgspec.Struct, frozen=True, tag=True):
    plan: Plan


class Began(msgspec.Struct, frozen=True, tag=True):
    number: int
    """Of the tensor, from 1, in the plan's order."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """All is written."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    reason: str


Answer = Union[Planned, Began, Done, Failed]
