"""The dashboard's queries with a real server under load and a real Prometheus: run it with `-m slow`.

Its panels and their shape: tests/observe/test_documents.py.
"""

from __future__ import annotations

import itertools
import json
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.adapters import make_adapter
from tests.deploy import ROOT
from tests.server_process import ServerProcess, engines_of
from tests.tiny_bert import TinyBert
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(1200)]

DASHBOARD = ROOT / "deploy" / "chart" / "files" / "dashboard.json"
ALERTS = DASHBOARD.with_name("alerts.yml")
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
    text = DASHBOARD.read_text().replace("$job", ".*").replace("$instance", ".*")
    panels = json.loads(text.replace("$__rate_interval", f"{4 * _STEP_S}s"))["panels"]
    return [(panel["title"], target["expr"]) for panel in panels for target in panel.get("targets", [])]


def has_values(prometheus: str, expression: str, start_s: int) -> bool:
    query = {"query": expression, "start": start_s, "end": int(time.time()), "step": _STEP_S}
    answer = httpx.get(prometheus + "/api/v1/query_range", params=query).json()
    assert answer["status"] == "success", answer
    values = [value for series in answer["data"]["result"] for _, value in series["values"]]
    return any(value != "NaN" for value in values)


@pytest.mark.parametrize(("title", "expression"), targets(), ids=lambda text: text[:40])
def test_every_query_has_an_answer(prometheus: str, start_s: int, title: str, expression: str) -> None:
    wait_until(lambda: has_values(prometheus, expression, start_s))
