"""All routes by odd spellings of their paths: nothing is reached but what the scope of the key allows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_cpu_server.http.key_file import KeyRing
from openai_cpu_server.http.keys import Scope as KeyScope
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.access_table import NEEDED, SOCKETS
from tests.api.fake_engine import FakeEngine
from tests.api.serving import client, locked_api
from tests.api.talking import told_error
from tests.api.test_access_matrix import key_file

pytestmark = pytest.mark.anyio

METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD")
KEYS = (None, "wrong", *(scope.value for scope in KeyScope))
CONTROLS = [*map(chr, range(0x20)), "\x7f"]
ALL_NEEDED = {**NEEDED, **SOCKETS}


def may(key: str | None, needed: KeyScope | None) -> bool:
    return needed is None or key == needed.value


def spellings(path: str) -> Iterator[str]:
    """As they stand in the request's line."""
    yield path
    yield from (
        path + end for end in ("/", "%0A", "%0D%0A", "%00", "%20", "%2f", "%3F", ";", "/.", "/..", "%FF")
    )
    yield from ("/" + path, "/." + path, "/x/.." + path, "/%2e" + path, "%2f" + path.lstrip("/"))
    yield from (path.upper(), path.title(), path.replace("/", "%2f"), path.replace("/", "\\"))
    yield "/" + "".join(f"%{ord(c):02x}" if c != "/" else c for c in path[1:])
    yield path.replace("/", "//")


class Reached:
    """Notes which handlers are reached, and lets them work."""

    def __init__(self, app: Starlette) -> None:
        self.names: list[str] = []
        for route in app.routes:
            assert isinstance(route, Route | WebSocketRoute)
            methods = route.methods if isinstance(route, Route) else {"WEBSOCKET"}
            (method,) = (methods or set()) - {"HEAD"}
            name = f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"
            route.app = self._noting(route.app, name)

    def _noting(self, app: ASGIApp, name: str) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            self.names.append(name)
            await app(scope, receive, send)

        return noted


@pytest.fixture(scope="module")
async def locked(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Starlette]:
    folder = tmp_path_factory.mktemp("paths")
    jobs = Jobs(open_database(str(folder / "jobs.db")), JobOptions(model="fake"))
    task = asyncio.create_task(jobs.run(_no_row))
    await asyncio.sleep(0)
    yield locked_api(FakeEngine(), KeyRing(None, key_file(folder)), jobs=jobs)
    await jobs.close()
    await task


async def _no_row(*_: object) -> None:
    raise AssertionError("no batch has been sent")


@pytest.fixture(scope="module")
async def reached(locked: Starlette) -> Reached:
    return Reached(locked)


PATHS = sorted({re.sub(r"\{.*?\}", "nothing", route.split(" ")[1]) for route in NEEDED})


@pytest.mark.parametrize("path", PATHS)
async def test_no_spelling_of_a_path_opens_what_the_key_does_not(
    locked: Starlette, reached: Reached, path: str
) -> None:
    """By any method and any key. No spelling is a fault of the server's, either.

    The query ends at once what would be endless.
    """
    async with client(locked) as http:
        for spelling in spellings(path):
            for method in METHODS if spelling == path else METHODS[:3]:
                for key in KEYS:
                    reached.names.clear()
                    headers = {"x-api-key": key} if key else {}
                    answer = await http.request(method, spelling + "?types=", headers=headers)
                    assert answer.status_code < 500, (method, spelling, key)
                    for name in reached.names:
                        assert may(key, ALL_NEEDED[name]), (name, method, spelling, key)


@pytest.mark.parametrize("path", PATHS)
async def test_control_characters_reach_nothing(locked: Starlette, reached: Reached, path: str) -> None:
    """Whoever sends them, also one who may do everything."""
    async with client(locked) as http:
        for control in CONTROLS:
            for spelling in (
                path + quote(control),
                quote(control) + path,
                path[:3] + quote(control) + path[3:],
            ):
                reached.names.clear()
                answer = await http.get("/" + spelling.lstrip("/"), headers={"x-api-key": "not-metrics"})
                assert answer.status_code == 400
                said = told_error(answer) if not spelling.startswith("/v1/messages") else None
                assert said is None or said["code"] == "invalid_path"
                assert not reached.names


@pytest.mark.parametrize("socket", SOCKETS)
async def test_a_websocket_is_reached_by_its_path_and_its_scope_alone(
    locked: Starlette, reached: Reached, socket: str
) -> None:
    path = socket.split(" ")[1]
    for spelling in (path, path + "\n", path + "/", "/" + path, path.upper(), path + "\x00"):
        for key in KEYS:
            reached.names.clear()
            await handshake(locked, spelling, key)
            assert reached.names == ([socket] if spelling == path and may(key, SOCKETS[socket]) else [])


async def handshake(app: Starlette, path: str, key: str | None) -> None:
    """The client leaves when the socket is open."""
    messages: list[Message] = [{"type": "websocket.connect"}, {"type": "websocket.disconnect", "code": 1000}]

    async def receive() -> Message:
        return messages.pop(0)

    async def send(message: Message) -> None:
        assert message.get("status", 0) < 500

    scope = {
        "type": "websocket",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": b"",
        "root_path": "",
        "scheme": "ws",
        "headers": [(b"x-api-key", key.encode())] if key else [],
        "subprotocols": [],
        "extensions": {"websocket.http.response": {}},
    }
    await app(scope, receive, send)


async def test_the_way_that_was_open(locked: Starlette) -> None:
    """A line's end behind a path passed for another path at the gate, and for the same at the route."""
    async with client(locked) as http:
        http.headers["x-api-key"] = "inference"
        for method, path in (("DELETE", "/v1/cache"), ("POST", "/v1/models/fake/unload")):
            assert (await http.request(method, path)).status_code == 403
            assert (await http.request(method, path + "%0A")).status_code == 400
        assert (await http.post("/v1/chat/completions%0A", json={})).status_code == 400


def test_httpx_sends_what_the_test_says() -> None:
    assert httpx.Request("GET", "http://test//v1/x%0A/%2f").url.raw_path == b"//v1/x%0A/%2f"
