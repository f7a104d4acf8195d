"""Addresses, host names and administration without keys of the real server.

Names by option: tests/server/test_options.py. A name, an origin and a peer: tests/api/test_browsers.py.
"""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.serving import own_address, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

OPEN_WARNING = "without --api-key or --api-keys, every client that reaches 0.0.0.0 may use this server"


def check_names(server: ServerProcess, allowed: str, foreign: str) -> None:
    """A page at a foreign name of this address is refused, because browsers take it for the server's own."""
    for host, status in ((allowed, 200), (foreign, 421)):
        assert server.get("/v1/models", headers={"host": host}).status_code == status
    rebound = {"host": foreign, "origin": f"http://{foreign}"}
    answer = server.delete("/v1/cache", headers=rebound)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")


def test_a_server_on_loopback_answers_to_its_own_names_only(server: ServerProcess) -> None:
    check_names(server, "localhost:1", "evil.example")
    assert not any(OPEN_WARNING in line for line in server.lines)


def test_an_open_server_warns_and_is_administrated_from_its_machine_only() -> None:
    """The server answers to the names of --allowed-host and to its addresses."""
    with tiny_server("--host", "0.0.0.0", "--allowed-host", "llm.example") as server:
        check_names(server, "llm.example", "any.example")
        (warning,) = (line for line in server.lines if OPEN_WARNING in line)
        assert "administrate" not in warning
        assert server.delete("/v1/cache").status_code == 204
        elsewhere = server.url.replace("127.0.0.1", own_address())
        assert httpx.get(elsewhere + "/v1/models", timeout=DEADLINE_S).status_code == 200
        assert httpx.delete(elsewhere + "/v1/cache", timeout=DEADLINE_S).status_code == 403
