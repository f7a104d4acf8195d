"""A fixture for the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_model import tiny_model_path


@pytest.fixture(scope="session")
def tiny() -> Path:
    return tiny_model_path()
