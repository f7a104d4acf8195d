"""Pictures are fetched from servers with public addresses: a network of the test's own has such ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.fetching import Fetched, fetch
from tests.waiting import DEADLINE_S

ADDRESS = "1.2.3.4"
TIMEOUT_S = 1.0
ALONE = ("unshare", "--user", "--map-root-user", "--net")


def test_what_stands_at_a_url_is_fetched_within_its_bounds() -> None:
    if subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("no network of one's own can be had")
    command = [*ALONE, sys.executable, "-m", "tests.http.test_fetching"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)
    assert json.loads(done.stdout) == {
        "sized": "picture",
        "of_http_1_0": "picture",
        "closing": "picture",
        "redirecting": "picture",
        "redirecting_inside": "its address is a private one",
        "redirecting_for_ever": "it is redirected more than 3 times",
        "redirecting_to_a_file": "this is no URL that can be fetched",
        "missing": "its server answers 404",
        "endless": "it has more than 100000 bytes",
        "no_http": "it cannot be fetched (BadStatusLine)",
        "silent": "it does not come within 1 seconds",
        "dripping_head": "it does not come within 1 seconds",
        "dripping_body": "it does not come within 1 seconds",
        "threads that still fetch": 0,
    }


Reply = Callable[[socket.socket], None]
_FOUND = b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "


def _said(data: bytes) -> Reply:
    return lambda client: client.sendall(data)


def _again(head: bytes, data: bytes, pause_s: float) -> Reply:
    """The data again and again, until the other side has enough."""

    def reply(client: socket.socket) -> None:
        client.sendall(head)
        while True:
            client.sendall(data)
            time.sleep(pause_s)

    return reply


REPLIES: dict[str, Reply] = {
    "sized": _said(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\npicture"),
    "of_http_1_0": _said(b"HTTP/1.0 200 OK\r\n\r\npicture"),
    "closing": _said(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\npicture"),
    "redirecting": _said(_FOUND + b"/sized\r\n\r\n"),
    "redirecting_inside": _said(_FOUND + b"http://127.0.0.1/\r\n\r\n"),
    "redirecting_for_ever": _said(_FOUND + b"/redirecting_for_ever\r\n\r\n"),
    "redirecting_to_a_file": _said(_FOUND + b"file:///etc/passwd\r\n\r\n"),
    "missing": _said(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
    "endless": _again(b"HTTP/1.1 200 OK\r\n\r\n", bytes(10_000), 0),
    "no_http": _said(b"picture\r\n"),
    "silent": lambda client: time.sleep(60),
    "dripping_head": _again(b"HTTP/1.1 200 OK\r\nX: ", b"x", 0.1),
    "dripping_body": _again(b"HTTP/1.1 200 OK\r\n\r\n", b"x", 0.1),
}


def _serve() -> int:
    """A server that replies as the path says. Returns its port."""
    listening = socket.create_server((ADDRESS, 0))

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            REPLIES[client.recv(4096).split()[1].decode().removeprefix("/")](client)

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port: int = listening.getsockname()[1]
    return port


async def _fetched_all() -> dict[str, str | int]:
    port, found = _serve(), dict[str, str | int]()
    for name in REPLIES:
        try:
            asked = Fetched(
                f"http://{ADDRESS}:{port}/{name}", (ADDRESS, "127.0.0.1"), 100_000, "too_large", TIMEOUT_S
            )
            found[name] = (await fetch(asked)).decode()
        except InvalidRequest as error:
            found[name] = str(error)
    await asyncio.sleep(TIMEOUT_S)
    frames = sys._current_frames().values()
    found["threads that still fetch"] = sum("readinto" in frame.f_code.co_name for frame in frames)
    return found


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    sys.stdout.write(json.dumps(asyncio.run(_fetched_all())))
