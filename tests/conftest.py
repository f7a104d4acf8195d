"""Fixtures for all tests."""

from __future__ import annotations

import signal
from collections.abc import Iterable
from pathlib import Path

import pytest

from openai_cpu_server.kernels.build import LIBRARY
from openai_cpu_server.kernels.library import put_in_front

_TESTS = Path(__file__).parent
_SERVERS = {"commands", "e2e", "fuzz"}
"""Folders of tests that start servers; the files beside the folders mostly do so too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kernels-library", default=str(LIBRARY), help="the library that tests run with")


def pytest_configure(config: pytest.Config) -> None:
    """Put the kernels in front of ggml, before any test imports it, as an engine process does.

    Let Ctrl-C reach what the tests start: a shell starts background jobs with that signal ignored.
    """
    put_in_front(Path(config.getoption("kernels_library")))
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
