"""The dashboard with a real server under load, a real Prometheus, and Grafana's own components in Chromium.

Grafana itself is in no package that can be had here. `tests/deploy/grafana` draws with the components of its
panels. That takes minutes, for npm has hundreds of packages to bring: run it with `-m slow`.
DASHBOARD_PICTURE names a file for a picture of all of it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.adapters import make_adapter
from tests.deploy import ROOT
from tests.page.browser import running_browser
from tests.server_process import ServerProcess, engines_of
from tests.tiny_bert import TinyBert
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(1200)]

DASHBOARD = ROOT / "deploy" / "chart" / "files" / "dashboard.json"
ALERTS = DASHBOARD.with_name("alerts.yml")
GRAFANA = Path(__file__).with_name("grafana")
_ASSETS = ROOT / "model_assets"
_STEP_S = 2
_OPTIONS = f"""
ctx_size = 2048
cache_mb = 8
answer_cache = "memory"
experiment = "always_drafts=on"
[models.demo]
source = "{_ASSETS / "demo.gguf"}"
pinned = true
[models.sleepy]
source = "{_ASSETS / "demo-draft.gguf"}"
keep_alive = 1
[models.tiny]
source = "{tiny_model_path()}"
[models.tiny.adapters]
one = "ADAPTER"
[models.embeds]
source = "EMBEDS"
[models.auto.router]
small = "demo"
large = "tiny"
by = "rules"
rules = [{{ route = "large", prompt_tokens_over = 60 }}]
"""
_PROMETHEUS = """
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [ALERTS]
scrape_configs:
  - job_name: openai-cpu-server
    static_configs: [{targets: ["SERVER"]}]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    adapter = make_adapter(folder / "one.gguf")
    embeds = TinyBert().write(folder / "embeds")
    options = _OPTIONS.replace("ADAPTER", str(adapter)).replace("EMBEDS", str(embeds))
    (folder / "server.toml").write_text(options)
    with ServerProcess("--config", str(folder / "server.toml"), "--calibrate", "start") as process:
        yield process


@pytest.fixture(scope="module")
def prometheus(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not shutil.which("prometheus"):
        pytest.skip("there is no Prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    config = _PROMETHEUS.replace("ALERTS", str(ALERTS)).replace("SERVER", server.url.removeprefix("http://"))
    (folder / "prometheus.yml").write_text(config)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    files = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    command = ["prometheus", *files, f"--web.listen-address={address}", "--log.level=error"]
    is_over = threading.Event()
    load = threading.Thread(target=_load, args=(server, is_over))
    with subprocess.Popen(command) as process:
        load.start()
        try:
            yield f"http://{address}"
        finally:
            is_over.set()
            load.join()
            process.terminate()


def _load(server: ServerProcess, is_over: threading.Event) -> None:
    """Something of everything that the dashboard shows, again and again, and the death of an engine."""
    rows = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/completions", "body": {"prompt": f"{i}"}}
        for i in range(20)
    ]
    lines = "\n".join(json.dumps(row) for row in rows).encode()
    with httpx.Client(base_url=server.url, timeout=DEADLINE_S) as client:
        file = client.post("/v1/files", files={"file": ("b.jsonl", lines)}, data={"purpose": "batch"}).json()
        batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        assert client.post("/v1/batches", json=batch).status_code == 200
        for number in itertools.count():
            if is_over.is_set():
                return
            _ask_everything(client, number)
            wait_until(lambda: server.status()["models"]["sleepy"]["state"] == "asleep")
            if number == 5:
                engines_of(server.process.pid)[0].kill()


def _ask_everything(client: httpx.Client, number: int) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"const": {"a": "constant"}}}}
    story = "one two three four five six seven eight nine ten " * 3
    for body in (
        {"model": "demo", "prompt": story, "max_tokens": 24, "temperature": 0},
        {"model": "demo", "prompt": f"{story}{number}", "max_tokens": 16, "n": 2},
        {"model": "tiny:one", "prompt": "a", "max_tokens": 8},
        {"model": "sleepy", "prompt": "a", "max_tokens": 8},
    ):
        client.post("/v1/completions", json=body)
    for body in ({"model": "auto"}, {"model": "demo", "response_format": schema}, {"model": "demo", "n": -1}):
        said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 40, **body}
        client.post("/v1/chat/completions", json=said)
    client.post("/v1/embeddings", json={"model": "embeds", "input": ["a b c", "d"]})


