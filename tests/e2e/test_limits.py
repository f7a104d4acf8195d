"""Strangers on the wire: who does not send, who does not read, who sends too much, and too many."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.e2e.serving import num_live, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S, wait_until
from tests.wire import connect, everything, everything_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

LONG = {
    "messages": [{"role": "user", "content": "a"}],
    "max_tokens": 3900,
    "ignore_eos": True,
    "stream": True,
    "logprobs": True,
    "top_logprobs": 20,
}


def post(body: object, path: str = "/v1/chat/completions", *, request_id: str = "any") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(data)}"
    return f"{head}\r\nx-request-id: {request_id}\r\n\r\n".encode() + data


def log_of(server: ServerProcess, request_id: str) -> str:
    """The line that tells of the request's end; empty before it."""
    return next((line for line in server.lines if f"id={request_id} " in line), "")


def error_in(answer: bytes) -> dict[str, object]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"connection: close" in head.lower()
    return dict(json.loads(body)["error"])


@pytest.fixture(scope="module")
def strict() -> Iterator[ServerProcess]:
    """Holds all that it generates: no reader is dropped for another reason than time."""
    options = ("--read-timeout-s", "1", "--write-timeout-s", "1", "--max-connections", "6")
    options += ("--stream-buffer-mb", "1024")
    with tiny_server("--ctx-size", "16384", *options) as server:
        yield server


def test_a_client_that_stops_reading_is_dropped(strict: ServerProcess) -> None:
    """However fast the model is: all of the answer (tens of MB) is far more than the sockets take."""
    with connect(strict, receive_bytes=4096) as sock:
        sock.sendall(post({**LONG, "n": 4, "max_tokens": 3500}, request_id="stops-reading"))
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        wait_until(lambda: "status=499" in log_of(strict, "stops-reading"))
        rest = everything(sock)
    assert b"data: " in rest
    assert b"[DONE]" not in rest
    wait_until(lambda: num_live(strict) == 0)


def test_what_is_held_for_a_slow_reader_is_bounded() -> None:
    """Long before the write timeout: the buffer is full first."""
    with tiny_server("--ctx-size", "16384", "--write-timeout-s", "600", "--stream-buffer-mb", "1") as server:
        before = server.status()["memory"]["rss_bytes"]
        with connect(server, receive_bytes=4096) as sock:
            sock.sendall(post({**LONG, "n": 4, "max_tokens": 3500}))
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
            wait_until(lambda: num_live(server) == 0)
            grown = server.status()["memory"]["rss_bytes"] - before
            assert b"reader_too_slow" in everything_until(sock, b"reader_too_slow")
    assert grown < 64 * 2**20
    assert " 0 output tokens" in server.lines[-1]  # none of the four came to its end


