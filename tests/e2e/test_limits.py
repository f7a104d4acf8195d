"""Clients on the wire that do not send, do not read, send too much, or are too many."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.e2e.serving import num_live, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import wait_until
from tests.wire import connect, everything, everything_until, is_read

pytestmark = [pytest.mark.native, pytest.mark.thorough]

MIB = 2**20
SHORT = {"prompt": "a", "max_tokens": 1}
MANY = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1500, "ignore_eos": True, "n": 4}
MANY |= {"stream": True, "logprobs": True, "top_logprobs": 20}
"""Request whose chunks have more than 10 MB, far more than socket buffers hold."""


def post(body: object, *, request_id: str = "any") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}"
    return f"{head}\r\nx-request-id: {request_id}\r\n\r\n".encode() + data


def error_in(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return dict(json.loads(body)["error"])


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """Server that buffers whole answers, so that only timeouts drop a reader."""
    options = ("--read-timeout-s", "1", "--write-timeout-s", "1", "--stream-buffer-mb", "1024")
    with tiny_server("--ctx-size", "16384", *options) as server:
        yield server


def test_a_client_that_stops_reading_is_dropped(strict: ServerProcess) -> None:
    with connect(strict, receive_bytes=4096) as sock:
        sock.sendall(post(MANY, request_id="stops-reading"))
        assert "status=499" in strict.wait_for("(id=stops-reading .*)")
        rest = everything(sock)
    assert b"data: " in rest
    assert b"[DONE]" not in rest


def test_the_buffer_of_a_slow_reader_is_bounded() -> None:
    """The buffer is full long before the write timeout."""
    with tiny_server("--ctx-size", "16384", "--write-timeout-s", "600", "--stream-buffer-mb", "1") as server:
        before = server.status()["memory"]["rss_bytes"]
        with connect(server, receive_bytes=4096) as sock:
            sock.sendall(post(MANY))
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            wait_until(lambda: num_live(server) == 0)
            grown = server.status()["memory"]["rss_bytes"] - before
            assert b"reader_too_slow" in everything_until(sock, b"reader_too_slow")
    assert grown < 64 * MIB
    assert " 0 output tokens" in server.lines[-1]  # none of the four sequences has finished


def test_a_client_that_sends_nothing_or_headers_drop_by_drop_is_dropped(strict: ServerProcess) -> None:
    with connect(strict) as silent, connect(strict) as slow:
        slow.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        slow.settimeout(0.1)
        wait_until(lambda: not send_header(slow))
        assert everything(silent) == b""


def send_header(sock: socket.socket) -> bool:
    """Send one more header; return False once the server has closed the connection."""
    try:
        sock.sendall(b"a: b\r\n")
        return sock.recv(100) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_bytes_that_are_not_http_get_an_error_object(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        sock.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request")
    assert error_in(answer) == {
        "message": "Invalid HTTP request received.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_http",
    }


def test_few_open_files_mean_fewer_connections_and_the_others_are_refused() -> None:
    """Many more connections than open files come one after the other, and each gets its answer."""
    with tiny_server("--ctx-size", "4096", "--read-timeout-s", "600", max_open_files=160) as server:
        warning = next(line for line in server.lines if "WARNING at most" in line)
        assert "at most 32 connections instead of the 4096" in warning
        assert "160 open files" in warning
        with ExitStack() as idle:
            for _ in range(32):
                idle.enter_context(connect(server))
            for _ in range(200):
                with connect(server) as sock:
                    sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    answer = everything(sock)
                assert answer.startswith(b"HTTP/1.1 503")
                assert b"\r\nretry-after: 1\r\n" in answer
                assert error_in(answer)["code"] == "too_many_connections"
            assert server.get("/health").status_code == 200
        wait_until(lambda: server.get("/v1/models").status_code == 200)


# -- limits of large bodies -------------------------------------------------------------------------------

LARGE = b" " * (4 * MIB - 100) + json.dumps(SHORT).encode().ljust(100)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
MEDIUM = LARGE[-400 * 1024 :]
"""Body larger than the budget beside two large ones that lack their last byte."""


def unfinished_upload(server: ServerProcess) -> socket.socket:
    """Return a connection that lacks the last byte of its body, or that was refused while it was sent."""
    sock = connect(server)
    with contextlib.suppress(ConnectionError):
        sock.sendall(HEAD + LARGE[:-1])
    return sock


def response_to(server: ServerProcess, body: bytes) -> httpx.Response | None:
    """Return None if the body was refused while it was sent, which loses the answer."""
    try:
        return server.post("/v1/completions", content=body)
    except httpx.TransportError:
        return None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is read from a socket")
def test_a_flood_of_large_bodies() -> None:
    options = ("--max-body-mb", "4", "--max-bodies-mb", "8", "--ctx-size", "4096")
    with tiny_server(*options) as server, ExitStack() as stack:
        for _ in range(3):
            answer = response_to(server, LARGE)
            assert answer.status_code == 200
        before = server.status()["memory"]["rss_bytes"]
        first, second = (stack.enter_context(unfinished_upload(server)) for _ in range(2))
        wait_until(lambda: is_read(first) and is_read(second))
        refused = response_to(server, MEDIUM)
        if refused is not None:
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "too_many_bodies"
        for _ in range(40):
            stack.enter_context(unfinished_upload(server))
        # Without a bound: 160 MiB of pieces, and as much to join them.
        assert server.status()["memory"]["rss_bytes"] - before < 64 * MIB
        assert server.post("/v1/completions", json=SHORT).status_code == 200
        for sock in (first, second):
            sock.sendall(LARGE[-1:])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
        stack.close()
        wait_until(lambda: (answer := response_to(server, LARGE)) is not None and answer.status_code == 200)
