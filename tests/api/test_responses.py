"""`/v1/responses` over HTTP, apart from the cases in `exchanges/responses.txt`."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import anyio
import httpx
import msgspec
import pytest
import sqlalchemy
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.api.responses.schema import SentMessageItem
from openai_cpu_server.api.responses.to_params import unsupported_names
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.asgi import Exchange, scope_of
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, served
from tests.api.talking import error_of, events
from tests.fakes import FAKE_INFO
from tests.jobs.test_stores import stores_at
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

Json = dict[str, Any]


@asynccontextmanager
async def application(
    engine: FakeEngine, where: str = "sqlite://", job_options: JobOptions | None = None
) -> AsyncIterator[Starlette]:
    jobs = Jobs(open_database(where), job_options or JobOptions(model="fake"))
    api = create_api(served(engine), OPTIONS, jobs=jobs)
    yield api.app
    await api.settle()
    await jobs.close()


@asynccontextmanager
async def serving(engine: FakeEngine, *args: Any, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with application(engine, *args, **options) as app, client(app) as http:
        yield http


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with serving(FakeEngine(text="Hello you")) as http_client:
        yield http_client


async def post(http: httpx.AsyncClient, **fields: object) -> httpx.Response:
    return await http.post("/v1/responses", json={"input": "hi", "max_output_tokens": 20, **fields})


async def create(http: httpx.AsyncClient, **fields: object) -> Json:
    answer = await post(http, **fields)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def text_of(response: Json) -> str:
    return str(response["output"][0]["content"][0]["text"])


def test_a_text_is_not_read_character_by_character() -> None:
    """20 texts of 1.5 MB took minutes."""

    class Text(str):
        __slots__ = ()

        def __iter__(self) -> Iterator[str]:
            raise AssertionError("a text has no parts")

    message = SentMessageItem.model_construct(role="user", content=Text("hello"))
    assert unsupported_names([message]) == []


# -- truncation --------------------------------------------------------------------------------------------


async def test_a_long_conversation_is_shortened_where_that_is_allowed() -> None:
    info = msgspec.structs.replace(FAKE_INFO, context_trained=400)
    async with serving(FakeEngine(info, text="Hello")) as http:
        turns = [{"role": role, "content": "x" * 30} for _ in range(10) for role in ("user", "assistant")]
        long = [{"role": "system", "content": "Be kind."}, *turns, {"role": "user", "content": "now"}]
        refused = await post(http, input=long)
        assert error_of(refused)["code"] == "context_length_exceeded"
        assert error_of(refused)["param"] == "input"
        response = await create(http, input=long, truncation="auto")
        assert 200 < response["usage"]["input_tokens"] <= 380
        image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
        unseen = await post(http, input=[*long, image], truncation="auto")
        named = f"input[{len(long)}].content[0] (input_image)"
        assert unseen.headers["x-ignored-parameters"] == named, "the index is the one in the client's body"
        too_long = await post(http, input="x" * 500, truncation="auto")
        assert error_of(too_long)["code"] == "context_length_exceeded"


# -- in the background -------------------------------------------------------------------------------------


async def create_in_background(http: httpx.AsyncClient, **fields: object) -> Json:
    return await create(http, background=True, **fields)


async def status_of(http: httpx.AsyncClient, response: Json) -> str:
    return str((await http.get(f"/v1/responses/{response['id']}")).json()["status"])


async def wait_for_end(http: httpx.AsyncClient, response: Json) -> Json:
    """Return the response after its stream has ended."""
    path = f"/v1/responses/{response['id']}"
    with anyio.fail_after(DEADLINE_S):
        await http.get(f"{path}?stream=true")
    return dict((await http.get(path)).json())


async def test_a_background_response_outlives_its_request() -> None:
    engine = FakeEngine(text="Hello you", is_held=True)
    async with serving(engine) as http:
        response = await create_in_background(http)
        assert response["status"] == "queued"
        assert await status_of(http, response) in ("queued", "in_progress")
        refused = await post(http, previous_response_id=response["id"])
        assert error_of(refused)["param"] == "previous_response_id"
        engine.goes_on.set()
        assert text_of(await wait_for_end(http, response)) == "Hello you"
        assert (await create(http, previous_response_id=response["id"]))["status"] == "completed"


async def test_a_background_response_is_cancelled() -> None:
    engine = FakeEngine(text="Hello you", is_held=True)
    async with serving(engine) as http:
        response = await create_in_background(http)
        path = f"/v1/responses/{response['id']}"
        assert (await http.post(path + "/cancel")).json()["status"] == "cancelled"
        assert (await http.post(path + "/cancel")).json()["status"] == "cancelled"
        assert await status_of(http, response) == "cancelled"
        assert engine.requests() == []
        last: Any = events(await http.get(path + "?stream=true"))[-1]
        assert (last["type"], last["response"]["status"]) == ("response.failed", "cancelled")


async def test_a_client_that_leaves_does_not_end_a_background_response() -> None:
    engine = FakeEngine(text="Hello you", is_held=True)
    async with application(engine) as app, client(app) as http:
        response = await create_in_background(http)
        path = f"/v1/responses/{response['id']}"
        scope = scope_of(path, None, method="GET", query_string=b"stream=true")
        stream = Exchange()
        request = asyncio.create_task(app(scope, stream.receive, stream.send))
        assert b"response.created" in (await stream.chunk() or b"")
        stream.disconnect()
        await request
        engine.goes_on.set()
        assert (await wait_for_end(http, response))["status"] == "completed"


async def test_a_response_whose_client_leaves_while_it_is_stored_still_completes(tmp_path: Path) -> None:
    path, has_begun = tmp_path / "jobs.db", threading.Event()
    engine = FakeEngine(text="Hello you", is_held=True)

    def note(*args: Any) -> None:
        if args[2] == "BEGIN IMMEDIATE":
            has_begun.set()

    async with serving(engine, str(path)) as http:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")  # the server cannot write now
            sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", note)
            request = asyncio.create_task(post(http, background=True))
            await eventually(has_begun.is_set)
            sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", note)
            request.cancel()
            with pytest.raises(asyncio.CancelledError):
                await request
            other.execute("ROLLBACK")
            engine.goes_on.set()
            statuses = "SELECT status FROM responses"
            await eventually(lambda: other.execute(statuses).fetchall() == [("completed",)])


async def test_a_deleted_response_ends() -> None:
    engine = FakeEngine(text="Hello you", is_held=True)
    async with serving(engine) as http:
        response = await create_in_background(http)
        assert (await http.delete(f"/v1/responses/{response['id']}")).status_code == 200
        await eventually(lambda: engine.requests() == [])
        assert (await http.get(f"/v1/responses/{response['id']}")).status_code == 404


async def test_a_response_of_a_dead_server_has_failed(tmp_path: Path) -> None:
    where = str(tmp_path / "jobs.db")
    async with serving(FakeEngine(text="Hello"), where) as http:
        response = await wait_for_end(http, await create_in_background(http))
    async with stores_at(where) as stores:
        record = await stores.responses.get("", response["id"])
        running = {**json.loads(record.response), "status": "in_progress", "id": "resp_left"}
        abandoned = msgspec.structs.replace(
            record,
            id="resp_left",
            status=type(record.status).IN_PROGRESS,
            response=json.dumps(running).encode(),
            lease_holder="elsewhere 1 0.00 x",
            lease_until=1.0,
        )
        await stores.responses.add(abandoned, [])
    async with serving(FakeEngine(text="Hello"), where) as http:
        shown = (await http.get("/v1/responses/resp_left")).json()
        assert (shown["status"], shown["error"]["code"]) == ("failed", "server_error")
        (last,) = events(await http.get("/v1/responses/resp_left?stream=true&starting_after=7"))
        assert (last["type"], last["sequence_number"]) == ("response.failed", 8)
        assert (await http.post("/v1/responses/resp_left/cancel")).status_code == 400


async def test_a_server_that_ends_leaves_a_failed_response(tmp_path: Path) -> None:
    where = str(tmp_path / "jobs.db")
    engine = FakeEngine(text="Hello", is_held=True)
    async with serving(engine, where) as http:
        response = await create_in_background(http)
        await eventually(lambda: engine.requests() != [])
        engine.end()
    async with serving(FakeEngine(text="Hello"), where) as http:
        failed = (await http.get(f"/v1/responses/{response['id']}")).json()
        assert (failed["status"], failed["error"]["message"]) == ("failed", "The server is shutting down.")


async def test_conversations_expire() -> None:
    async with serving(FakeEngine(), job_options=JobOptions(model="fake", response_lifetime_s=0)) as http:
        conversation_id = (await http.post("/v1/conversations", json={})).json()["id"]
        assert (await http.get(f"/v1/conversations/{conversation_id}")).status_code == 404
