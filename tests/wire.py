"""Raw bytes to the real server and its replies: HTTP and WebSockets without a client library."""

from __future__ import annotations

import base64
import contextlib
import os
import socket
from pathlib import Path

from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

CHAT = "/v1/chat/completions"
END = b"\r\nhost: localhost\r\n\r\n"  # end of a request's first line, and all of its headers


def connect(server: ServerProcess, *, receive_bytes: int | None = None) -> socket.socket:
    """Connect to the server. The socket sends each piece as a packet of its own."""
    sock = socket.socket()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if receive_bytes is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(DEADLINE_S)
    sock.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    return sock


def everything(sock: socket.socket) -> bytes:
    """Read until the other side closes or resets the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


def everything_until(sock: socket.socket, words: bytes, times: int = 1) -> bytes:
    found = b""
    while found.count(words) < times:
        piece = sock.recv(65536)
        assert piece, found
        found += piece
    return found


def answered(server: ServerProcess, *pieces: bytes, half_closes: bool = False) -> bytes:
    """Send the pieces and read until the server closes. `half_closes`: shut the sending side after them."""
    with connect(server) as sock:
        with contextlib.suppress(ConnectionError):
            for piece in pieces:
                sock.sendall(piece)
            if half_closes:
                sock.shutdown(socket.SHUT_WR)
        return everything(sock)


def status_of(answer: bytes) -> int | None:
    """Return the status, or None if these bytes are not a response."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else None


def handshake(*more: bytes, path: str = CHAT) -> bytes:
    """Return the opening handshake of a WebSocket, with these headers added."""
    fields = (
        b"host: localhost",
        b"upgrade: websocket",
        b"connection: upgrade",
        b"sec-websocket-version: 13",
        b"sec-websocket-key: " + base64.b64encode(os.urandom(16)),
        *more,
    )
    return b"GET " + path.encode() + b" HTTP/1.1\r\n" + b"\r\n".join(fields) + b"\r\n\r\n"


def upgraded(server: ServerProcess, path: str = CHAT) -> socket.socket:
    sock = connect(server)
    sock.sendall(handshake(path=path))
    answer = sock.recv(4096)
    assert answer.startswith(b"HTTP/1.1 101"), answer
    return sock


def frame(opcode: int, payload: bytes, *, fin: bool = True) -> bytes:
    """Return a frame that is masked with zeros."""
    return header(opcode, len(payload), fin=fin) + payload


def header(opcode: int, length: int, *, fin: bool = True) -> bytes:
    first = bytes([(0x80 if fin else 0) | opcode])
    if length < 126:
        return first + bytes([0x80 | length]) + bytes(4)
    if length < 65536:
        return first + b"\xfe" + length.to_bytes(2, "big") + bytes(4)
    return first + b"\xff" + length.to_bytes(8, "big") + bytes(4)


def is_read(sock: socket.socket) -> bool:
    """Return whether the server has read all bytes from its socket."""
    port, queued = sock.getsockname()[1], 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sent, received = (int(size, 16) for size in queues.split(":"))
        queued += sent if int(local.split(":")[1], 16) == port else 0
        queued += received if int(remote.split(":")[1], 16) == port else 0
    return queued == 0
