"""`/v1/chat/completions` as a WebSocket, apart from `websockets/chat.txt`: concurrent requests, ends."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.supervisor import Supervisor
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import OPTIONS, api, client, locked_api, new_engine, num_live, running
from tests.api.sockets import CHAT_BODY, Json, Socket, content, opened
from tests.api.talking import chat, events
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LONG = {**CHAT_BODY, "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
async def held_engine(engine: FakeEngine) -> FakeEngine:
    """Engine that generates nothing until the test releases it."""
    engine.goes_on.clear()
    return engine


@pytest.fixture
async def socket(app: Starlette) -> AsyncIterator[Socket]:
    async with opened(app) as client_socket:
        yield client_socket


def without(event: Json, *names: str) -> Json:
    return {name: value for name, value in event.items() if name not in names}


async def test_the_chunks_are_those_of_the_event_stream(socket: Socket, http: httpx.AsyncClient) -> None:
    """Only ids and times differ, and each message has the id of its request. Usage has a chunk too."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    stream = events(await chat(http, **options))
    socket.ask("mine", **options)
    *chunks, last = await socket.answer("mine")
    unlike = ("id", "created", "timings")
    alike = [without(chunk, "request_id", *unlike) for chunk in chunks]
    assert alike == [without(event, *unlike) for event in stream]
    assert {chunk["id"] for chunk in chunks} != {stream[0]["id"]}
    assert last["done"] is True
    assert last["headers"]["x-request-id"].startswith("req_")
    socket.ask("mine", stream=None)  # the name is free again
    assert (await socket.answer("mine"))[0]["object"] == "chat.completion.chunk"
    socket.ask("mine", stream=False)
    answer, last = await socket.answer("mine")
    assert (answer["object"], last["done"]) == ("chat.completion", True)
    assert answer["choices"] == (await chat(http)).json()["choices"]


async def test_a_binary_message_is_json_too(socket: Socket) -> None:
    data = json.dumps({**CHAT_BODY, "request_id": "b"}).encode()
    socket.to_app.put_nowait({"type": "websocket.receive", "bytes": data})
    assert (await socket.answer("b"))[-1]["done"]


async def test_many_requests_at_once_each_get_their_own(socket: Socket, http: httpx.AsyncClient) -> None:
    prompts = {name: [{"role": "user", "content": name * 3}] for name in ("r0", "r1", "r2", "r3")}
    for name, messages in prompts.items():
        socket.ask(name, messages=messages)
    for name, messages in prompts.items():
        answer = await socket.answer(name)
        alone = (await chat(http, messages=messages)).json()
        assert content(answer) == alone["choices"][0]["message"]["content"]
        assert len({message["id"] for message in answer[:-1]}) == 1


async def test_a_name_in_use_is_refused(held_engine: FakeEngine, socket: Socket) -> None:
    socket.ask("a")
    socket.ask("a")
    refusal = await socket.next()
    assert (refusal["request_id"], refusal["status"], refusal["error"]["param"]) == (None, 400, "request_id")
    held_engine.goes_on.set()
    assert (await socket.answer("a"))[-1]["done"]


@pytest.mark.parametrize("name", [lambda chunk: "a", lambda chunk: chunk["id"]])
async def test_cancelling_a_request(engine: FakeEngine, socket: Socket, name: Callable[[Json], str]) -> None:
    socket.send({**LONG, "request_id": "a"})
    chunk = await socket.next()
    engine.goes_on.clear()
    socket.ask("b")
    socket.send({"cancel": name(chunk)})
    end = (await socket.answer("a"))[-1]
    assert (end["status"], end["error"]["code"]) == (499, "request_cancelled")
    await eventually(lambda: num_live(engine) == 1)
    engine.goes_on.set()
    assert (await socket.answer("b"))[-1]["done"]


async def test_a_waiting_stream_gets_its_place_before_its_first_chunk() -> None:
    """An answer that is not streamed stays one message."""
    async with running(new_engine("step_s=0.05", max_seqs=1)) as engine, opened(api(engine)) as socket:
        socket.send({**LONG, "request_id": "first"})
        assert (await socket.next())["object"] == "chat.completion.chunk"
        async with opened(api(engine)) as other:
            other.ask("whole", stream=False)
            await eventually(lambda: num_live(engine) == 2)
            other.ask("a", ignore_eos=True)
            places = [await other.next()]
            socket.send({"cancel": "first"})
            messages = await other.until_end("a", "whole")
    places += [message for message in messages["a"] if message.get("object") == "queue"]
    assert places[0]["position"] == 2
    for message in places:
        assert message.keys() == {"request_id", "id", "object", "position", "first_token_ms"}
        assert message["first_token_ms"] > 0
    *chunks, last = messages["a"][len(places) - 1 :]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {message["id"] for message in places} == {chunk["id"] for chunk in chunks}
    assert last["done"]
    assert [message.get("object") for message in messages["whole"]] == ["chat.completion", None]


async def test_a_request_is_cancelled_before_it_is_submitted(held_engine: FakeEngine, socket: Socket) -> None:
    """The body is long enough to be read in a thread."""
    socket.ask("a", metadata={f"k{i}": "x" * 500 for i in range(16)})
    socket.send({"cancel": "a"})
    assert (await socket.answer("a"))[-1]["error"]["code"] == "request_cancelled"
    await eventually(lambda: num_live(held_engine) == 0)


async def test_a_closed_socket_ends_all_its_requests(held_engine: FakeEngine, app: Starlette) -> None:
    async with opened(app) as socket:
        for index in range(5):
            socket.ask(str(index))
        await eventually(lambda: num_live(held_engine) == 5)
    assert num_live(held_engine) == 0


