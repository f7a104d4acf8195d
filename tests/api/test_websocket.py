"""`GET /v1/chat/completions` as a WebSocket: exact messages, several requests at once, and their ends."""

from __future__ import annotations

import json
import os
import signal
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
from tests.api.sockets import ASK, Json, Socket, connected, content, is_last, opened
from tests.api.talking import chat, events
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

LONG = {**ASK, "max_tokens": 2000, "ignore_eos": True}


@pytest.fixture
async def socket(app: Starlette) -> AsyncIterator[Socket]:
    async with opened(app) as one:
        yield one


def without(event: Json, *names: str) -> Json:
    return {name: value for name, value in event.items() if name not in names}


async def test_the_chunks_are_those_of_the_event_stream(socket: Socket, http: httpx.AsyncClient) -> None:
    """Also the one of usage; only ids and times differ, and each says whose it is."""
    options = {"stream": True, "stream_options": {"include_usage": True}, "logprobs": True}
    stream = events(await chat(http, **options))
    socket.ask("mine", **options)
    *chunks, last = (await socket.until_end("mine"))["mine"]
    unlike = ("id", "created", "timings")
    alike = [without(chunk, "request_id", *unlike) for chunk in chunks]
    assert alike == [without(event, *unlike) for event in stream]
    assert {chunk["id"] for chunk in chunks} != {stream[0]["id"]}
    assert last["done"] is True
    assert last["headers"]["x-request-id"].startswith("req_")


async def test_without_a_word_about_it_the_answer_is_streamed(socket: Socket) -> None:
    for fields in ({}, {"stream": None}):
        socket.ask("a", **fields)
        messages = (await socket.until_end("a"))["a"]
        assert messages[0]["object"] == "chat.completion.chunk"
        assert messages[-2]["choices"][0]["finish_reason"] in ("stop", "length")


async def test_a_whole_answer_is_one_message(socket: Socket, http: httpx.AsyncClient) -> None:
    whole = (await chat(http)).json()
    socket.ask("a", stream=False)
    answer, last = (await socket.until_end("a"))["a"]
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == whole["choices"]
    assert answer["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert last["done"]


async def test_a_binary_message_is_json_too(socket: Socket) -> None:
    data = json.dumps({**ASK, "request_id": "b"}).encode()
    socket.to_app.put_nowait({"type": "websocket.receive", "bytes": data})
    assert (await socket.until_end("b"))["b"][-1]["done"]


async def test_many_requests_at_once_each_get_their_own(socket: Socket, http: httpx.AsyncClient) -> None:
    names = [f"r{i}" for i in range(8)]
    prompts = {name: [{"role": "user", "content": name * 3}] for name in names}
    for name in names:
        socket.ask(name, messages=prompts[name])
    answers = await socket.until_end(*names)
    for name in names:
        alone = (await chat(http, messages=prompts[name])).json()
        assert content(answers[name]) == alone["choices"][0]["message"]["content"]
        assert len({message["id"] for message in answers[name][:-1]}) == 1


async def test_unnamed_requests_are_named_by_the_server(socket: Socket) -> None:
    socket.ask()
    first = await socket.next()
    assert first["request_id"].startswith("req_")
    assert (await socket.until_end(first["request_id"]))[first["request_id"]][-1]["done"]


BAD: list[tuple[object, str | None, str | None]] = [
    ("{", None, "invalid_json"),
    ("[]", None, "invalid_json"),
    ("null", None, "invalid_json"),
    ("", None, "invalid_json"),
    ("[" * 100_000, None, "invalid_json"),
    ({"request_id": "a"}, "messages", "missing_required_parameter"),
    ({**ASK, "request_id": "a", "temperature": 9}, "temperature", "decimal_above_max_value"),
    ({**ASK, "request_id": "a", "model": "no"}, "model", "model_not_found"),
    ({**ASK, "request_id": 5}, "request_id", "invalid_value"),
    ({**ASK, "request_id": ""}, "request_id", "invalid_value"),
    ({**ASK, "request_id": "x" * 65}, "request_id", "invalid_value"),
    ('{"request_id": "\\ud800"}', None, "invalid_json"),
    ({"cancel": "nothing"}, "id", "request_not_found"),
    ({"cancel": None}, "cancel", "invalid_value"),
    ({"cancel": 3}, "cancel", "invalid_value"),
    ({**ASK, "cancel": "a"}, "cancel", "invalid_value"),
]


@pytest.mark.parametrize(("message", "param", "code"), BAD)
async def test_a_bad_message_gets_an_error_and_the_socket_lives(
    socket: Socket, message: object, param: str | None, code: str
) -> None:
    socket.send(message)
    answer = await socket.next()
    assert answer["error"].keys() == {"message", "type", "param", "code"}
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, code)
    assert answer["status"] in (400, 404)
    if isinstance(message, dict) and message.get("request_id") == "a" and "cancel" not in message:
        assert answer["request_id"] == "a"
    socket.ask("good")
    assert (await socket.until_end("good"))["good"][-1]["done"]


