"""The client that goes away while its engine starts."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.messages import EngineOptions, StartEngine
from openai_cpu_server.engine.loop import EngineChannel, run_engine
from tests.engine.driver import OPTIONS
from tests.fakes import FakeBackend

Progress = Callable[[float], None]


class Loaded(FakeBackend):
    """Model that is closed like one of llama.cpp."""

    is_closed = False

    def warm_up(self) -> bool:
        return True

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, EngineChannel]]:
    """The client's end of the socket, with the start sent, and the engine's."""
    client, engine = socket.socketpair()
    with client, engine:
        client.sendall(messages.frame(StartEngine(OPTIONS)))
        yield client, EngineChannel(engine)


def never_built(*_: Any) -> Any:
    pytest.fail("nobody wants it")


def test_a_model_that_is_unloaded_while_it_loads_ends_its_engine(
    ends: tuple[socket.socket, EngineChannel],
) -> None:
    client, channel = ends

    def load(options: EngineOptions, on_progress: Progress) -> Loaded:
        client.close()
        on_progress(0.5)
        pytest.fail("it goes on without a client")

    run_engine(channel, load=load, build_core=never_built)


def test_a_model_that_is_unloaded_while_it_is_measured_is_closed(
    ends: tuple[socket.socket, EngineChannel],
) -> None:
    client, channel = ends
    model = Loaded()

    def build(options: EngineOptions, backend: Loaded, on_progress: Progress, *_: Any) -> Any:
        client.close()
        on_progress(0.5)
        pytest.fail("it goes on without a client")

    run_engine(channel, load=lambda *_: model, build_core=build)
    assert model.is_closed
