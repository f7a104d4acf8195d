"""One browser and one server for all modules here; a visit, with storage of its own, for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.browser import Visit, running_browser, visiting
from tests.server import ServerProcess


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="package")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", "demo") as server:
        yield server


@pytest.fixture(scope="package")
def slow_server(smollm2: Path) -> Iterator[ServerProcess]:
    """A model that writes slowly enough to be watched."""
    with ServerProcess("--model", str(smollm2)) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[Visit]:
    with visiting(browser, server) as visit:
        yield visit
        assert visit.complaints == []
