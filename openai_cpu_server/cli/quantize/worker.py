"""Process that quantises, because a native call can be stopped only by killing its process.

On Ctrl-C the command kills it and removes its output. If the command is gone, standard input ends, and this
process cleans up and exits.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from pathlib import Path

import msgspec

from openai_cpu_server.child_processes.signals import leave_signals_to_parent
from openai_cpu_server.cli.quantize.child import (
    Answer,
    QuantizeDone,
    QuantizeJob,
    QuantizeOrder,
    QuantizePlanned,
    QuantizeRefused,
    TensorBegun,
)
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.quantize import QuantizeFailed, plan, quantize

_ABANDONED = 1
_STDIN = 0


def main() -> None:
    leave_signals_to_parent()
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=QuantizeJob)
    try:
        _work(job)
    except (QuantizeFailed, StartupError) as error:
        _send(QuantizeRefused(str(error)))


def _work(job: QuantizeJob) -> None:
    _send(QuantizePlanned(plan(Path(job.source), job.options)))
    line = sys.stdin.buffer.readline()
    if not line:
        return  # the plan was all that was wanted
    go = msgspec.json.decode(line, type=QuantizeOrder)
    threading.Thread(target=_leave_with_parent, args=(Path(go.folder),), daemon=True).start()
    quantize(Path(job.source), Path(go.target), job.options, lambda number: _send(TensorBegun(number)))
    _send(QuantizeDone())


def _leave_with_parent(folder: Path) -> None:
    while os.read(_STDIN, 1):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(_ABANDONED)


def _send(answer: Answer) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
