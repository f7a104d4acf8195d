"""Real reader processes on the demo's and the tiny model's vocabularies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from openai_cpu_server.reader.messages import ModelSource
from openai_cpu_server.reader.model import ReadModel
from openai_cpu_server.reader.pool import ReaderPool
from tests.tiny_model import tiny_model_path

DEMO = Path(__file__).parents[2] / "model_assets" / "demo.gguf"


@pytest.fixture(scope="session")
def pool() -> Iterator[ReaderPool]:
    with ReaderPool() as pool:
        yield pool


def opened(pool: ReaderPool, path: Path) -> ReadModel:
    return ReadModel(pool, ModelSource(path=str(path), generates=True))


@pytest.fixture(scope="session")
def demo(pool: ReaderPool) -> ReadModel:
    return opened(pool, DEMO)


@pytest.fixture(scope="session")
def tiny(pool: ReaderPool) -> ReadModel:
    return opened(pool, tiny_model_path())
