"""Many large bodies at once, by the real server: what they hold together is bounded, and small ones pass."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.e2e.serving import eventually
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.wire import connect

pytestmark = [pytest.mark.native, pytest.mark.thorough]

MIB = 2**20
SHORT = {"prompt": "a", "max_tokens": 1}
LARGE = b" " * (4 * MIB - 100) + json.dumps(SHORT).encode().ljust(100)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
MEDIUM = LARGE[-400 * 1024 :]
"""More than is left beside two large bodies of which the last byte is missing."""


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--max-body-mb", "4", "--max-bodies-mb", "8", "--ctx-size", "4096")
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


def rss_bytes(server: ServerProcess) -> int:
    """Of the API process, which reads the bodies."""
    return int(psutil.Process(server.process.pid).memory_info().rss)


def almost_all(server: ServerProcess) -> socket.socket:
    """A connection that still has to send its last byte, or that was refused on the way."""
    sock = connect(server)
    with contextlib.suppress(ConnectionError):
        sock.sendall(HEAD + LARGE[:-1])
    return sock


def post(server: ServerProcess, body: bytes) -> httpx.Response | None:
    """None where the answer is lost: refused while it was sent."""
    try:
        return httpx.post(server.url + "/v1/completions", content=body, timeout=60)
    except httpx.TransportError:
        return None


def is_refused(server: ServerProcess) -> bool:
    answer = post(server, MEDIUM)
    if answer is None or answer.status_code == 200:
        return False
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "too_many_bodies"
    assert answer.headers["retry-after"] == "1"
    return True


def test_a_flood_of_large_bodies(server: ServerProcess) -> None:
    for _ in range(3):
        answer = post(server, LARGE)
        assert answer.status_code == 200
    before = rss_bytes(server)
    held = [almost_all(server) for _ in range(2)]
    try:
        eventually(lambda: is_refused(server))
        held += [almost_all(server) for _ in range(40)]
        assert rss_bytes(server) - before < 64 * MIB  # without a bound: 160 MiB, and as much to join them
        small = httpx.post(server.url + "/v1/completions", json=SHORT, timeout=60)
        assert small.status_code == 200
        for sock in held[:2]:
            sock.sendall(LARGE[-1:])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for sock in held:
            sock.close()
    eventually(lambda: (answer := post(server, LARGE)) is not None and answer.status_code == 200)
    assert server.status()["restarts"] == 0
