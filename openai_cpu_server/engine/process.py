"""The engine process: `python -m openai_cpu_server.engine.process FD`. Wires llama, scheduler and core."""

from __future__ import annotations

import signal
import socket
import sys

from openai_cpu_server.engine.channel import EngineChannel
from openai_cpu_server.engine.core import build_core
from openai_cpu_server.engine.loop import run_engine
from openai_cpu_server.llama.backend import LlamaBackend


def main() -> None:
    # Ctrl-C reaches the whole process group; the API process decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = EngineChannel(socket.socket(fileno=int(sys.argv[1])))
    run_engine(channel, load=LlamaBackend.load, build_core=build_core)


if __name__ == "__main__":
    main()
