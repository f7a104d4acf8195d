"""Raw bytes on the wire of the real server: it refuses or drops them, and still serves a good request."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator
from random import Random

import httpx
import pytest

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S
from tests.wire import CHAT, END, answered, connect, everything, everything_until, frame, status_of, upgraded

pytestmark = [pytest.mark.native, pytest.mark.thorough]

BODY = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    options = ("--ctx-size", "4096", "--read-timeout-s", "1", "--write-timeout-s", "2")
    options += ("--idle-timeout-s", "1")  # many tests wait for the end of the connection
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


def check_serves(server: ServerProcess) -> None:
    answer = httpx.post(server.url + CHAT, content=BODY, timeout=DEADLINE_S)
    assert answer.status_code == 200, answer.text
    assert server.status()["restarts"] == 0


def with_length(length: bytes, body: bytes = BODY) -> bytes:
    return HEAD + b"content-length: " + length + b"\r\n\r\n" + body


def chunked(*chunks: bytes) -> bytes:
    return HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"".join(chunks)


REQUESTS: dict[str, tuple[bytes, set[int | None]]] = {
    "no http": (b"\x00\x01\x02\xff\xfe\r\n\r\n", {400}),
    "http/0.9": (b"GET /health\r\n\r\n", {200, 400}),
    "http/9.9": (b"GET /health HTTP/9.9\r\nhost: localhost\r\n\r\n", {400, 505, None}),
    "an unknown method": (b"BREW /v1/models HTTP/1.1" + END, {400, 405}),
    "null in the path": (b"GET /\x00 HTTP/1.1" + END, {400, 404}),
    "a path that is not utf-8": (b"GET /v1/models/%ff%fe HTTP/1.1" + END, {404}),
    "a path that escapes a null": (b"GET /v1/models/%00 HTTP/1.1" + END, {400}),
    "a long path": (b"GET /" + b"a" * 60_000 + b" HTTP/1.1" + END, {404, 431}),
    "a header without colon": (b"GET /health HTTP/1.1\r\nhost\r\n\r\n", {400}),
    "a header that is not utf-8": (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: \xff\r\n\r\n",
        {200},
    ),
    "a key that is not latin text": (
        b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\nx-api-key: \xc3\x28\r\n\r\n",
        {200},
    ),
    "two lengths": (with_length(b"5\r\ncontent-length: 9"), {400}),
    "length and chunks": (with_length(b"5\r\ntransfer-encoding: chunked"), {400}),
    "a negative length": (with_length(b"-1"), {400}),
    "a huge length": (with_length(b"9" * 30), {400, 413}),
    "a length without digits": (with_length(b"abc"), {400}),
    "a length too small": (with_length(b"10"), {400}),
    "a length too large": (with_length(str(len(BODY) + 50).encode()), {408}),
    "no length": (HEAD + b"\r\n" + BODY, {400}),
    "chunks without a size": (chunked(b"zz\r\nhello\r\n"), {400}),
    "a huge chunk": (chunked(b"f" * 17 + b"\r\nhello\r\n"), {400}),
    "chunks without end": (chunked(b"5\r\nhello\r\n"), {408}),
    "a body that is not utf-8": (with_length(b"5", b'{"\xc3\x28"'), {400}),
    "a socket without a key": (
        b"GET "
        + CHAT.encode()
        + b" HTTP/1.1\r\nhost: localhost\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
        {400},
    ),
    "an unknown upgrade": (
        b"GET /health HTTP/1.1\r\nhost: localhost\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n",
        {200},
    ),
    "http/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505, None}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_malformed_request_gets_an_expected_status(server: ServerProcess, name: str) -> None:
    data, expected = REQUESTS[name]
    assert status_of(answered(server, data)) in expected
    check_serves(server)


def test_a_body_cut_off_by_its_sender_ends_quietly(server: ServerProcess) -> None:
    answer = answered(server, with_length(str(len(BODY) + 5).encode()), half_closes=True)
    assert status_of(answer) in (None, 400, 408)
    check_serves(server)


def test_random_bytes_do_not_harm_the_server(server: ServerProcess) -> None:
    """Mutations of a good request, half of them closed after the last byte."""
    random = Random(6)
    good = with_length(str(len(BODY)).encode())
    for _ in range(120):
        data = bytearray(good)
        for _ in range(random.randint(1, 6)):
            data[random.randrange(len(data))] = random.randrange(256)
        data = data[: random.randrange(1, len(data))] if random.random() < 0.3 else data
        with connect(server) as sock:
            sock.sendall(bytes(data))
            if random.random() < 0.5:
                sock.settimeout(0.02)  # not all requests are answered
                with contextlib.suppress(TimeoutError, ConnectionError):
                    assert status_of(sock.recv(65536)) not in range(500, 600)
    check_serves(server)
    assert not any("Traceback" in line for line in server.lines), "".join(server.lines)


FRAMES = {
    "no mask": b"\x81\x02{}",
    "reserved bits": b"\xf1\x80" + bytes(4),
    "an unknown opcode": frame(5, b""),
    "text that is not utf-8": frame(1, b"\xc3\x28"),
    "a continuation without a start": frame(0, b"x"),
    "a long ping": frame(9, b"x" * 126),
    "a huge length": b"\x81\xff" + b"\x7f" + b"\xff" * 7 + bytes(4),
    "a length beyond the limit": b"\x81\xff" + (10**9).to_bytes(8, "big") + bytes(4),
    "half a frame": b"\x81\xfe\x10\x00",
    "an end without a code": frame(8, b"\x00"),
    "an end with a wrong code": frame(8, (5).to_bytes(2, "big")),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_wrong_frame_ends_only_its_socket(server: ServerProcess, name: str) -> None:
    with upgraded(server) as other, upgraded(server) as sock:
        sock.sendall(FRAMES[name])
        sock.shutdown(socket.SHUT_WR)
        everything(sock)
        other.sendall(frame(1, BODY))
        assert b"request_id" in other.recv(4096)
    check_serves(server)


def test_hostile_messages_leave_the_socket_open(server: ServerProcess) -> None:
    with upgraded(server) as sock:
        texts = (b"", b"[" * 60_000, b'{"request_id": 1e400}', b'{"cancel": {"a": NaN}}', b"\x00", b"NaN")
        for text in texts:
            sock.sendall(frame(1, text))
            assert b'"error"' in sock.recv(65536)
        sock.sendall(frame(1, BODY[:11], fin=False) + frame(9, b"?") + frame(0, BODY[11:]))
        found = everything_until(sock, b'"done":true')
        assert b'"finish_reason":"length"' in found or b'"finish_reason":"stop"' in found
