"""A check of a grammar that gives up in its own way costs its own request, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.http.body import INLINE_BYTES, off_loop
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, client, served
from tests.api.sockets import opened
from tests.api.talking import MESSAGES, chat, error_of

pytestmark = pytest.mark.anyio


class Panic(BaseException):
    """Stands for pyo3's PanicException, which is no Exception either."""


def failing(error: BaseException) -> Callable[[str], object]:
    def check(gbnf: str) -> object:
        raise error

    return check


ROUTES: list[dict[str, object]] = [
    {"grammar": 'root ::= "a"'},
    {"regex": "a"},
    {"response_format": {"type": "json_object"}},
]


def app(engine: FakeEngine, failure: BaseException) -> Starlette:
    return create_api(served(engine, check_grammar=failing(failure)), OPTIONS).app


FAILURES = [Panic("index out of bounds"), MemoryError(), RecursionError()]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_request_fails_and_the_server_goes_on(engine: FakeEngine, failure: BaseException) -> None:
    async with client(app(engine, failure)) as http:
        for route in (
            {"grammar": 'root ::= "a"'},
            {"regex": "a"},
            {"response_format": {"type": "json_object"}},
        ):
            await _is_our_failure(await chat(http, **route))
            assert (await chat(http)).status_code == 200


async def _is_our_failure(answer: httpx.Response) -> None:
    assert (answer.status_code, error_of(answer)["code"]) == (500, "internal_error")
    assert "index out of bounds" not in answer.text


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_socket_goes_on_with_its_other_requests(engine: FakeEngine, failure: BaseException) -> None:
    async with opened(app(engine, failure)) as socket:
        socket.ask("bad", regex="a")
        socket.ask("good")
        ends = await socket.until_end("bad", "good")
        socket.ask("later")
        assert (await socket.until_end("later"))["later"][-1]["done"]
    assert (ends["bad"][-1]["status"], ends["bad"][-1]["error"]["code"]) == (500, "internal_error")
    assert ends["good"][-1]["done"]


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
async def test_a_row_of_a_batch_job_fails_alone(engine: FakeEngine, failure: BaseException) -> None:
    run_row = create_api(served(engine, check_grammar=failing(failure)), OPTIONS).run_row
    path, plain = "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 2}
    bad = await run_row(path, json.dumps({**plain, "regex": "a"}).encode(), "")
    good = await run_row(path, json.dumps(plain).encode(), "")
    assert (bad.status, bad.retry_after_s, good.status) == (500, None, 200)


async def test_nobody_is_asked_to_send_a_panic_again(engine: FakeEngine) -> None:
    async with client(app(engine, Panic())) as http:
        answer = await chat(http, regex="a")
    assert answer.headers["x-should-retry"] == "false"
    assert json.loads(answer.text)["error"]["param"] is None


@pytest.mark.parametrize("num_bytes", [0, INLINE_BYTES + 1])
async def test_who_wants_to_end_the_process_still_does(num_bytes: int) -> None:
    def work() -> None:
        raise SystemExit

    with pytest.raises(SystemExit):
        await off_loop(num_bytes, work)
