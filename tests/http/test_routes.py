"""A row describes a route: its handler, its scope, its documentation, and its handler of batch rows."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from openai_cpu_server.api.application import ROWS
from openai_cpu_server.http.application import application
from openai_cpu_server.http.body import BodyBudget
from openai_cpu_server.http.context import RequestHistory, context_of
from openai_cpu_server.http.errors import ErrorShape
from openai_cpu_server.http.gate import AuthMiddleware
from openai_cpu_server.http.keys import ADMIN, OPEN, WORK, KeyRing
from openai_cpu_server.http.limits import Meter, RateLimits
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.routes import WEBSOCKET, ApiRoute, ApiRouter, served_routes
from openai_cpu_server.observe.telemetry import Telemetry
from tests.api.serving import client

pytestmark = pytest.mark.anyio


class Greeting:
    """Example of a router's handlers, which share a word as their state."""

    def __init__(self, word: str) -> None:
        self._word = word

    @ApiRoute("GET", "/hello/{name:path}", OPEN, "Words", aliases=("/hi/{name}",))
    async def greet(self, request: Request) -> Response:
        return PlainTextResponse(f"{self._word} {request.path_params['name']}")

    @ApiRoute("POST", "/echo", WORK, "Words", batched=lambda at: at.row, aliases=("/echoes",))
    async def echo(self, request: Request) -> Response:
        """Count the
        bytes.

        They are not returned.
        """
        return PlainTextResponse(f"{context_of(request.scope).request_log.route} {len(await request.body())}")

    @ApiRoute("DELETE", "/echo", ADMIN, "Words")
    async def forget(self, request: Request) -> Response:
        """Forget."""
        return PlainTextResponse("forgotten")

    async def row(self, *_: object) -> bytes:
        return self._word.encode()


GREETINGS = ApiRouter[str](Greeting, is_served=bool, is_hidden=lambda word: word == "psst")


def greeting(
    word: str, options: ApiOptions | None = None, router: ApiRouter[str] = GREETINGS
) -> httpx.AsyncClient:
    options = options or ApiOptions()
    keys, limits = KeyRing("secret"), RateLimits(Meter.open(None))
    guard = AuthMiddleware(
        keys=keys, limits=limits, bodies=BodyBudget(options.max_bodies_bytes), options=options
    )
    history = RequestHistory(Telemetry.new(model="m"))
    served = list(served_routes([router], word))
    return client(application(served, guard, history=history, options=options, headers=()))


KEY = {"authorization": "Bearer secret"}


async def test_a_row_is_a_route_that_needs_its_key() -> None:
    async with greeting("hello") as http:
        assert (await http.get("/hello/a/b")).text == "hello a/b"
        assert (await http.post("/echo", content=b"abc")).status_code == 401
        assert (await http.post("/echo", content=b"abc", headers=KEY)).text == "/echo 3"
        wrong = await http.patch("/echo", headers=KEY)
    message = "Method Not Allowed: PATCH /echo"
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (405, message)


async def test_the_document_is_made_of_the_rows_that_are_served() -> None:
    async with greeting("hello") as http:
        paths = (await http.get("/openapi.json")).json()["paths"]
    assert list(paths) == ["/hello/{name}", "/hi/{name}", "/echo", "/echoes", "/openapi.json"]
    assert paths["/echo"]["post"]["summary"] == "Count the bytes."
    assert paths["/echo"]["delete"]["x-required-scope"] == "admin"


async def test_errors_on_the_paths_of_a_router_have_its_shape() -> None:
    sorry = PlainTextResponse("sorry", 404)
    shape = ErrorShape(("/hello",), lambda error, request_id: sorry, ("request-id",))
    async with greeting("hello", router=replace(GREETINGS, shape=shape)) as http:
        below, beside = await http.get("/hello", headers=KEY), await http.get("/hello-you", headers=KEY)
        good, unknown = await http.get("/hello/you"), await http.post("/hello/you", headers=KEY)
    assert (below.text, unknown.text) == ("sorry", "sorry")
    assert beside.json()["error"]["code"] == "unknown_url"
    assert ("request-id" in good.headers, "x-request-id" in good.headers) == (True, False)
    assert ("request-id" in beside.headers, "x-request-id" in beside.headers) == (False, True)


@pytest.mark.parametrize(("word", "status", "text"), [("", 404, None), ("psst", 200, "psst you")])
async def test_a_router_without_state_is_not_served_and_a_hidden_one_is_undocumented(
    word: str, status: int, text: str | None
) -> None:
    async with greeting(word) as http:
        assert list((await http.get("/openapi.json")).json()["paths"]) == ["/openapi.json"]
        answer = await http.get("/hello/you", headers=KEY)
    assert answer.status_code == status
    assert text in (None, answer.text)


async def test_a_row_names_the_handler_of_batch_rows() -> None:
    handlers = {route.row.name: route.batch_handler for route in served_routes([GREETINGS], "hello")}
    assert [name for name, handler in handlers.items() if handler is not None] == ["POST /echo"]
    handler = handlers["POST /echo"]
    assert handler is not None
    assert await handler(b"", None) == b"hello"  # type: ignore[arg-type, unused-ignore]


def test_an_alias_is_a_row_without_batches() -> None:
    row, alias = GREETINGS.rows[:2]
    assert alias == replace(row, path="/hi/{name}")
    assert (row.name, alias.name) == ("GET /hello/{name}", "GET /hi/{name}")
    echo, alias = GREETINGS.rows[2:4]
    assert alias == replace(echo, path="/echoes", batched=None)


def test_every_row_is_named_once_and_described() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)
    assert all(row.summary and row.tag for row in ROWS)
    assert {row.method for row in ROWS} == {"GET", "POST", "DELETE", WEBSOCKET}
