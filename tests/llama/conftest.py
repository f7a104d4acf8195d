"""Real llama.cpp on the tiny model; one backend for the stories that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from tests.tiny_model import tiny_model_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = f"{Path(__file__).parent}/"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.native)


@pytest.fixture(scope="session")
def tiny() -> Path:
    return tiny_model_path()


@pytest.fixture(scope="session")
def vocabulary(tiny: Path) -> Iterator[Vocabulary]:
    with Vocabulary.open(tiny) as vocabulary:
        yield vocabulary


@pytest.fixture(scope="session")
def backend(tiny: Path) -> Iterator[LlamaBackend]:
    """Stories close the slots that they open."""
    options = EngineOptions(model_path=str(tiny), kv_tokens=4096, max_seqs=8, prefill_tokens=2048, threads=1)
    backend = LlamaBackend.load(options, lambda fraction: None)
    yield backend
    backend.close()
