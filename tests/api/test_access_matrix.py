"""Every route: no key, a wrong key, the right one, one for something else; and odd spellings of its path."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server.http.keys import KeyRing
from openai_cpu_server.http.keys import Scope as KeyScope
from openai_cpu_server.jobs.jobs import Jobs
from tests.access_table import NEEDED, OPEN, OPEN_TO_GATEWAYS, OTHERS, SOCKETS, with_an_end
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_file, of
from tests.api.serving import client, locked_api
from tests.api.sockets import connected
from tests.api.talking import error_by_path

pytestmark = pytest.mark.anyio

HEADERS = [lambda key: {"authorization": f"Bearer {key}"}, lambda key: {"x-api-key": key}]


def name_of(route: BaseRoute) -> str:
    assert isinstance(route, Route | WebSocketRoute), f"what does {route} ask of a key?"
    (method,) = {*(route.methods or ())} - {"HEAD"} if isinstance(route, Route) else {"WEBSOCKET"}
    return f"{method} {re.sub(r':[a-z]+}', '}', route.path)}"


@pytest.fixture(scope="module")
async def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture(scope="module")
def locked(engine: FakeEngine, jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Starlette:
    return locked_api(engine, KeyRing(None, scoped_keys(tmp_path_factory.mktemp("keys"))), jobs=jobs)


@pytest.fixture
async def http(locked: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with client(locked) as one:
        yield one


async def test_the_table_names_every_route(locked: Starlette) -> None:
    assert sorted(map(name_of, locked.routes)) == sorted([*NEEDED, *SOCKETS])
    assert OTHERS.keys() <= NEEDED.keys()


def scoped_keys(folder: Path) -> Path:
    """For each scope a key that has it, and one that has all others."""
    every = {scope.value: [scope.value] for scope in KeyScope}
    every |= {f"not-{name}": [other for other in every if other != name] for name in every}
    return key_file(folder, **{name: f"scopes = {scopes}" for name, scopes in every.items()})


def kind_of(answer: httpx.Response) -> object:
    """The code; on Anthropic's paths, whose errors have none, and llama-server's, where it is the status, the
    one that belongs to the type; on Ollama's, whose errors are a text, the one that belongs to the status."""
    error = error_by_path(answer)
    if set(error) == {"message"}:
        return {401: "invalid_api_key", 403: "missing_scope"}[answer.status_code]
    codes = {"authentication_error": "invalid_api_key", "permission_error": "missing_scope"}
    code = error.get("code", answer.status_code)
    return codes[str(error["type"])] if code == answer.status_code else code


def split(route: str) -> tuple[str, str]:
    method, path = route.split(" ")
    return method, with_an_end(re.sub(r"\{.*?\}", "nothing", path))


WITH_A_KEY = {route: needed.value for route, needed in NEEDED.items() if needed is not OPEN}


@pytest.mark.parametrize("route", WITH_A_KEY)
async def test_the_right_key_opens_and_no_other(http: httpx.AsyncClient, route: str) -> None:
    for headers in ({}, *(header(key) for header in HEADERS for key in ("wrong", ""))):
        answer = await http.request(*split(route), headers=headers)
        assert (answer.status_code, kind_of(answer)) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "wrong" not in answer.text
    needed = WITH_A_KEY[route]
    for header in HEADERS:
        answer = await http.request(*split(route), headers=header(needed))
        assert answer.status_code not in (401, 403, 405, 500)
    answer = await http.request(*split(route), headers=of(f"not-{needed}"))
    assert (answer.status_code, kind_of(answer)) == (403, "missing_scope")
    assert str(error_by_path(answer)["message"]).endswith(f"Missing scopes: {needed}.")


@pytest.mark.parametrize("route", sorted(NEEDED.keys() - WITH_A_KEY.keys()))
async def test_what_is_open_is_open(http: httpx.AsyncClient, route: str) -> None:
    for headers in ({}, of("wrong"), of("not-inference")):
        answer = await http.request(*split(route), headers=headers)
        assert answer.status_code == (404 if "{" in route else 200)


@pytest.mark.parametrize("headers", [{}, {"x-api-key": "wrong"}, {"x-api-key": "admin"}])
async def test_gateways_may_be_let_in_without_a_key(
    engine: FakeEngine, jobs: Jobs, tmp_path: Path, headers: dict[str, str]
) -> None:
    keys = KeyRing(None, scoped_keys(tmp_path), is_open_to_gateways=True)
    async with client(locked_api(engine, keys, jobs=jobs)) as http:
        for route in WITH_A_KEY:
            answer = await http.request(*split(route), headers=headers)
            if route in OPEN_TO_GATEWAYS:
                assert answer.status_code == 200
                assert "ocs_" not in answer.text
            elif headers.get("x-api-key") != "admin":
                assert answer.status_code == 401
        assert "ocs_" in (await http.get("/metrics", headers={"x-api-key": "metrics"})).text


