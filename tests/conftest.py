"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_TOGETHER = {"e2e", "test_tune.py"}
"""What starts most of the servers, or measures the machine: half of the suite's time."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """scripts/test runs two workers: these stay on one of them, in order."""
    for item in items:
        if item.path.relative_to(_TESTS).parts[0] in _TOGETHER:
            item.add_marker(pytest.mark.xdist_group("servers"))
