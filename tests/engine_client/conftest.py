from __future__ import annotations

from pathlib import Path

import pytest

from openai_cpu_server.engine_client import child, deaths
from tests.gates import Gate


@pytest.fixture
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor looks at its engine, and starts the next one, ten times as soon."""
    monkeypatch.setattr(child, "TICK_S", 0.05)
    monkeypatch.setattr(deaths, "_FIRST_BACKOFF_S", 0.01)


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "steps", 0)


@pytest.fixture
def door(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "door")