async def test_without_any_keys_everything_is_open(engine: FakeEngine, jobs: Jobs) -> None:
    async with client(locked_api(engine, KeyRing(), jobs=jobs)) as http:
        for route in NEEDED:
            for headers in ({}, {"x-api-key": "any"}):
                answer = await http.request(*split(route), headers=headers)
                assert answer.status_code not in (401, 403), route


# -- odd spellings of paths: nothing is reached but what the scope of the key allows -------------------------


METHODS = ("GET", "POST", "DELETE", "PUT", "HEAD")
KNOWN = (None, *(scope.value for scope in KeyScope))
KEYS = ("wrong", *KNOWN)
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
            route.app = self._noting(route.app, name_of(route))  # type: ignore[attr-defined]

    def _noting(self, app: ASGIApp, name: str) -> ASGIApp:
        async def noted(scope: Scope, receive: Receive, send: Send) -> None:
            self.names.append(name)
            await app(scope, receive, send)

        return noted


@pytest.fixture(scope="module")
async def reached(locked: Starlette) -> Reached:
    return Reached(locked)


PATHS = sorted({re.sub(r"\{.*?\}", "nothing", route.split(" ")[1]) for route in NEEDED})


@pytest.mark.parametrize("are_all_tried", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", PATHS)
async def test_no_spelling_of_a_path_opens_what_the_key_does_not(
    locked: Starlette, reached: Reached, path: str, are_all_tried: bool
) -> None:
    """By any method and any key; each misspelling by one of three methods and two of the keys, unless all are
    tried. No spelling is a fault of the server's, either.

    The query ends at once what would be endless.
    """
    async with client(locked) as http:
        for number, spelling in enumerate(spellings(path)):
            some = METHODS[:3] if are_all_tried else [METHODS[number % 3]]
            two = (KNOWN[number % len(KNOWN)], KNOWN[(number + 2) % len(KNOWN)])
            for method in METHODS if spelling == path else some:
                for key in KEYS if spelling == path else KNOWN if are_all_tried else two:
                    reached.names.clear()
                    headers = of(key) if key else {}
                    answer = await http.request(method, spelling + "?types=", headers=headers)
                    assert answer.status_code < 500, (method, spelling, key)
                    for name in reached.names:
                        assert may(key, ALL_NEEDED[name]), (name, method, spelling, key)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("path", PATHS)
async def test_control_characters_reach_nothing(
    locked: Starlette, reached: Reached, path: str, every: int
) -> None:
    """Whoever sends them, also one who may do everything. Ordinarily each path takes each sixth of them,
    others than the next one does."""
    async with client(locked) as http:
        for control in CONTROLS[PATHS.index(path) % every :: every]:
            for spelling in (
                path + quote(control),
                quote(control) + path,
                path[:3] + quote(control) + path[3:],
            ):
                reached.names.clear()
                answer = await http.get("/" + spelling.lstrip("/"), headers={"x-api-key": "not-metrics"})
                assert answer.status_code == 400
                has_code = not spelling.startswith(("/v1/messages", "/api/"))
                assert not has_code or error_by_path(answer)["code"] == "invalid_path"
                assert not reached.names


@pytest.mark.parametrize("socket", SOCKETS)
async def test_a_websocket_is_reached_by_its_path_and_its_scope_alone(
    locked: Starlette, reached: Reached, socket: str
) -> None:
    path = socket.split(" ")[1]
    for spelling in (path, path + "\n", path + "/", "/" + path, path.upper(), path + "\x00"):
        for key in KEYS:
            reached.names.clear()
            is_open = spelling == path and may(key, SOCKETS[socket])
            async with connected(locked, of(key) if key else {}, path=spelling) as one:
                if is_open:
                    await one.accepted()
                elif spelling == path:
                    assert (await one.refused())[0] == (403 if key in KNOWN[1:] else 401)
            while not one.from_app.empty():
                assert one.from_app.get_nowait().get("status", 0) < 500
            assert reached.names == [socket] * is_open


def test_httpx_sends_what_the_test_says() -> None:
    assert httpx.Request("GET", "http://test//v1/x%0A/%2f").url.raw_path == b"//v1/x%0A/%2f"
