"""Bounds on what a client makes the server store: headers, trailers, waiting requests, pieces of messages."""

from __future__ import annotations

import contextlib
import json
import socket
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.e2e.serving import tiny_server
from tests.server_process import ServerProcess
from tests.waiting import wait_until
from tests.wire import (
    CHAT,
    END,
    answered,
    connect,
    everything,
    everything_until,
    frame,
    handshake,
    header,
    is_read,
    status_of,
    upgraded,
)

pytestmark = [pytest.mark.native, pytest.mark.thorough]

MIB = 1024 * 1024
BODY = json.dumps({"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}).encode()
GET = b"GET /version HTTP/1.1" + END
CHUNKED = b"host: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    limits = ("--max-body-mb", "1", "--max-bodies-mb", "2", "--read-timeout-s", "2")
    with tiny_server("--ctx-size", "4096", *limits) as process:
        yield process
        errors = [line for line in process.lines if "Traceback" in line or " ERROR " in line]
        assert errors == [], "what clients send is not an error of the server"


def resident(server: ServerProcess) -> int:
    return int(psutil.Process(server.process.pid).memory_info().rss)


def check_serves(server: ServerProcess) -> None:
    assert server.post(CHAT, content=BODY).status_code == 200


# -- headers and trailers ---------------------------------------------------------------------------------


FIELDS = {
    "one large": b"a: " + b"x" * 70_000 + b"\r\n",
    "several large": b"".join(b"a%d: " % i + b"x" * 20_000 + b"\r\n" for i in range(4)),
    "many": b"".join(b"a%d: b\r\n" % i for i in range(300)),
    "many alike": b"a:\r\n" * 9000,
    "a large name": b"x" * 70_000 + b": b\r\n",
}


BEFORE = {
    "headers": b"GET /version HTTP/1.1\r\nhost: localhost\r\n",
    "trailers": b"POST /tokenize HTTP/1.1\r\n" + CHUNKED + b"1\r\n{\r\n0\r\n",
}


@pytest.mark.parametrize("where", BEFORE)
@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("size", [None, 1000])
def test_headers_and_trailers_are_bounded_however_they_come(
    server: ServerProcess, where: str, name: str, size: int | None
) -> None:
    answer = answered(server, *_cut(BEFORE[where] + FIELDS[name] + b"\r\n", size))
    assert status_of(answer) == 431
    assert b"headers_too_large" in answer or where == "trailers"


def test_headers_and_trailers_count_together_within_each_request(server: ServerProcess) -> None:
    half = b"a: " + b"x" * 40_000 + b"\r\n"
    head = b"POST /tokenize HTTP/1.1\r\n" + half
    assert status_of(answered(server, head + CHUNKED + b"0\r\n" + half + b"\r\n")) == 431
    request = head + CHUNKED + b"0\r\n" + half[:20_000] + b"\r\n\r\n"
    # The headers fit; the 400 is for the empty body, which is not JSON.
    assert status_of(answered(server, request + b"!")) == 400
    assert status_of(answered(server, b"GET /?" + b"a" * 70_000 + b" HTTP/1.1" + END)) == 431, "a long line"
    with connect(server) as sock:
        for _ in range(5):
            sock.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n" + half + b"\r\n")
            assert status_of(everything_until(sock, b'"version"')) == 200


@pytest.mark.parametrize("path", ["GET /health", "POST /tokenize"])
def test_endless_trailers_are_not_stored(server: ServerProcess, path: str) -> None:
    before = resident(server)
    flood = b"".join(b"trailer-%d: %b\r\n" % (i, b"x" * 40) for i in range(20_000))
    for _ in range(3):
        answered(server, path.encode() + b" HTTP/1.1\r\n" + CHUNKED + b"0\r\n", *_cut(flood * 10, 65536))
    assert resident(server) - before < 20 * MIB
    check_serves(server)


def test_trailers_after_an_answer_get_no_second_one(server: ServerProcess) -> None:
    with connect(server) as sock:
        sock.sendall(b"GET /version HTTP/1.1\r\n" + CHUNKED + b"0\r\n")
        everything_until(sock, b'"version"')
        sock.sendall(FIELDS["many"])
        assert everything(sock) == b""


def test_many_chunks_do_not_count_as_headers(server: ServerProcess) -> None:
    chunks = b"".join(b"1\r\n \r\n" for _ in range(60_000)) + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    request = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nconnection: close\r\n" + CHUNKED + chunks
    assert status_of(answered(server, request)) == 200


# -- connections ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_of_http_1_0_sees_no_chunks(server: ServerProcess, stream: bool) -> None:
    body = json.dumps({**json.loads(BODY), "stream": stream}).encode()
    request = b"POST " + CHAT.encode() + b" HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    head, _, rest = answered(server, request).partition(b"\r\n\r\n")
    assert status_of(head) == 200
    assert b"transfer-encoding" not in head
    assert b"connection: close" in head
    assert rest.endswith(b"data: [DONE]\n\n") if stream else json.loads(rest)["usage"]
    assert not stream or rest.startswith(b"data: {")


def test_a_connection_waits_longer_for_the_next_request_than_for_the_rest_of_one(
    server: ServerProcess,
) -> None:
    with connect(server) as idle, connect(server) as unfinished:
        for sock in (idle, unfinished):
            sock.sendall(GET)
            everything_until(sock, b'"version"')
        unfinished.sendall(b"GET /version HTTP/1.1\r\nhost")
        assert everything(unfinished) == b"", "the read timeout is two seconds"
        idle.sendall(GET)
        assert status_of(everything_until(idle, b'"version"')) == 200


# -- waiting requests -------------------------------------------------------------------------------------


def test_the_number_of_waiting_requests_is_bounded(server: ServerProcess) -> None:
    before = resident(server)
    for number in (20, 5000):
        answer = answered(server, GET * number)
        assert 1 <= answer.count(b"HTTP/1.1 200 OK") <= 9
        assert b"HTTP/1.1 4" not in answer
    assert resident(server) - before < 10 * MIB
    answer = answered(server, GET + b"\x00 nonsense\r\n\r\n")  # nonsense behind it does no harm
    assert (status_of(answer), answer.count(b"HTTP/1.1 ")) == (200, 1)
    assert status_of(answered(server, b"CONNECT a:1 HTTP/1.1\r\nhost: localhost\r\n\r\nabc")) == 400


def test_waiting_requests_are_answered_in_their_order(server: ServerProcess) -> None:
    paths = ["/version", "/v1/models", "/health", "/nowhere", "/ready", "/version"]
    with connect(server) as sock:
        for _ in range(3):
            requests = (
                f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-request-id: {path}\r\n\r\n" for path in paths
            )
            sock.sendall("".join(requests).encode())
            found = everything_until(sock, b"x-request-id", len(paths))
            ids = [line.split(b": ")[1] for line in found.split(b"\r\n") if line.startswith(b"x-request-id")]
            assert [request_id.decode() for request_id in ids] == paths


# -- an Upgrade to anything but a WebSocket ---------------------------------------------------------------


LENGTH = b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY)
TWO_CHUNKS = b"transfer-encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
PIECES = TWO_CHUNKS % (BODY[:5], len(BODY) - 5, BODY[5:])
UPGRADES = {
    "h2c": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQ\r\n",
    "another": b"upgrade: TLS/1.0, HTTP/2.0\r\nconnection: keep-alive, upgrade\r\n",
    "twice": b"connection: upgrade\r\nupgrade: h2c\r\nupgrade: foo\r\n",
    "a socket by POST": b"connection: upgrade\r\nupgrade: websocket\r\n",
}


@pytest.mark.parametrize("name", UPGRADES)
@pytest.mark.parametrize("body", [LENGTH, PIECES], ids=["length", "chunks"])
def test_an_unsupported_upgrade_is_ignored(server: ServerProcess, name: str, body: bytes) -> None:
    head = b"POST " + CHAT.encode() + b" HTTP/1.1\r\nhost: localhost\r\n" + UPGRADES[name]
    with connect(server) as sock:  # all requests use one connection
        for pieces in ([head + body], _cut(head + body, 7), [head + body[:-20], body[-20:]]):
            for piece in pieces:
                sock.sendall(piece)
            assert status_of(everything_until(sock, b'"usage"')) == 200


def test_a_client_of_http_1_0_opens_no_socket(server: ServerProcess) -> None:
    for path in (CHAT, "/v1/responses", "/nowhere"):
        answer = answered(server, handshake(path=path).replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert status_of(answer) in (404, 405), answer
    check_serves(server)


# -- WebSockets -------------------------------------------------------------------------------------------


def close_code(sock: socket.socket) -> int:
    """Return the code of the close frame, which comes last, behind pongs and messages."""
    found = everything(sock)
    at = found.rindex(b"\x88")
    return int.from_bytes(found[at + 2 : at + 4], "big")


BAD_HANDSHAKES = {
    "a protocol": handshake(b"sec-websocket-protocol: a\xff"),
    "a protocol in UTF-8": handshake("sec-websocket-protocol: schlüssel".encode()),
    "a key": handshake(b"sec-websocket-key: \xff"),
    "an extension": handshake(b"sec-websocket-extensions: \xff\xfe"),
    "two keys": handshake(b"sec-websocket-key: AAAA"),
    "a version": handshake(b"sec-websocket-version: \x0b7"),
    "many headers": handshake(*(b"a%d: b" % i for i in range(200))),
    "a long header": handshake(b"a: " + b"x" * 20_000),
    "protocols that are none": handshake(b"sec-websocket-protocol: ,,;\x22"),
}


@pytest.mark.parametrize("name", BAD_HANDSHAKES)
def test_a_bad_handshake_is_400_and_no_stack(server: ServerProcess, name: str) -> None:
    answer = answered(server, BAD_HANDSHAKES[name])
    assert status_of(answer) == 400, answer
    check_serves(server)


def test_a_handshake_is_refused(server: ServerProcess) -> None:
    odd = (b"origin: https://elsewhere.example", b"x-priority: high", b"x-priority:")
    for field in odd:
        assert status_of(answered(server, handshake(field))) in (400, 403)
    assert status_of(answered(server, handshake(path="/nowhere"))) == 403


def test_a_message_may_come_with_the_handshake(server: ServerProcess) -> None:
    message = frame(1, BODY)
    for cut in (0, 5, len(message)):
        with connect(server) as sock:
            sock.sendall(handshake() + message[:cut])
            everything_until(sock, b"\r\n\r\n")
            sock.sendall(message[cut:])
            everything_until(sock, b'"done":true')


@pytest.mark.parametrize("bad", [header(3, 1) + b"x", header(1, 2**62)], ids=["opcode", "length"])
def test_a_bad_frame_may_come_with_the_handshake(server: ServerProcess, bad: bytes) -> None:
    first_line = len(server.lines)
    answered(server, handshake() + bad)
    wait_until(lambda: any("origin=websocket" in line for line in server.lines[first_line:]))


def test_a_handshake_behind_a_running_request_opens_no_socket(server: ServerProcess) -> None:
    data = json.dumps({"prompt": "a", "max_tokens": 200, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(data)
    answer = answered(server, head + data + handshake())
    assert answer.startswith(b"HTTP/1.1 200")
    assert b" 101 " not in answer


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows what is read from a socket")
@pytest.mark.parametrize("path", [CHAT, "/v1/responses"])
def test_unfinished_messages_count_among_all_bodies(server: ServerProcess, path: str) -> None:
    """Two messages fill the budget, in one frame or in pieces. Then a third is refused, and a body too."""
    half = b" " * (MIB // 2 - 1)
    filling = [header(1, MIB) + b" " * (MIB - 1), frame(1, half, fin=False) + frame(0, half, fin=False)]
    large = b" " * (MIB - 1)
    with contextlib.ExitStack() as held, upgraded(server, path) as idle:
        for data in filling:
            sock = held.enter_context(upgraded(server, path))
            sock.sendall(data)
            wait_until(lambda sock=sock: is_read(sock))  # type: ignore[misc]
        assert server.post("/tokenize", content=large).status_code == 503
        with upgraded(server, path) as third:
            third.sendall(header(1, MIB) + large)
            assert close_code(third) == 1013
        assert server.post(CHAT, content=BODY).status_code == 200
        idle.sendall(frame(9, b"?"))
        assert idle.recv(64) == b"\x8a\x01?"
    wait_until(lambda: server.post("/tokenize", content=large).status_code == 400)


def test_an_unfinished_message_times_out(server: ServerProcess) -> None:
    """Small pieces and pings do not give it more time. A socket without a message may wait for any time."""
    beginnings = (
        b"\x81",
        header(1, 1000) + b"{",
        frame(1, b"", fin=False),
        frame(1, b"{", fin=False) + frame(9, b"?") + frame(0, b"", fin=False),
        frame(9, b"?") + b"\x89",
    )
    with upgraded(server) as idle:
        with contextlib.ExitStack() as stack:
            sockets = [stack.enter_context(upgraded(server)) for _ in beginnings]
            for sock, data in zip(sockets, beginnings, strict=True):
                sock.sendall(data)
            assert [close_code(sock) for sock in sockets] == [1008] * len(beginnings)
        idle.sendall(frame(1, BODY))
        assert b"request_id" in idle.recv(4096)


def test_a_message_in_too_many_pieces_ends_its_socket_and_a_letter_may_be_split(
    server: ServerProcess,
) -> None:
    before = resident(server)
    with upgraded(server) as sock:
        with contextlib.suppress(ConnectionError):
            sock.sendall(frame(1, b"{", fin=False) + frame(0, b"", fin=False) * 100_000)
        everything(sock)
    assert resident(server) - before < 40 * MIB
    with upgraded(server) as sock:
        pieces = [BODY[i : i + 1] for i in range(len(BODY))]
        sock.sendall(frame(1, b"", fin=False) + b"".join(frame(0, piece, fin=False) for piece in pieces))
        sock.sendall(frame(0, b""))
        assert b"request_id" in sock.recv(4096)
    body = BODY.replace(b'"a"', '"ä"'.encode())
    at = body.index(b"\xc3") + 1
    with upgraded(server) as sock:
        sock.sendall(frame(1, body[:at], fin=False) + frame(0, body[at:]))
        assert b'"error"' not in sock.recv(4096), "a letter may be split"


def _cut(data: bytes, size: int | None) -> list[bytes]:
    return [data] if size is None else [data[i : i + size] for i in range(0, len(data), size)]
