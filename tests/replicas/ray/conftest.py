"""Files of slow tests that import Ray are not even imported when no slow test is to run."""

from __future__ import annotations

from pathlib import Path

import pytest

_IMPORT_RAY = {"test_request_router.py", "test_scaling.py"}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None leaves it to others."""
    return ("not slow" in config.option.markexpr and collection_path.name in _IMPORT_RAY) or None