@pytest.mark.usefixtures("held_engine")
async def test_a_request_ends_at_its_timeout(socket: Socket) -> None:
    socket.ask("a", timeout=0.05)
    end = (await socket.answer("a"))[-1]
    assert (end["status"], end["error"]["code"]) == (408, "request_timeout")
    assert end["headers"]["x-should-retry"] == "false"


async def test_requests_at_once_are_limited(held_engine: FakeEngine) -> None:
    async with opened(api(held_engine, msgspec.structs.replace(OPTIONS, max_socket_requests=2))) as socket:
        for name in ("a", "b", "c"):
            socket.ask(name)
        message = await socket.next()
        assert (message["request_id"], message["status"]) == (None, 429)
        assert message["error"]["code"] == "rate_limit_exceeded"
        assert int(message["headers"]["retry-after-ms"]) >= 1000


async def test_a_short_answer_is_buffered_for_a_slow_reader(process: EngineClient) -> None:
    async with opened(api(process)) as socket:
        socket.may_send.clear()
        num_before = process.totals.requests
        socket.ask("a", max_tokens=100, ignore_eos=True)
        await eventually(lambda: process.totals.requests > num_before and num_live(process) == 0)
        socket.may_send.set()
        assert (await socket.answer("a"))[-1]["done"]


async def test_the_buffer_for_a_slow_reader_is_limited() -> None:
    command = [sys.executable, "-m", "tests.fake_engine", "step_s=0.005"]
    options = EngineOptions(model_path="", kv_tokens=4096)
    narrow = EngineClient(Supervisor(command, options), max_queue=9, max_held_bytes=20_000)
    async with running(narrow), opened(api(narrow)) as socket:
        socket.may_send.clear()
        socket.send({**LONG, "request_id": "a", "logprobs": True, "top_logprobs": 20})
        await eventually(lambda: narrow.totals.requests and num_live(narrow) == 0)
        socket.may_send.set()
        assert (await socket.answer("a"))[-1]["error"]["code"] == "reader_too_slow"


@pytest.mark.parametrize("header", ["batch", "interactive"])
async def test_the_handshake_has_a_priority(held_engine: FakeEngine, app: Starlette, header: str) -> None:
    async with opened(app, headers={"X-Priority": header}) as socket:
        socket.ask("default")
        socket.ask("named", priority="batch")
        await eventually(lambda: num_live(held_engine) == 2)
        assert sorted(r.priority.label for r in held_engine.requests()) == sorted([header, "batch"])


async def test_a_header_of_the_handshake_turns_on_progress_for_all_requests(process: EngineClient) -> None:
    async with opened(api(process), headers={"X-Progress": "true"}) as socket:
        socket.ask("a", messages=[{"role": "user", "content": "a" * 600}])
        messages = await socket.answer("a")
        progress = [message["prompt_progress"] for message in messages if "prompt_progress" in message]
        assert progress[-1]["processed"] == progress[-1]["total"] >= 600


# -- keys -------------------------------------------------------------------------------------------------


async def test_each_request_counts_against_its_keys_limits(engine: FakeEngine, tmp_path: Path) -> None:
    app = locked_api(engine, key_ring(tmp_path, s3cret="requests_per_minute = 2\ntokens_per_minute = 1000"))
    async with opened(app, headers=of("s3cret")) as socket:
        socket.ask("a", stream=False, ignore_eos=True)
        answer, first = await socket.answer("a")
        socket.ask("b")
        second = (await socket.answer("b"))[-1]
        remaining = [end["headers"]["x-ratelimit-remaining-requests"] for end in (first, second)]
        assert remaining == ["1", "0"]
        used = answer["usage"]["total_tokens"]
        assert int(second["headers"]["x-ratelimit-remaining-tokens"]) <= 1000 - used
        socket.ask("c")
        (end,) = await socket.answer("c")
        assert (end["status"], end["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(end["headers"]["retry-after-ms"]) >= 1000
    async with client(app) as http:
        again = await http.post("/v1/chat/completions", json=CHAT_BODY, headers=of("s3cret"))
        assert again.status_code == 429


async def test_each_request_is_checked_against_the_current_key(
    held_engine: FakeEngine, tmp_path: Path
) -> None:
    """Running requests continue."""
    ring = key_ring(tmp_path, s3cret="")
    async with opened(locked_api(held_engine, ring), headers=of("s3cret")) as socket:

        async def refusal(name: str, **fields: object) -> object:
            socket.ask(name, **fields)
            (refused,) = await socket.answer(name)
            return refused["error"]["code"]

        socket.ask("before")
        await eventually(lambda: num_live(held_engine) == 1)
        key_ring(tmp_path, s3cret='priority = "batch"\nmodels = ["team/fake"]\nrequests_per_minute = 2')
        ring.reload()
        assert await refusal("hidden", model="fake") == "model_not_found"
        socket.ask("lowered")
        await eventually(lambda: num_live(held_engine) == 2)
        assert [live.priority.label for live in held_engine.requests()] == ["interactive", "batch"]
        assert await refusal("limited") == "rate_limit_exceeded"
        key_ring(tmp_path, s3cret='scopes = ["metrics"]')
        ring.reload()
        assert await refusal("scopeless") == "missing_scope"
        key_ring(tmp_path, other="")
        ring.reload()
        assert await refusal("gone") == "invalid_api_key"
        held_engine.goes_on.set()
        ends = await socket.until_end("before", "lowered")
        assert all(messages[-1]["done"] for messages in ends.values())
