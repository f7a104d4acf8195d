"""Browser and servers of all page tests, and a visit for each test without state of others."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.e2e.serving import key_file
from tests.page.browser import Visit, running_browser, visiting
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path, tiny_projector_path

ROOT = Path(__file__).parents[2]
ANN, METER = "key-of-ann", "key-of-a-meter"
"""Keys of `locked_server`: one that may generate, and one that may only read metrics."""

THINKS = (
    "{{ messages[-1].content }}"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
)
"""Chat template of a model that thinks, unless thinking is switched off."""


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


TOOLS = f"""
[mcp.tools]
command = "{sys.executable}"
args = ["-m", "tests.tool_server"]
cwd = "{ROOT}"
env = {{PYTHONPATH = "{ROOT}"}}
tools = ["add", "broken", "lure", "doze"]

[mcp.gone]
command = "no-such-command"
"""


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Server with tools of MCP servers; the others have none."""
    settings = tmp_path_factory.mktemp("tools") / "settings.toml"
    settings.write_text(TOOLS)
    with ServerProcess("--model", "demo", "--config", str(settings)) as server:
        yield server


@pytest.fixture(scope="package")
def slow_server(smollm2: Path) -> Iterator[ServerProcess]:
    """Server of a model that writes slowly enough to be watched."""
    with ServerProcess("--model", str(smollm2)) as server:
        yield server


@pytest.fixture(scope="package")
def media_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Server whose model `seeing` takes pictures and sounds, while `blind` takes neither and thinks before it
    answers. `resting` is never loaded."""
    folder = tmp_path_factory.mktemp("models")
    shutil.copyfile(tiny_model_path(sees=True), folder / "seeing.gguf")
    shutil.copyfile(tiny_projector_path("gemma3+ultravox", rows_width=256), folder / "mmproj.gguf")
    (folder / "thinks.jinja").write_text(THINKS)
    settings = folder / "settings.toml"
    settings.write_text(
        f'[models.seeing]\nsource = "{folder / "seeing.gguf"}"\nmmproj = "{folder / "mmproj.gguf"}"\n'
        f'[models.blind]\nsource = "{tiny_model_path()}"\nchat_template = "{folder / "thinks.jinja"}"\n'
    )
    (folder / "shelf").mkdir()
    shutil.copyfile(tiny_model_path(), folder / "shelf" / "resting.gguf")
    with ServerProcess("--config", str(settings), "--models-dir", str(folder / "shelf")) as server:
        yield server


@pytest.fixture
def media_visit(browser: Browser, media_server: ServerProcess) -> Iterator[Visit]:
    with visiting(browser, media_server) as visit:
        yield visit
        assert visit.complaints == []


@pytest.fixture(scope="package")
def locked_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    lines = {ANN: 'scopes = ["inference"]', METER: 'scopes = ["metrics"]'}
    keys = key_file(tmp_path_factory.mktemp("keys") / "keys.toml", lines)
    with ServerProcess("--model", "demo", "--api-keys", str(keys)) as server:
        yield server


@pytest.fixture
def visit(browser: Browser, server: ServerProcess) -> Iterator[Visit]:
    with visiting(browser, server) as visit:
        yield visit
        assert visit.complaints == []
