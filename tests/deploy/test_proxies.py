"""`deploy/nginx.conf` and `deploy/Caddyfile` in the real programs, before real servers."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event

import httpx
import openai
import pytest
import websockets.sync.client

from tests.deploy import ROOT
from tests.e2e.serving import own_address
from tests.proxies import free_port, nginx, running_proxy, tool
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.slow]

NAME = "llm.example"
OPTIONS = ("--model", f"tiny={tiny_model_path()}", "--trusted-proxy", "127.0.0.1", "--allowed-host", NAME)
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 10, "ignore_eos": True}


def replaced(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def nginx_command(folder: Path, port: int, upstreams: list[str]) -> list[str]:
    text = replaced((ROOT / "deploy" / "nginx.conf").read_text(), "listen 80;", f"listen {port};")
    for upstream in upstreams[1:]:
        text = replaced(text, "#server 127.0.0.1:8001", f"server {upstream}")
    return nginx(folder, replaced(text, "127.0.0.1:8000", upstreams[0]))


def caddy_command(folder: Path, port: int, upstreams: list[str]) -> list[str]:
    text = replaced((ROOT / "deploy" / "Caddyfile").read_text(), f"\n{NAME} {{", f"\nhttp://:{port} {{")
    text = replaced(text, "\tto 127.0.0.1:8000", "\tto " + " ".join(upstreams))
    (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text)
    return [tool("caddy"), "run", "--config", str(folder / "Caddyfile")]


COMMANDS = {"nginx": nginx_command, "caddy": caddy_command}


@contextmanager
def client_behind(name: str, folder: Path, *servers: str) -> Iterator[httpx.Client]:
    """Run a proxy; yield a client that calls it by the server's public name."""
    port = free_port()
    command = COMMANDS[name](folder, port, [url.removeprefix("http://") for url in servers])
    env = {**os.environ, "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    client = httpx.Client(
        base_url=f"http://127.0.0.1:{port}", timeout=DEADLINE_S, headers={"host": f"{NAME}:{port}"}
    )
    with running_proxy(command, port, env), client:
        yield client


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*OPTIONS) as server:
        yield server


@pytest.fixture(scope="module", params=COMMANDS)
def proxied(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    with client_behind(request.param, tmp_path_factory.mktemp("proxy"), server.url) as client:
        yield client


def test_web_pages_of_the_server_alone_may_post(proxied: httpx.Client) -> None:
    own = f"http://{proxied.headers['host']}"
    assert proxied.post(CHAT, json=BODY, headers={"origin": own}).status_code == 200
    foreign = proxied.post(CHAT, json=BODY, headers={"origin": "http://elsewhere.example"})
    assert (foreign.status_code, foreign.json()["error"]["code"]) == (403, "origin_not_allowed")


def test_a_stream_arrives_while_it_is_written(proxied: httpx.Client, server: ServerProcess) -> None:
    body = {**BODY, "stream": True, "max_tokens": 3_900}
    with proxied.stream("POST", CHAT, json=body) as answer:
        events = answer.iter_lines()
        assert next(events).startswith("data: ")
        assert [one["state"] for one in server.get("/v1/requests").json()["data"]] == ["running"]
    wait_until(lambda: server.get("/v1/requests").json()["data"] == [])


def test_a_websocket_is_passed_on(proxied: httpx.Client) -> None:
    port = proxied.base_url.port
    sock = socket.create_connection(("127.0.0.1", port))
    url = f"ws://{NAME}:{port}{CHAT}"
    with websockets.sync.client.connect(url, sock=sock, open_timeout=DEADLINE_S) as connection:
        connection.send(json.dumps({**BODY, "stream": True}))
        assert json.loads(connection.recv(timeout=DEADLINE_S))["object"] == "chat.completion.chunk"


@pytest.mark.parametrize(("megabytes", "status"), [(31, 400), (40, 413)])
def test_the_server_itself_judges_large_bodies(proxied: httpx.Client, megabytes: int, status: int) -> None:
    refused = proxied.post(CHAT, content=b'{"text":"' + b"a" * (megabytes << 20) + b'"}')
    assert (refused.status_code, refused.json()["error"]["type"]) == (status, "invalid_request_error")


def test_a_client_on_another_machine_is_not_an_administrator(proxied: httpx.Client) -> None:
    """The client cannot forge its address either. An address of this machine stands for the other machine."""
    url = f"http://{own_address()}:{proxied.base_url.port}/v1/cache"
    headers = {"host": str(proxied.headers["host"]), "x-forwarded-for": "127.0.0.1"}
    refused = httpx.delete(url, headers=headers, timeout=DEADLINE_S, trust_env=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert proxied.delete("/v1/cache", headers={"x-forwarded-for": "198.51.100.1"}).status_code == 204


@pytest.mark.parametrize("name", COMMANDS)
def test_either_of_two_instances_is_restarted_without_a_gap(name: str, tmp_path: Path) -> None:
    """The SDK with its own settings sees no error."""
    options = (*OPTIONS, "--drain-seconds", "60")
    ports = [str(free_port()) for _ in range(2)]
    has_ended = Event()
    with ExitStack() as stack:
        servers = [stack.enter_context(ServerProcess(*options, "--port", port)) for port in ports]
        client = stack.enter_context(client_behind(name, tmp_path, *(one.url for one in servers)))
        host = {"host": str(client.headers["host"])}
        sdk = stack.enter_context(
            openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", default_headers=host)
        )

        def answers() -> int:
            number = 0
            while not has_ended.is_set():
                done = sdk.chat.completions.create(model="tiny", extra_body=BODY, messages=[])
                number += bool(done.choices)
            return number

        threads = stack.enter_context(ThreadPoolExecutor(4))
        stack.callback(has_ended.set)
        callers = [threads.submit(answers) for _ in range(4)]
        for server, port in zip(servers, ports, strict=True):
            server.stop(signal.SIGTERM)
            stack.enter_context(ServerProcess(*options, "--port", port))
            assert client.get("/ready").status_code == 200
        has_ended.set()
        assert all(caller.result() > 0 for caller in callers)
