from __future__ import annotations

from pathlib import Path

import pytest

from tests.gates import Gate


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """Closed until the test opens it."""
    return Gate(tmp_path / "steps", 0)


@pytest.fixture
def door(tmp_path: Path) -> Gate:
    """Open until the test closes it."""
    return Gate(tmp_path / "door")