async def test_a_name_is_free_again_behind_the_last_message(socket: Socket) -> None:
    for _ in range(5):
        socket.ask("same")
        assert (await socket.until_end("same"))["same"][-1]["done"]


async def test_a_name_that_is_taken_is_refused_without_touching_its_holder(slow_engine: EngineClient) -> None:
    async with opened(api(slow_engine)) as socket:
        socket.send({**LONG, "max_tokens": 20, "request_id": "a"})
        await socket.next()
        socket.ask("a")
        found = []
        while not is_last(message := await socket.next()) or message["request_id"] is None:
            found.append(message)
        (refusal,) = [m for m in found if m["request_id"] is None]
        assert (refusal["status"], refusal["error"]["param"]) == (400, "request_id")
        assert message["done"]


@pytest.mark.parametrize("name", [lambda chunk: "a", lambda chunk: chunk["id"]])
async def test_one_is_cancelled_and_the_others_go_on(
    slow_engine: EngineClient, name: Callable[[Json], str]
) -> None:
    async with opened(api(slow_engine)) as socket:
        socket.send({**LONG, "request_id": "a"})
        chunk = await socket.next()
        socket.send({**LONG, "max_tokens": 20, "request_id": "b"})
        socket.send({"cancel": name(chunk)})
        ends = await socket.until_end("a", "b")
        assert (ends["a"][-1]["status"], ends["a"][-1]["error"]["code"]) == (499, "request_cancelled")
        assert ends["b"][-1]["done"]
        await eventually(lambda: num_live(slow_engine) == 0)


async def test_who_waits_hears_of_its_place_before_its_first_chunk() -> None:
    """Only if its answer is streamed: a whole one is one message."""
    async with running(new_engine("step_s=0.01", max_seqs=1)) as engine, opened(api(engine)) as socket:
        socket.send({**LONG, "request_id": "first"})
        assert (await socket.next())["object"] == "chat.completion.chunk"
        async with opened(api(engine)) as other:
            other.ask("whole", stream=False)
            await eventually(lambda: num_live(engine) == 2)
            other.ask("a", ignore_eos=True)
            heard = [await other.next()]
            socket.send({"cancel": "first"})
            messages = await other.until_end("a", "whole")
    heard += [message for message in messages["a"] if message.get("object") == "queue"]
    assert heard[0]["position"] == 2
    for message in heard:
        assert message.keys() == {"request_id", "id", "object", "position", "first_token_ms"}
        assert message["first_token_ms"] > 0
    *chunks, last = messages["a"][len(heard) - 1 :]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert {message["id"] for message in heard} == {chunk["id"] for chunk in chunks}
    assert last["done"]
    assert [message.get("object") for message in messages["whole"]] == ["chat.completion", None]


