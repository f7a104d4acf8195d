"""One real server with the tiny model for all end-to-end tests that do not harm it."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path


@pytest.fixture(scope="session")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", str(tiny_model_path()), "--served-model-name", "tiny") as process:
        yield process


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk
