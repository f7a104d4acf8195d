"""One browser and its servers for all modules here; for each test a visit that remembers no other."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.page.browser import Visit, running_browser, visiting
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path

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
def media_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """The model `seeing` sees and hears, `blind` does neither."""
    seeing = tmp_path_factory.mktemp("seeing") / "model.gguf"
    shutil.copyfile(tiny_model_path(sees=True), seeing)
    shutil.copyfile(tiny_projector_path("gemma3+ultravox", rows_width=256), seeing.with_name("mmproj.gguf"))
    models = f"seeing={seeing}", f"blind={tiny_model_path()}"
    with ServerProcess(*(option for model in models for option in ("--model", model))) as server:
        yield server


@pytest.fixture
def media_visit(browser: Browser, media_server: ServerProcess) -> Iterator[Visit]:
    with visiting(browser, media_server) as visit:
        yield visit
        assert visit.complaints == []


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
