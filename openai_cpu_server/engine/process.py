"""The engine process: `python -m openai_cpu_server.engine.process FD`. Wires llama, scheduler and core."""

from __future__ import annotations

import logging
import signal
import socket
import sys
from pathlib import Path

from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.engine.channel import EngineChannel
from openai_cpu_server.engine.core import EngineCore, build_core
from openai_cpu_server.engine.loop import run_engine
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.calibrate import cost_curve


def _build(options: EngineOptions, backend: Backend) -> EngineCore:
    logging.getLogger().setLevel(options.log_level.upper())
    return build_core(options, backend, _curve(options, backend))


def _curve(options: EngineOptions, backend: Backend) -> CostCurve | None:
    """What steps cost here: known from an earlier start, or measured now."""
    return cost_curve(backend, options, Path(options.cost_dir)) if options.cost_dir else None


def main() -> None:
    # Ctrl-C reaches the whole process group; the API process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[1])))
    run_engine(channel, load=LlamaBackend.load, build_core=_build)


if __name__ == "__main__":
    main()
