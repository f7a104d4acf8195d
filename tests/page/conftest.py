"""One browser and its servers for all modules here; for each test a visit that remembers no other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.browser import Visit, running_browser, visiting
from tests.server_process import ServerProcess

ANN, METER = "the key of ann", "the key of a meter"
"""The keys of `locked_server`: one that may ask for answers, and one that may only read metrics."""


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


@pytest.fixture(scope="package")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(_key("ann", ANN, "inference") + _key("meter", METER, "metrics"))
    with ServerProcess("--model", "demo", "--api-keys", str(keys)) as server:
        yield server


def _key(name: str, key: str, scope: str) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return f'[keys.{name}]\nsha256 = "{digest}"\nscopes = ["{scope}"]\n'


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[Visit]:
    with visiting(browser, server) as visit:
        yield visit
        assert visit.complaints == []
