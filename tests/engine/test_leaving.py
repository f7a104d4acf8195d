"""A client that leaves while its engine starts. Each engine is a process of its own, because the thread that
reads from a client ends the process afterwards."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from openai_cpu_server.contract.messages import EngineOptions, StartEngine, frame
from openai_cpu_server.engine.loop import EngineChannel, run_engine
from tests.engine.driver import OPTIONS
from tests.fakes import FakeBackend
from tests.waiting import DEADLINE_S

Progress = Callable[[float], None]


@pytest.mark.parametrize(("moment", "output"), [("loading", ""), ("measuring", "closed\n")])
def test_a_model_that_is_unloaded_while_it_starts_ends_its_engine(moment: str, output: str) -> None:
    command = [sys.executable, "-m", "tests.engine.test_leaving", moment]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


class Loaded(FakeBackend):
    """Model that is closed like a model of llama.cpp."""

    def warm_up(self) -> bool:
        return True

    def close(self) -> None:
        sys.stdout.write("closed\n")
        sys.stdout.flush()


def start(moment: str) -> None:
    client, engine = socket.socketpair()
    client.sendall(frame(StartEngine(OPTIONS)))

    def leave(on_progress: Progress) -> None:
        client.close()
        on_progress(0.5)
        raise AssertionError("the engine continues without a client")

    def load(options: EngineOptions, on_progress: Progress) -> Loaded:
        if moment == "loading":
            leave(on_progress)
        return Loaded()

    def build(options: EngineOptions, backend: Loaded, on_progress: Progress, *_: Any) -> Any:
        leave(on_progress)

    run_engine(EngineChannel(engine), load=load, build_core=build)


if __name__ == "__main__":
    start(sys.argv[1])
