"""Where the real server listens, by which names it answers, and who administrates it without keys.

What belongs to a name, an origin and a peer: tests/api/test_browsers.py.
"""

from __future__ import annotations

import socket

import httpx
import psutil
import pytest

from tests.e2e.serving import tiny_server

pytestmark = [pytest.mark.native, pytest.mark.thorough]

OPEN = "without --api-key or --api-keys, everybody who reaches 0.0.0.0 may use this server"
ANYWHERE = ("--host", "0.0.0.0")
NAMED = ("--allowed-host", "llm.example", "--allowed-host", "Other.Example")


def own_address() -> str:
    """An address of this machine that is not on its loopback."""
    for addresses in psutil.net_if_addrs().values():
        for one in addresses:
            if one.family is socket.AF_INET and not one.address.startswith("127."):
                return one.address
    pytest.skip("this machine has no network")


@pytest.mark.parametrize(
    ("options", "by", "not_by"),
    [
        ((), ("localhost", "localhost:1", "127.0.0.1", "[::1]"), ("evil.example", "llm.example")),
        pytest.param(
            *(NAMED, ("llm.example", "other.example:1", "localhost"), ("evil.example",)),
            marks=pytest.mark.slow,
        ),
        ((*ANYWHERE, *NAMED), ("llm.example",), ("any.example",)),
    ],
    ids=["loopback", "further names", "open, by names"],
)
def test_it_answers_by_its_names_alone(
    options: tuple[str, ...], by: tuple[str, ...], not_by: tuple[str, ...]
) -> None:
    """The way of a page whose name points here: the browser takes the server for the page's own."""
    with tiny_server(*options) as server:
        for host in (*by, *not_by):
            answer = httpx.get(server.url + "/v1/models", headers={"host": host})
            assert answer.status_code == (200 if host in by else 421), host
        rebound = {"host": not_by[0], "origin": f"http://{not_by[0]}"}
        for method, path in (("POST", "/v1/chat/completions"), ("DELETE", "/v1/cache")):
            answer = httpx.request(method, server.url + path, headers=rebound)
            assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")
        assert any(OPEN in line for line in server.lines) == (options[:2] == ANYWHERE)


@pytest.mark.parametrize("is_open", [pytest.param(False, marks=pytest.mark.slow), True])
def test_open_to_the_network_it_warns_and_is_administrated_from_here_or_by_all(is_open: bool) -> None:
    """Its names it does not know: any will do."""
    with tiny_server(*ANYWHERE, *(["--open-admin"] if is_open else [])) as server:
        (said,) = (line for line in server.lines if OPEN in line)
        assert ("administrate" in said) == is_open
        assert httpx.get(server.url + "/v1/models", headers={"host": "any.example"}).status_code == 200
        assert httpx.delete(server.url + "/v1/cache").status_code == 204
        elsewhere = server.url.replace("127.0.0.1", own_address())
        assert httpx.get(elsewhere + "/v1/models").status_code == 200
        assert httpx.delete(elsewhere + "/v1/cache").status_code == (204 if is_open else 403)