async def test_one_can_be_cancelled_before_it_is_submitted(slow_engine: EngineClient) -> None:
    """Its body is long enough to be read in a thread."""
    async with opened(api(slow_engine)) as socket:
        socket.send({**LONG, "request_id": "a", "metadata": {f"k{i}": "x" * 500 for i in range(16)}})
        socket.send({"cancel": "a"})
        end = (await socket.until_end("a"))["a"][-1]
        assert end["error"]["code"] == "request_cancelled"
        await eventually(lambda: num_live(slow_engine) == 0)


async def test_closing_ends_all_of_its_requests(slow_engine: EngineClient) -> None:
    async with opened(api(slow_engine)) as socket:
        for index in range(5):
            socket.send({**LONG, "request_id": str(index)})
        await eventually(lambda: num_live(slow_engine) == 5)
    assert num_live(slow_engine) == 0


async def test_a_deadline_is_kept(slow_engine: EngineClient) -> None:
    async with opened(api(slow_engine)) as socket:
        socket.send({**LONG, "request_id": "a", "timeout": 0.2})
        end = (await socket.until_end("a"))["a"][-1]
        assert (end["status"], end["error"]["code"]) == (408, "request_timeout")
        assert end["headers"]["x-should-retry"] == "false"


async def test_requests_at_once_are_limited(slow_engine: EngineClient) -> None:
    options = msgspec.structs.replace(OPTIONS, max_socket_requests=2)
    async with opened(api(slow_engine, options)) as socket:
        for name in ("a", "b", "c"):
            socket.send({**LONG, "request_id": name})
        while (message := await socket.next())["request_id"] is not None:
            assert not is_last(message)
        assert (message["status"], message["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(message["headers"]["retry-after-ms"]) >= 1000


async def test_a_message_too_large_is_refused(engine: FakeEngine) -> None:
    async with opened(api(engine, msgspec.structs.replace(OPTIONS, max_body_bytes=500))) as socket:
        socket.ask("a", user="x" * 500)
        answer = await socket.next()
        assert (answer["status"], answer["error"]["code"]) == (413, "request_too_large")
        socket.ask("b")
        assert (await socket.until_end("b"))["b"][-1]["done"]


async def test_what_a_lenient_server_ignores_is_said_at_the_end(engine: FakeEngine) -> None:
    async with opened(api(engine, msgspec.structs.replace(OPTIONS, lenient=True))) as socket:
        socket.ask("a", colour="red")
        end = (await socket.until_end("a"))["a"][-1]
        assert end["headers"]["x-ignored-parameters"] == "colour"


async def test_for_who_does_not_read_a_little_is_held(process: EngineClient) -> None:
    async with opened(api(process)) as socket:
        socket.may_send.clear()
        num_before = process.totals.requests
        socket.ask("a", max_tokens=100, ignore_eos=True)
        await eventually(lambda: process.totals.requests > num_before)
        await eventually(lambda: num_live(process) == 0)
        socket.may_send.set()
        assert (await socket.until_end("a"))["a"][-1]["done"]


async def test_for_who_does_not_read_no_more_than_that_is_held() -> None:
    command = [sys.executable, "-m", "tests.fake_engine", "step_s=0.005"]
    options = EngineOptions(model_path="", kv_tokens=4096)
    narrow = EngineClient(Supervisor(command, options), max_queue=9, max_held_bytes=20_000)
    async with running(narrow), opened(api(narrow)) as socket:
        socket.may_send.clear()
        socket.send({**LONG, "request_id": "a", "logprobs": True, "top_logprobs": 20})
        await eventually(lambda: bool(narrow.requests()))
        await eventually(lambda: num_live(narrow) == 0)
        socket.may_send.set()
        assert (await socket.until_end("a"))["a"][-1]["error"]["code"] == "reader_too_slow"


@pytest.mark.parametrize(("header", "status"), [("batch", 0), ("interactive", 0), ("high", 400)])
async def test_the_handshake_says_the_priority_of_requests_that_name_none(
    slow_engine: EngineClient, header: str, status: int
) -> None:
    async with connected(api(slow_engine), headers={"X-Priority": header}) as socket:
        if status:
            code, error = await socket.refused()
            assert (code, error["param"]) == (status, "X-Priority")
            return
        await socket.accepted()
        socket.send({**LONG, "request_id": "default"})
        socket.send({**LONG, "request_id": "named", "priority": "batch"})
        await eventually(lambda: num_live(slow_engine) == 2)
        assert sorted(r.priority.label for r in slow_engine.requests()) == sorted([header, "batch"])


async def test_the_handshake_asks_for_the_progress_of_all_its_requests(process: EngineClient) -> None:
    async with connected(api(process), headers={"X-Progress": "true"}) as socket:
        await socket.accepted()
        socket.ask("a", messages=[{"role": "user", "content": "a" * 600}])
        told = (await socket.until_end("a"))["a"]
        progress = [one["prompt_progress"] for one in told if "prompt_progress" in one]
        assert progress[-1]["processed"] == progress[-1]["total"] >= 600
    async with connected(api(process), headers={"X-Progress": "perhaps"}) as socket:
        code, error = await socket.refused()
        assert (code, error["param"]) == (400, "X-Progress")


# -- who may ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "subprotocols", "chosen"),
    [
        ({"authorization": "Bearer s3cret"}, (), None),
        ({"x-api-key": "s3cret"}, ("other", "openai-chat-completions"), "openai-chat-completions"),
        (
            {},
            ("openai-chat-completions", "openai-insecure-api-key.s3cret"),
            "openai-chat-completions",
        ),
        ({}, ("openai-insecure-api-key.s3cret",), None),
    ],
)
async def test_the_key_may_come_as_a_subprotocol_and_is_never_sent_back(
    engine: FakeEngine,
    tmp_path: Path,
    headers: dict[str, str],
    subprotocols: tuple[str, ...],
    chosen: str | None,
) -> None:
    app = locked_api(engine, key_ring(tmp_path, s3cret=""))
    async with connected(app, headers=headers, subprotocols=subprotocols) as socket:
        accepted = await socket.accepted()
        assert accepted["subprotocol"] == chosen
        assert "s3cret" not in str(accepted)
        socket.ask("a")
        assert (await socket.until_end("a"))["a"][-1]["done"]


@pytest.mark.parametrize(
    "subprotocols", [(), ("openai-insecure-api-key.wrong",), ("openai-insecure-api-key.",)]
)
async def test_without_the_key_no_socket_opens(
    engine: FakeEngine, tmp_path: Path, subprotocols: tuple[str, ...]
) -> None:
    async with connected(
        locked_api(engine, key_ring(tmp_path, s3cret="")), subprotocols=subprotocols
    ) as socket:
        status, error = await socket.refused()
        assert (status, error["code"]) == (401, "invalid_api_key")


async def test_each_request_counts_against_its_keys_limits(engine: FakeEngine, tmp_path: Path) -> None:
    app = locked_api(engine, key_ring(tmp_path, s3cret="requests_per_minute = 2"))
    async with opened(app, headers=of("s3cret")) as socket:
        for name, left in (("a", "1"), ("b", "0")):
            socket.ask(name)
            end = (await socket.until_end(name))[name][-1]
            assert end["headers"]["x-ratelimit-remaining-requests"] == left
        socket.ask("c")
        end = (await socket.until_end("c"))["c"][-1]
        assert (end["status"], end["error"]["code"]) == (429, "rate_limit_exceeded")
        assert int(end["headers"]["retry-after-ms"]) >= 1000
    async with client(app) as http:
        again = await http.post("/v1/chat/completions", json=ASK, headers=of("s3cret"))
        assert again.status_code == 429


async def refusal(socket: Socket) -> tuple[str, str]:
    """The next request that is refused, and why; what others stream until then is passed over."""
    while "error" not in (message := await socket.next()):
        assert not is_last(message)
    return message["request_id"], message["error"]["code"]


async def test_what_a_key_may_is_asked_for_each_request(slow_engine: EngineClient, tmp_path: Path) -> None:
    ring = key_ring(tmp_path, s3cret="")
    async with opened(locked_api(slow_engine, ring), headers=of("s3cret")) as socket:
        socket.send({**LONG, "request_id": "before"})
        await socket.next()
        key_ring(tmp_path, s3cret='priority = "batch"\nmodels = ["team/fake"]\nrequests_per_minute = 2')
        ring.reload()
        socket.ask("hidden", model="fake")
        assert (await refusal(socket)) == ("hidden", "model_not_found")
        socket.send({**LONG, "request_id": "lowered"})
        await eventually(lambda: num_live(slow_engine) == 2)
        assert [live.priority.label for live in slow_engine.requests()] == ["interactive", "batch"]
        socket.ask("limited")
        assert (await refusal(socket)) == ("limited", "rate_limit_exceeded")


async def test_a_key_that_is_taken_away_begins_nothing_more(
    slow_engine: EngineClient, tmp_path: Path
) -> None:
    ring = key_ring(tmp_path, s3cret="")
    async with opened(locked_api(slow_engine, ring), headers=of("s3cret")) as socket:
        socket.send({**LONG, "max_tokens": 20, "request_id": "before"})
        await socket.next()
        key_ring(tmp_path, other="")
        ring.reload()
        socket.ask("after")
        ends = await socket.until_end("before", "after")
        assert ends["before"][-1]["done"]
        (refused,) = ends["after"]
        assert (refused["status"], refused["error"]["code"]) == (401, "invalid_api_key")


async def test_a_key_that_loses_its_scope_begins_nothing_more(engine: FakeEngine, tmp_path: Path) -> None:
    ring = key_ring(tmp_path, s3cret="")
    async with opened(locked_api(engine, ring), headers=of("s3cret")) as socket:
        key_ring(tmp_path, s3cret='scopes = ["metrics"]')
        ring.reload()
        socket.ask("a")
        assert (await socket.until_end("a"))["a"][-1]["error"]["code"] == "missing_scope"


async def test_output_tokens_count_too(engine: FakeEngine, tmp_path: Path) -> None:
    app = locked_api(engine, key_ring(tmp_path, s3cret="tokens_per_minute = 1000"))
    async with opened(app, headers=of("s3cret")) as socket:
        socket.ask("a", stream=False, ignore_eos=True)
        usage = (await socket.until_end("a"))["a"][0]["usage"]
        socket.ask("b", ignore_eos=True)
        end = (await socket.until_end("b"))["b"][-1]
        left = int(end["headers"]["x-ratelimit-remaining-tokens"])
        assert left <= 1000 - usage["total_tokens"]


@pytest.mark.parametrize(
    ("origin", "allowed", "opens"),
    [
        (None, (), True),
        ("http://test", (), True),
        ("http://evil.example", (), False),
        ("null", (), False),
        ("http://test:8080", (), False),
        ("https://test", (), False),
        ("http://good.example", ("http://good.example",), True),
        ("http://evil.example", ("http://good.example",), False),
        ("http://evil.example", ("*",), True),
    ],
)
async def test_pages_of_other_origins_need_leave(
    engine: FakeEngine, origin: str | None, allowed: tuple[str, ...], opens: bool
) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, cors_origins=allowed))
    async with connected(app, headers={"origin": origin} if origin else {}) as socket:
        if opens:
            await socket.accepted()
        else:
            assert (await socket.refused())[1]["code"] == "origin_not_allowed"


async def test_a_crash_of_the_engine_is_a_pause(http: httpx.AsyncClient) -> None:
    whole = (await chat(http, max_tokens=40, ignore_eos=True)).json()["choices"][0]["message"]["content"]
    async with running(new_engine("step_s=0.02")) as engine, opened(api(engine)) as socket:
        socket.ask("a", max_tokens=40, ignore_eos=True)
        chunks = [await socket.next() for _ in range(5)]
        assert engine.engine_pid is not None
        os.kill(engine.engine_pid, signal.SIGKILL)
        chunks += (await socket.until_end("a"))["a"]
    assert content(chunks) == whole
    assert chunks[-1]["done"]
