"""Streams through proxies, and to clients in other languages."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.proxies import free_port, nginx, running_proxy, tool
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, wait_until
from tests.wire import connect, everything

pytestmark = [pytest.mark.native, pytest.mark.slow]

_SOURCES = Path(__file__).with_name("wires")
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Tell a story."}], "max_tokens": 30, "ignore_eos": True}
STREAMED = json.dumps({**BODY, "stream": True})


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--keep-alive-s", "1", "--read-timeout-s", "1", "--ctx-size", "65536")
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


@pytest.fixture(scope="module", params=["nginx", "haproxy"])
def url(
    request: pytest.FixtureRequest, server: ServerProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """URL of a proxy that buffers and keeps connections open as it does by default."""
    name, folder = request.param, tmp_path_factory.mktemp("proxy")
    port, upstream = free_port(), server.url.removeprefix("http://")
    if name == "nginx":
        command = nginx(
            folder,
            f"upstream ours {{ server {upstream}; keepalive 8; }}"
            f" server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://ours;"
            ' proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host; } }',
        )
    else:
        config = folder / "config"
        config.write_text(
            "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
            f"frontend in\n bind 127.0.0.1:{port} proto h1\n default_backend ours\n"
            f"backend ours\n http-reuse always\n server one {upstream}\n"
        )
        command = [tool("haproxy"), "-db", "-f", str(config)]
    with running_proxy(command, port) as url:
        yield url


def test_a_stream_arrives_while_it_is_written(url: str, server: ServerProcess) -> None:
    """The server notices that a client has left the proxy."""
    body = {**BODY, "stream": True, "max_tokens": 3_900}
    with httpx.stream("POST", url + CHAT, json=body, timeout=DEADLINE_S) as answer:
        events = answer.iter_lines()
        assert next(events).startswith("data: ")
        running = server.get("/v1/requests").json()
        assert [request["state"] for request in running["data"]] == ["running"], running
    wait_until(lambda: server.get("/v1/requests").json()["data"] == [])


def test_whole_answers_streams_and_errors_pass(url: str) -> None:
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        for number in range(20):
            assert client.post(CHAT, json=BODY).json()["usage"]["completion_tokens"] == 30
            lines = client.post(CHAT, content=STREAMED).text.splitlines()
            assert lines.count("data: [DONE]") == 1, number
        assert client.post(CHAT, content="{").json()["error"]["code"]
        assert client.get("/v1/models").json()["data"]
        large = client.post(
            "/tokenize", json={"content": "word " * 100_000}, headers={"expect": "100-continue"}
        )
        assert large.json().get("count") or large.status_code in (400, 413)


def test_a_connection_that_a_proxy_keeps_open_serves_the_next_request(
    url: str, server: ServerProcess
) -> None:
    """The next request comes after the server's timeout for the rest of a request's head."""
    with httpx.Client(base_url=url, timeout=DEADLINE_S) as client:
        assert client.get("/health").status_code == 200
        with connect(server) as unfinished:
            unfinished.sendall(b"GET /version HTTP/1.1\r\nhost")
            assert everything(unfinished) == b""
        assert client.post(CHAT, json=BODY).status_code == 200


@pytest.mark.parametrize("option", ["--http2", "--http2-prior-knowledge", "--http1.0", "--http1.1"])
def test_curl(server: ServerProcess, option: str) -> None:
    """The server does not support HTTP/2 without TLS. A request that only offers it is answered."""
    command = [tool("curl"), "-sS", "-N", option, server.url + CHAT, "-d", STREAMED, "-w", "%{http_code}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if option == "--http2-prior-knowledge":
        assert done.returncode != 0
        return
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("data: [DONE]\n\n200")


def test_javas_client(server: ServerProcess) -> None:
    command = [tool("java"), str(_SOURCES / "Wire.java"), server.url + CHAT]
    for body, last in ((STREAMED, "data: [DONE]"), (json.dumps(BODY), "}")):
        done = subprocess.run([*command, body, "5"], capture_output=True, text=True, timeout=DEADLINE_S)
        lines = done.stdout.splitlines()
        assert len(lines) == 5, done.stderr
        assert all(line.startswith("200\t") and line.endswith(last) for line in lines)


def test_a_reader_that_ends_events_at_every_empty_line(server: ServerProcess) -> None:
    """Requests beside it make the reader wait, which the server reports in comments."""
    tool("go")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(httpx.Client(timeout=DEADLINE_S))
        body = {**BODY, "stream": True, "max_tokens": 1_500}
        for _ in range(8):
            stack.enter_context(client.stream("POST", server.url + CHAT, json=body))
        command = ["go", "run", str(_SOURCES / "wire.go"), server.url + CHAT, STREAMED, "20"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert [line.split()[::2] for line in done.stdout.splitlines()] == [["200", "true"]] * 20, done.stdout
