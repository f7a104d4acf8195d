"""The messages between the command and the process that does the work: one JSON object per line."""

from __future__ import annotations

from typing import Union

import msgspec

from openai_cpu_server.llama.gguf.quantize import Plan, QuantizeOptions


class Job(msgspec.Struct, frozen=True):
    """The first line to the process, which answers with `Planned` or `Failed`."""

    source: str
    options: QuantizeOptions


class Go(msgspec.Struct, frozen=True):
    """The second line. The process answers with `Began` for each tensor, then with `Done` or `Failed`."""

    folder: str
    """The folder in which the output is made. The process removes it if the command is gone."""
    target: str
    """The file in it; for several parts, what their names begin with."""


class Planned(msgspec.Struct, frozen=True, tag=True):
    plan: Plan


class Began(msgspec.Struct, frozen=True, tag=True):
    number: int
    """The number of the tensor in the plan's order, from 1."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """All files are written."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    reason: str


Answer = Union[Planned, Began, Done, Failed]
