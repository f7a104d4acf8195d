"""Fixtures for all tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_LIGHT = {"api", "demo_model", "engine", "observe", "prompt", "scheduler", "structured"}
"""Folders of tests that neither run llama.cpp on all cores nor start servers."""


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """scripts/test runs two workers: what needs the whole machine stays on one of them, in order."""
    for item in items:
        if item.path.relative_to(_TESTS).parts[0] not in _LIGHT:
            item.add_marker(pytest.mark.xdist_group("machine"))
