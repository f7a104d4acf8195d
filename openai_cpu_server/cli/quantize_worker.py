"""Worker of `quantize`, which kills it and removes its output on Ctrl-C, because native calls cannot be
stopped otherwise. If the command is gone, standard input ends, and the worker cleans up."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import msgspec

from openai_cpu_server.child_processes.signals import leave_signals_to_parent
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.quantize import (
    QuantizeFailed,
    QuantizeOptions,
    QuantizePlan,
    plan,
    write_quantized,
)

_ABANDONED = 1
_STDIN = 0


class QuantizeJob(msgspec.Struct, frozen=True):
    """First line to the worker, which answers with the plan."""

    source: str
    options: QuantizeOptions


class QuantizeOrder(msgspec.Struct, frozen=True):
    """Second line to the worker, which answers with each tensor's number, then the end."""

    folder: str
    """Output folder, which the worker removes if the command is gone."""
    target: str
    """File in it, or the beginning of the parts' names."""


class QuantizeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Line from the worker, with one field. `is_end` or a `failure` makes it the last."""

    plan: QuantizePlan | None = None
    tensor: int | None = None
    """Position of the begun tensor in the plan, from 1."""
    is_end: bool = False
    failure: str | None = None


def main() -> None:
    leave_signals_to_parent()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=QuantizeJob)
    try:
        _work(job)
    except (QuantizeFailed, StartupError) as error:
        _send(QuantizeAnswer(failure=str(error)))


def _work(job: QuantizeJob) -> None:
    source = Path(job.source)
    _send(QuantizeAnswer(plan=plan(source, job.options)))
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the plan was all that was wanted
    order = msgspec.json.decode(line, type=QuantizeOrder)

    def leave_with_parent() -> None:
        while os.read(_STDIN, 1):
            pass
        shutil.rmtree(order.folder, ignore_errors=True)
        os._exit(_ABANDONED)

    threading.Thread(target=leave_with_parent, daemon=True).start()
    write_quantized(
        source, Path(order.target), job.options, lambda number: _send(QuantizeAnswer(tensor=number))
    )
    _send(QuantizeAnswer(is_end=True))


def _send(answer: QuantizeAnswer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
