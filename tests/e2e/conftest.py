"""Real server with the tiny model, shared by the end-to-end tests that leave it intact."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.e2e.serving import sdk, tiny_server
from tests.server_process import ServerProcess


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with tiny_server() as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with sdk(server) as client:
        yield client
