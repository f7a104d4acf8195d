"""Where the real server listens, by which names it answers, and who administrates it without keys.

Names by option: tests/server/test_options.py; a name, an origin and a peer: tests/api/test_browsers.py.
"""

from __future__ import annotations

import httpx
import pytest

from tests.e2e.serving import own_address, tiny_server
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.native, pytest.mark.thorough]

OPEN = "without --api-key or --api-keys, every client that reaches 0.0.0.0 may use this server"


def check_names(server: ServerProcess, by: str, not_by: str) -> None:
    """A page whose name points here is refused: the browser takes the server for the page's own."""
    for host, status in ((by, 200), (not_by, 421)):
        assert server.get("/v1/models", headers={"host": host}).status_code == status
    rebound = {"host": not_by, "origin": f"http://{not_by}"}
    answer = server.delete("/v1/cache", headers=rebound)
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host_not_allowed")


def test_on_loopback_it_answers_by_its_names_alone(server: ServerProcess) -> None:
    check_names(server, "localhost:1", "evil.example")
    assert not any(OPEN in line for line in server.lines)


def test_open_to_the_network_it_warns_and_is_administrated_from_here() -> None:
    """It answers by the names that it is told, and by its addresses."""
    with tiny_server("--host", "0.0.0.0", "--allowed-host", "llm.example") as server:
        check_names(server, "llm.example", "any.example")
        (said,) = (line for line in server.lines if OPEN in line)
        assert "administrate" not in said
        assert server.delete("/v1/cache").status_code == 204
        elsewhere = server.url.replace("127.0.0.1", own_address())
        assert httpx.get(elsewhere + "/v1/models", timeout=DEADLINE_S).status_code == 200
        assert httpx.delete(elsewhere + "/v1/cache", timeout=DEADLINE_S).status_code == 403
