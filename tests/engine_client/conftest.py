from __future__ import annotations

from pathlib import Path

import pytest

from tests.gates import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "steps", 0)


@pytest.fixture
def door(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "door")
