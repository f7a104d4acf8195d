"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

_TESTS = Path(__file__).parent
_SERVERS = {"commands", "e2e", "fuzz"}
"""Folders of tests that start servers; the files beside the folders mostly do so too."""


def pytest_configure() -> None:
    """Let Ctrl-C reach what the tests start: a shell starts background jobs with that signal ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


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