@pytest.fixture(scope="module")
def start_s(prometheus: str) -> int:
    """Time from which there is something to see."""
    return int(time.time())


def targets() -> list[tuple[str, str]]:
    """Title -> expression, as Grafana asks it."""
    fill = functools.reduce(
        lambda fill, pair: lambda text: fill(text).replace(*pair),
        [("$job", ".*"), ("$instance", ".*"), ("$__rate_interval", f"{4 * _STEP_S}s")],
        str,
    )
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [(panel["title"], fill(target["expr"])) for panel in panels for target in panel.get("targets", [])]


def has_values(prometheus: str, expression: str, start_s: int) -> bool:
    query = {"query": expression, "start": start_s, "end": int(time.time()), "step": _STEP_S}
    answer = httpx.get(prometheus + "/api/v1/query_range", params=query).json()
    assert answer["status"] == "success", answer
    values = [value for series in answer["data"]["result"] for _, value in series["values"]]
    return any(value != "NaN" for value in values)


@pytest.mark.parametrize(("title", "expression"), targets(), ids=lambda text: text[:40])
def test_every_query_has_an_answer(prometheus: str, start_s: int, title: str, expression: str) -> None:
    wait_until(lambda: has_values(prometheus, expression, start_s))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page that draws, at an address of this machine."""
    if not shutil.which("npm"):
        pytest.skip("there is no npm")
    if not (GRAFANA / "node_modules").exists():
        subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit"], cwd=GRAFANA, check=True)
    folder = tmp_path_factory.mktemp("page")
    for file in (DASHBOARD, GRAFANA / "index.html"):
        shutil.copy(file, folder)
    subprocess.run(["npm", "run", "build", "--", f"--outfile={folder}/page.js"], cwd=GRAFANA, check=True)

    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Files, directory=folder)) as http:
        thread = threading.Thread(target=http.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{http.server_port}/index.html"
        http.shutdown()
        thread.join()


def test_grafanas_components_draw_every_panel(prometheus: str, start_s: int, page: str) -> None:
    for _, expression in targets():
        wait_until(functools.partial(has_values, prometheus, expression, start_s))
    panels = {panel["id"]: panel for panel in json.loads(DASHBOARD.read_text())["panels"]}
    query = urlencode({"prometheus": prometheus, "from": start_s, "to": int(time.time()), "step": _STEP_S})
    with running_browser() as browser, contextlib.closing(browser.new_page()) as tab:
        tab.set_viewport_size({"width": 1500, "height": 900})
        wrong: list[str] = []
        tab.on("pageerror", lambda error: wrong.append(error.stack or str(error)))
        tab.goto(f"{page}?{query}")
        tab.wait_for_selector("body[data-drawn], body[data-failed]")
        assert tab.get_attribute("body", "data-failed") is None
        drawn = tab.locator("[data-panel]")
        found = {int(one.get_attribute("data-panel") or 0): one for one in drawn.all()}
        if picture := os.environ.get("DASHBOARD_PICTURE"):
            tab.screenshot(path=picture, full_page=True)
        assert wrong == []
        assert set(found) == {number for number, panel in panels.items() if panel["type"] != "row"}
        for number, one in found.items():
            assert one.inner_text().startswith(panels[number]["title"])
            if panels[number]["type"] == "timeseries":
                assert one.locator("canvas").count() == 1, panels[number]["title"]
