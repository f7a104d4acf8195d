"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_SERVERS = {"batch", "e2e", "fuzz"}
"""Folders of tests that start servers; the files beside the folders mostly do so too."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """scripts/test runs two workers: what starts servers stays on one of them."""
    for item in items:
        where = item.path.relative_to(_TESTS).parts
        if len(where) == 1 or where[0] in _SERVERS:
            item.add_marker(pytest.mark.xdist_group("servers"))
