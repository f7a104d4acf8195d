"""The file of slow tests that imports Ray is not even imported when no slow test is to run."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Return None to leave the decision to other hooks."""
    return ("not slow" in config.option.markexpr and collection_path.name == "test_hooks.py") or None
