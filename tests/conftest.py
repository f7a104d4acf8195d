"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.packaged import PACKAGED

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


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of a model whose words mean something; scripts/bootstrap installs it."""
    try:
        return PACKAGED["smollm2"].path()
    except StartupError as error:
        pytest.skip(str(error))


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: Iterable[pytest.Item]) -> None:
    """scripts/test runs two workers: what starts servers stays on one of them."""
    for item in items:
        where = item.path.relative_to(_TESTS).parts
        if len(where) == 1 or where[0] in _SERVERS:
            item.add_marker(pytest.mark.xdist_group("servers"))