def test_a_reader_that_pauses_a_little_is_served_to_the_end(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        sock.sendall(post({**LONG, "max_tokens": 200}))
        assert sock.recv(100)
        time.sleep(0.5)
        assert b"[DONE]" in everything_until(sock, b"[DONE]")


def test_who_sends_nothing_is_dropped(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        assert everything(sock) == b""


def test_who_sends_headers_drop_by_drop_is_dropped(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
        sock.settimeout(0.1)
        wait_until(lambda: not _drip(sock))


def _drip(sock: socket.socket) -> bool:
    """Send one more header; False once the other side is gone."""
    try:
        sock.sendall(b"a: b\r\n")
        return sock.recv(100) != b""
    except TimeoutError:
        return True
    except ConnectionError:
        return False


def test_a_kept_connection_is_dropped_if_its_next_request_does_not_come(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert everything_until(sock, b"restarts").startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /hea")
        assert everything(sock) == b""


def test_a_body_that_does_not_come_is_refused(strict: ServerProcess) -> None:
    with connect(strict) as sock:
        sock.sendall(post(LONG)[:-20])
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 408")
    assert error_in(answer)["code"] == "request_body_timeout"


def test_headers_without_end_are_refused(strict: ServerProcess) -> None:
    for flood in (b"a: " + b"x" * 200_000, b"a: b\r\n" * 40_000):
        with connect(strict) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\n")
            try:
                sock.sendall(flood)
            except ConnectionError:
                continue  # closed already; the answer is lost with what was unread
            answer = everything(sock)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 431")


def test_what_is_no_http_gets_an_error_object(strict: ServerProcess) -> None:
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


def test_connections_beyond_the_limit_are_told_so() -> None:
    with tiny_server("--ctx-size", "16384", "--max-connections", "3") as server:
        idle = [connect(server) for _ in range(3)]
        try:
            refused = httpx.get(server.url + "/v1/models")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            assert refused.json()["error"]["code"] == "too_many_connections"
            assert httpx.get(server.url + "/health").status_code == 200
        finally:
            for sock in idle:
                sock.close()
        wait_until(lambda: httpx.get(server.url + "/v1/models").status_code == 200)


def test_few_open_files_mean_fewer_connections_and_the_others_are_told_so() -> None:
    """Many more than there are files for, one after the other: each of them gets its answer."""
    with tiny_server("--ctx-size", "16384", "--read-timeout-s", "600", max_open_files=160) as server:
        said = next(line for line in server.lines if "connections at once" in line)
        assert "32 connections at once, not the 4096" in said
        assert "160 files" in said
        idle = [connect(server) for _ in range(32)]
        try:
            for _ in range(200):
                with connect(server) as sock:
                    sock.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
                    answer = everything(sock)
                assert answer.startswith(b"HTTP/1.1 503")
                assert error_in(answer)["code"] == "too_many_connections"
        finally:
            for sock in idle:
                sock.close()
        wait_until(lambda: httpx.get(server.url + "/v1/models").status_code == 200)


# -- many large bodies at once ---------------------------------------------------------------------------

MIB = 2**20
SHORT = {"prompt": "a", "max_tokens": 1}
LARGE = b" " * (4 * MIB - 100) + json.dumps(SHORT).encode().ljust(100)
HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(LARGE)
MEDIUM = LARGE[-400 * 1024 :]
"""More than is left beside two large bodies of which the last byte is missing."""


@pytest.fixture(scope="module")
def bounded() -> Iterator[ServerProcess]:
    options = ("--max-body-mb", "4", "--max-bodies-mb", "8", "--ctx-size", "4096")
    with tiny_server(*options) as process:
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


def posted(server: ServerProcess, body: bytes) -> httpx.Response | None:
    """None where the answer is lost: refused while it was sent."""
    try:
        return httpx.post(server.url + "/v1/completions", content=body, timeout=DEADLINE_S)
    except httpx.TransportError:
        return None


def is_refused(server: ServerProcess) -> bool:
    answer = posted(server, MEDIUM)
    if answer is None or answer.status_code == 200:
        return False
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "too_many_bodies"
    assert answer.headers["retry-after"] == "1"
    return True


def test_a_flood_of_large_bodies(bounded: ServerProcess) -> None:
    """What they hold together is bounded, and small ones pass."""
    server = bounded
    for _ in range(3):
        answer = posted(server, LARGE)
        assert answer.status_code == 200
    before = rss_bytes(server)
    held: list[socket.socket] = []

    def are_held() -> bool:
        """What comes while they are still read takes the room of one of them: then that one is refused, and
        they are held anew."""
        while held:
            held.pop().close()
        held.extend(almost_all(server) for _ in range(2))
        for _ in range(10):
            time.sleep(0.2)
            if is_refused(server):
                return True
        return False

    try:
        wait_until(are_held)
        held += [almost_all(server) for _ in range(40)]
        assert rss_bytes(server) - before < 64 * MIB  # without a bound: 160 MiB, and as much to join them
        small = httpx.post(server.url + "/v1/completions", json=SHORT, timeout=DEADLINE_S)
        assert small.status_code == 200
        for sock in held[:2]:
            sock.sendall(LARGE[-1:])
            assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    finally:
        for sock in held:
            sock.close()
    wait_until(lambda: (answer := posted(server, LARGE)) is not None and answer.status_code == 200)
    assert server.status()["restarts"] == 0
