"""Fetching of pictures from public addresses, which the test has in a network namespace of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.fetching import Fetched, fetch_url, is_near
from tests.waiting import DEADLINE_S, eventually

ADDRESS = "1.2.3.4"
ALONE = ("unshare", "--user", "--map-root-user", "--net")
QUICKLY_S, SLOWLY_S = 0.5, DEADLINE_S


def test_a_url_is_fetched_within_its_bounds() -> None:
    if subprocess.run([*ALONE, "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("a network namespace cannot be created")
    command = [*ALONE, sys.executable, "-m", "tests.http.test_fetching"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    late = f"it was not received within {QUICKLY_S:g} seconds"
    assert json.loads(process.stdout) == {
        "sized": "picture",
        "of_http_1_0": "picture",
        "closing": "picture",
        "redirecting": "picture",
        "redirecting_inside": "its address is a private one",
        "redirecting_for_ever": "it has more than 3 redirects",
        "redirecting_to_a_file": "this is not a URL that can be fetched",
        "missing": "its server answered with status 404",
        "endless": "it has more than 100000 bytes",
        "no_http": "it cannot be fetched (BadStatusLine)",
        "silent": late,
        "dripping_head": late,
        "dripping_body": late,
    }


@pytest.mark.anyio
@pytest.mark.parametrize(
    "host",
    [
        *("[::1]", "[::ffff:127.0.0.1]", "2130706433", "10.0.0.1", "169.254.169.254", "0.0.0.0"),
        *("[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::1]", "[::127.0.0.1]", "[fec0::1]"),
    ],
)
async def test_nothing_is_fetched_from_private_addresses(host: str) -> None:
    with pytest.raises(InvalidRequest, match="its address is a private one"):
        await fetch_url(Fetched(f"http://{host}/x.png", ("*",), 100_000, "too_large", DEADLINE_S))


@pytest.mark.parametrize(
    ("address", "host", "is_allowed"),
    [
        ("192.168.1.5", "nas.lan", True),
        ("172.18.0.3", "minio", True),
        ("fd00::5", "nas.lan", True),
        ("::ffff:10.0.0.5", "nas.lan", True),
        ("93.184.215.14", "nas.lan", True),
        ("127.0.0.1", "nas.lan", False),
        ("127.0.0.1", "localhost", True),
        ("::1", "::1", True),
        ("169.254.169.254", "nas.lan", False),
        ("::ffff:169.254.169.254", "nas.lan", False),
        ("64:ff9b::a9fe:a9fe", "nas.lan", False),
        ("fe80::1%eth0", "nas.lan", False),
        ("0.0.0.0", "nas.lan", False),
        ("224.0.0.1", "nas.lan", False),
    ],
)
def test_an_own_host_has_an_address_of_a_private_network(address: str, host: str, is_allowed: bool) -> None:
    assert is_near(address, host) is is_allowed


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://localhost:1/a.png", "cannot be fetched"),
        ("http://localhost:2/a.png", "its domain is not one"),
        ("http://localhost/a.png", "its domain is not one"),
        ("http://127.0.0.1:1/a.png", "its domain is not one"),
        ("http://localhost.example.org:1/a.png", "its domain is not one"),
    ],
)
async def test_an_own_host_is_named_with_its_port(url: str, why: str) -> None:
    source = Fetched(url, (), 100, "image_too_large", DEADLINE_S, ("localhost:1",))
    with pytest.raises(InvalidRequest, match=why):
        await fetch_url(source)


_OK, _FOUND = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: "
REPLIES: dict[str, Iterable[bytes]] = {
    "sized": [_OK + b"Content-Length: 7\r\n\r\npicture"],
    "of_http_1_0": [b"HTTP/1.0 200 OK\r\n\r\npicture"],
    "closing": [_OK + b"Connection: close\r\n\r\npicture"],
    "redirecting": [_FOUND + b"/sized\r\n\r\n"],
    "redirecting_inside": [_FOUND + b"http://127.0.0.1/\r\n\r\n"],
    "redirecting_for_ever": [_FOUND + b"/redirecting_for_ever\r\n\r\n"],
    "redirecting_to_a_file": [_FOUND + b"file:///etc/passwd\r\n\r\n"],
    "missing": [b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"],
    "endless": itertools.chain([_OK + b"\r\n"], itertools.repeat(bytes(10_000))),
    "no_http": [b"picture\r\n"],
    "silent": itertools.repeat(b""),
    "dripping_head": itertools.chain([_OK + b"X: "], itertools.repeat(b"x")),
    "dripping_body": itertools.chain([_OK + b"\r\n"], itertools.repeat(b"x")),
}
LATE = {"silent", "dripping_head", "dripping_body"}
PAUSE_S = 0.05
"""Time between the bytes of late replies."""


def _serve() -> int:
    """Start a server whose reply depends on the path. Return its port."""
    listening = socket.create_server((ADDRESS, 0))

    def answer(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            name = client.recv(4096).split()[1].decode().removeprefix("/")
            for data in REPLIES[name]:
                client.sendall(data)
                if name in LATE:
                    client.settimeout(PAUSE_S)
                    with contextlib.suppress(TimeoutError):
                        if not client.recv(1):
                            return

    def accept() -> None:
        while True:
            threading.Thread(target=answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    port: int = listening.getsockname()[1]
    return port


def num_fetching() -> int:
    return sum("readinto" in frame.f_code.co_name for frame in sys._current_frames().values())


async def _fetched_all() -> dict[str, str]:
    url, results = f"http://{ADDRESS}:{_serve()}", dict[str, str]()
    for name in REPLIES:
        timeout_s = QUICKLY_S if name in LATE else SLOWLY_S
        try:
            source = Fetched(f"{url}/{name}", (ADDRESS, "127.0.0.1"), 100_000, "too_large", timeout_s)
            results[name] = (await fetch_url(source)).decode()
        except InvalidRequest as error:
            results[name] = str(error)
    await eventually(lambda: num_fetching() == 0)
    return results


if __name__ == "__main__":
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "lo"], check=True)
    sys.stdout.write(json.dumps(asyncio.run(_fetched_all())))
