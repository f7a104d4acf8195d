"""Where the real server listens, by which names it answers, and who administrates it without keys."""

from __future__ import annotations

import socket

import httpx
import psutil
import pytest
import websockets
from websockets.sync.client import connect

from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

pytestmark = [pytest.mark.native, pytest.mark.thorough]

MODEL = ("--model", str(tiny_model_path()), "--ctx-size", "4096")
OPEN = "without --api-key or --api-keys, everybody who reaches 0.0.0.0 may use this server"


def status(server: ServerProcess, host: str, path: str = "/v1/models") -> int:
    return httpx.get(server.url + path, headers={"host": host}).status_code


def own_address() -> str:
    """An address of this machine that is not on its loopback."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family is socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no network")


def test_on_loopback_it_answers_by_its_own_names_alone() -> None:
    """The way of a page whose name points here: the browser takes the server for the page's own."""
    with ServerProcess(*MODEL) as server:
        port = server.url.rsplit(":", 1)[1]
        assert [status(server, host) for host in (f"localhost:{port}", f"127.0.0.1:{port}", "[::1]")] == [
            200
        ] * 3
        rebound = {"host": f"evil.example:{port}", "origin": f"http://evil.example:{port}"}
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("DELETE", "/v1/cache"),
            ("GET", "/v1/requests"),
        ):
            answer = httpx.request(method, server.url + path, headers=rebound)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")
        with pytest.raises(websockets.InvalidStatus) as refused:
            connect(f"ws://evil.example:{port}/v1/chat/completions", sock=_connected(port))
        assert refused.value.response.status_code == 421
        connect(f"ws://localhost:{port}/v1/chat/completions", sock=_connected(port)).close()
        assert httpx.delete(server.url + "/v1/cache").status_code == 204
        assert not any(OPEN[:20] in line for line in server.lines)


def test_further_names_are_named() -> None:
    with ServerProcess(*MODEL, "--allowed-host", "llm.example", "--allowed-host", "Other.Example") as server:
        told = [
            status(server, host) for host in ("llm.example", "other.example:1", "localhost", "evil.example")
        ]
        assert told == [200, 200, 200, 421]


def test_open_to_the_network_it_warns_and_is_administrated_from_here() -> None:
    """Its names it does not know: any will do."""
    with ServerProcess(*MODEL, "--host", "0.0.0.0") as server:
        assert any(OPEN in line for line in server.lines)
        assert status(server, "any.example") == 200
        assert httpx.delete(server.url + "/v1/cache").status_code == 204
        elsewhere = server.url.replace("127.0.0.1", own_address())
        assert httpx.get(elsewhere + "/v1/models").status_code == 200
        refused = httpx.delete(elsewhere + "/v1/cache")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")


def test_administration_can_be_open_too() -> None:
    with ServerProcess(
        *MODEL, "--host", "0.0.0.0", "--open-admin", "--allowed-host", "llm.example"
    ) as server:
        assert any(OPEN in line and "administrate" in line for line in server.lines)
        elsewhere = server.url.replace("127.0.0.1", own_address())
        assert httpx.delete(elsewhere + "/v1/cache").status_code == 204
        assert [status(server, host) for host in ("llm.example", "any.example")] == [200, 421]


def test_with_a_key_there_is_nothing_to_warn_of() -> None:
    with ServerProcess(*MODEL, "--host", "0.0.0.0", "--api-key", "k") as server:
        assert not any("everybody who reaches" in line for line in server.lines)


def _connected(port: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(port)), timeout=10)
