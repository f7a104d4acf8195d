from __future__ import annotations

from pathlib import Path

import pytest

from tests.gates import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Each process may begin twelve steps: enough for all requests of a test to get some tokens."""
    return Gate(tmp_path / "steps", 12)


@pytest.fixture
def door(tmp_path: Path) -> Gate:
    """Open until the test closes it."""
    return Gate(tmp_path / "door")
