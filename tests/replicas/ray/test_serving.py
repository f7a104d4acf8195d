"""Real Ray on this machine: two engine replicas of the tiny model behind an API replica."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
import websockets.sync.client
from bench.servers import free_port
from chaos_parts.server import RayServer

from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.native, pytest.mark.timeout(400)]

GREEDY = {"temperature": 0.0, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RayServer]:
    folder = tmp_path_factory.mktemp("ray")
    jobs = f"sqlite:///{folder / 'jobs.db'}"
    model = shutil.copy(tiny_model_path(), folder / "model.gguf")
    with RayServer(Path(model), folder / "log.txt", "--jobs-db", jobs) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RayServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as sdk:
        yield sdk


def ask(server: RayServer, method: str, path: str) -> httpx.Response:
    return httpx.request(method, server.url + path, timeout=DEADLINE_S)


def stream(
    client: openai.OpenAI,
    prompt: str,
    tokens: int,
    model: str = "chaos",
    hook: Callable[[str], object] = lambda text: None,
) -> str:
    chunks = client.completions.create(model=model, prompt=prompt, max_tokens=tokens, stream=True, **GREEDY)
    texts = [chunk.choices[0].text for chunk in chunks if chunk.choices and not hook(chunk.choices[0].text)]
    return "".join(texts)


def test_streams_survive_their_replica(server: RayServer, client: openai.OpenAI) -> None:
    prompts = [f"Story {number}: " for number in range(6)]
    quiet = [stream(client, prompt, 200) for prompt in prompts]
    with ThreadPoolExecutor(6) as readers:
        pieces: list[str] = []
        disturbed = readers.map(lambda prompt: stream(client, prompt, 200, hook=pieces.append), prompts)
        wait_until(lambda: len(pieces) > 20)
        assert server.kill_engine()
    assert list(disturbed) == quiet
    assert ask(server, "GET", "/health").json()["restarts"] >= 1


def test_a_client_that_leaves_ends_its_request(server: RayServer) -> None:
    body = {"model": "chaos", "prompt": "x", "max_tokens": 2000, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=DEADLINE_S) as response:
        next(response.iter_lines())
    wait_until(lambda: not any(ask(server, "GET", "/health").json()["queue"]["interactive"].values()))


def test_a_websocket_gets_its_tokens(server: RayServer) -> None:
    url = server.url.replace("http", "ws") + "/v1/responses"
    with websockets.sync.client.connect(url, open_timeout=DEADLINE_S) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "chaos", "input": "hello"}))
        kinds = set()
        while "response.completed" not in kinds and "response.incomplete" not in kinds:
            kinds.add(json.loads(socket.recv(timeout=DEADLINE_S))["type"])
    assert "response.output_text.delta" in kinds


def test_a_batch_runs_once_and_continues_after_the_death_of_its_api_replica(
    server: RayServer, client: openai.OpenAI
) -> None:
    names = [f"row-{number}" for number in range(300)]
    route = {"method": "POST", "url": "/v1/completions"}
    bodies = ({"model": "chaos", "prompt": name, "max_tokens": 40} for name in names)
    lines = (
        json.dumps({"custom_id": name, **route, "body": body})
        for name, body in zip(names, bodies, strict=True)
    )
    rows = "\n".join(lines).encode()
    file = client.files.create(file=("rows.jsonl", rows), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    wait_until(lambda: client.batches.retrieve(batch.id).request_counts.completed > 0)
    assert server.kill_api()
    server.wait_until_ready()
    wait_until(lambda: client.batches.retrieve(batch.id).status in ("completed", "failed"))
    answers = client.files.content(client.batches.retrieve(batch.id).output_file_id).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in answers) == sorted(names)


def test_streams_move_when_fewer_replicas_are_wanted(server: RayServer, client: openai.OpenAI) -> None:
    prompts = [f"Long story {number}: " for number in range(6)]
    quiet = [stream(client, prompt, 400) for prompt in prompts]
    lost_before = ask(server, "GET", "/health").json()["restarts"]
    with ThreadPoolExecutor(6) as readers:
        moved = readers.map(lambda prompt: stream(client, prompt, 400), prompts)
        server.redeploy(replicas=1)
    assert list(moved) == quiet
    assert ask(server, "GET", "/health").json()["restarts"] == lost_before
    server.redeploy(replicas=2)
    server.wait_for_replicas(2)


def test_routes_that_cover_all_replicas(server: RayServer) -> None:
    assert [one["id"] for one in ask(server, "GET", "/v1/models").json()["data"]] == ["chaos"]
    assert ask(server, "GET", "/ready").json()["memory"]["kv_tokens"] > 0
    assert "ocs_" in ask(server, "GET", "/metrics").text
    assert ask(server, "DELETE", "/v1/cache").status_code < 500
    assert ask(server, "POST", "/v1/models/chaos/unload").status_code in (400, 404, 409, 501)
    assert ask(server, "POST", "/v1/requests/nobody/cancel").status_code in (404, 405)


def test_a_replica_that_cannot_load_is_reported_and_the_other_serves(
    server: RayServer, client: openai.OpenAI
) -> None:
    """The model's file is gone when a killed replica's successor wants to load it."""
    model = server.model
    away = model.with_suffix(".away")
    model.rename(away)
    try:
        assert server.kill_engine()
        wait_until(lambda: ask(server, "GET", "/ready").json()["reason"] is not None)
        assert ask(server, "GET", "/ready").json()["status"] == "degraded"
        assert stream(client, "still", 5)
    finally:
        away.rename(model)


@pytest.mark.parametrize("ingress", ["replicas", "proxy"])
def test_serve_run_takes_the_file_that_the_command_prints(tmp_path: Path, ingress: str) -> None:
    model = shutil.copy(tiny_model_path(), tmp_path / "model.gguf")
    config, file = tmp_path / "config.toml", tmp_path / "serve.yaml"
    port = free_port()
    config.write_text(
        f'model = ["{model}"]\nport = {port}\njobs_db = "none"\ncalibrate = "never"\n'
        '[ray]\ncpus = 0.5\npin = "off"\n'
        f'ingress = "{ingress}"\n'
    )
    printed = subprocess.run(
        [sys.executable, "-m", "openai_cpu_server", "ray", str(config), "--print-config"],
        capture_output=True,
        check=True,
    )
    file.write_bytes(printed.stdout)
    command = [str(Path(sys.executable).parent / "serve"), "run", "--address", "local", str(file)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: running.poll() is not None or is_ready(f"http://127.0.0.1:{port}"))
        assert running.poll() is None
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as sdk:
            assert stream(sdk, "once", 20, model="model")
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=DEADLINE_S)


def is_ready(url: str) -> bool:
    try:
        return httpx.get(url + "/ready", timeout=DEADLINE_S).status_code == 200
    except httpx.HTTPError:
        return False
