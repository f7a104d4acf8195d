"""Ids, keys, limits, unknown routes, bugs, panics."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import msgspec
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.http.body import INLINE_BYTES, off_loop
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.serving import OPTIONS, api, client, served
from tests.api.sockets import opened
from tests.api.talking import MESSAGES, chat, error_of

pytestmark = pytest.mark.anyio


async def test_a_wrong_method_names_the_right_ones(http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/chat/completions")).headers["allow"] == "POST"


@pytest.mark.parametrize("request_id", ["abc-1.2:3/4", "x" * 128, "", "x" * 129, "a b", "a\tb", "é"])
async def test_an_invalid_request_id_is_replaced(http: httpx.AsyncClient, request_id: str) -> None:
    for path in ("/health", "/nowhere"):
        answer = await http.get(path, headers={"x-request-id": request_id.encode()})
        returned_id = answer.headers["x-request-id"]
        assert (returned_id == request_id) is (request_id in ("abc-1.2:3/4", "x" * 128))
        assert returned_id == request_id or returned_id.startswith("req_")


async def test_a_key_of_any_letters_opens_everything_but_health(engine: FakeEngine) -> None:
    locked = msgspec.structs.replace(OPTIONS, api_key="schlüssel")
    async with client(api(engine, locked)) as http:
        for bearer, status in ((b"no", 401), ("schlüssel".encode(), 200)):
            answer = await http.get("/v1/models", headers={"authorization": b"Bearer " + bearer})
            assert answer.status_code == status
        nowhere = await http.get("/nowhere")
        assert (nowhere.status_code, error_of(nowhere)["code"]) == (401, "invalid_api_key")
        assert "x-request-id" in nowhere.headers
        assert (await http.get("/health")).status_code == (await http.get("/ready")).status_code == 200


async def test_a_large_body_is_refused_by_its_length_and_by_counting(engine: FakeEngine) -> None:
    app = api(engine, msgspec.structs.replace(OPTIONS, max_body_bytes=100))
    async with client(app) as http:
        response = await chat(http, user="x" * 100)
    assert (response.status_code, error_of(response)["code"]) == (413, "request_too_large")
    async with exchange(app, "/v1/chat/completions") as upload:
        upload.send_body(b"x" * 60, b"x" * 60, b"")
        assert json.loads(await upload.chunk() or b"")["error"]["code"] == "request_too_large"
    assert upload.status == 413


class BrokenTokenizer(FakeTokenizer):
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        if text == "a":
            raise RuntimeError("secret of ours")
        return super().encode(text, add_special=add_special, parse_special=parse_special)


async def test_a_bug_is_logged_and_not_shown(engine: FakeEngine, caplog: pytest.LogCaptureFixture) -> None:
    async with client(create_api(served(engine, tokenizer=BrokenTokenizer()), OPTIONS).app) as http:
        response = await http.post("/tokenize", json={"content": "a"}, headers={"x-request-id": "r1"})
    assert (response.status_code, error_of(response)["code"]) == (500, "internal_error")
    assert "secret" not in response.text
    assert "r1" in response.text
    assert "secret of ours" in caplog.text


# -- a grammar check that fails by any exception fails its own request only ----------------------------------


class Panic(BaseException):
    """Stand in for pyo3's PanicException, which is not an Exception either."""


def failing(error: BaseException) -> Callable[[str], object]:
    def check(gbnf: str) -> object:
        raise error

    return check


COMPILED: list[dict[str, object]] = [
    {"grammar": 'root ::= "a"'},
    {"regex": "a"},
    {"response_format": {"type": "json_object"}},
]
FAILURES = [Panic("index out of bounds"), MemoryError(), RecursionError()]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_request_a_message_or_a_row_fails_alone(engine: FakeEngine, failure: BaseException) -> None:
    application = create_api(served(engine, check_grammar=failing(failure)), OPTIONS)
    path, plain = "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}
    async with client(application.app) as http, opened(application.app) as socket:
        for fields in COMPILED:
            answer = await chat(http, **fields)
            error = error_of(answer)
            assert (answer.status_code, error["code"], error["param"]) == (500, "internal_error", None)
            if isinstance(failure, Panic):
                assert answer.headers["x-should-retry"] == "false"
            assert "index out of bounds" not in answer.text
            assert (await chat(http)).status_code == 200
        socket.ask("bad", regex="a")
        socket.ask("good")
        (bad,) = await socket.answer("bad")
        assert (bad["status"], bad["error"]["code"]) == (500, "internal_error")
        assert (await socket.answer("good"))[-1]["done"]
        socket.ask("later")
        assert (await socket.answer("later"))[-1]["done"]
    rows = [
        await application.run_row(path, json.dumps(body).encode(), "")
        for body in ({**plain, "regex": "a"}, plain)
    ]
    assert [(row.status, row.retry_after_s) for row in rows] == [(500, None), (200, None)]


@pytest.mark.parametrize("num_bytes", [0, INLINE_BYTES + 1])
async def test_system_exit_passes_through_off_loop(num_bytes: int) -> None:
    def work() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        await off_loop(num_bytes, work)
