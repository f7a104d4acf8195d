"""Hostile bodies, uploads, query strings, paths and headers against the real server and the tiny model."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.access_table import ENDLESS
from tests.api.talking import error_by_path
from tests.fuzz.hostile import Bodies, Json, RichBodies
from tests.fuzz.odd_requests import OddRequests
from tests.lazy import Lazy
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import DEADLINE_S, eventually

schemathesis, checks = Lazy("schemathesis"), Lazy("schemathesis.specs.openapi.checks")

pytestmark = [pytest.mark.native, pytest.mark.thorough, pytest.mark.anyio]

NUM_CONCURRENT = 8
OPTIONS = ("--ctx-size", "4096", "--output-token-cap", "16", "--max-choices", "8", "--request-timeout", "20")


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess("--model", f"fake={tiny_model_path()}", *OPTIONS) as process:
        yield process


@pytest.fixture(scope="module")
def document(server: ServerProcess) -> Json:
    document: Json = httpx.get(server.url + "/openapi.json", timeout=DEADLINE_S).json()
    return document


async def send_all(server: ServerProcess, requests: list[httpx.Request]) -> Counter[int]:
    """Return the number of each status. Fail at the first 5xx or hang, and name its request."""
    statuses: Counter[int] = Counter()
    waiting = iter(requests)

    async def send() -> None:
        for request in waiting:
            with anyio.fail_after(DEADLINE_S):
                statuses[await status_of(http, request)] += 1

    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        await asyncio.gather(*(send() for _ in range(NUM_CONCURRENT)))
        good = await http.post(server.url + "/v1/completions", json={"prompt": "a", "max_tokens": 2})
    assert good.status_code == 200, good.text

    def is_idle() -> bool:  # some requests continue in the background
        return not any(size["running"] + size["waiting"] for size in server.status()["queue"].values())

    await eventually(is_idle)
    assert server.status()["restarts"] == 0
    assert not any("Traceback" in line for line in server.lines), "".join(server.lines)[-5000:]
    return statuses


async def status_of(http: httpx.AsyncClient, request: httpx.Request) -> int:
    summary = (request.method, request.url, request.headers, request.content[:2000])
    answer = await http.send(request)
    assert answer.status_code < 500, (summary, answer.text)
    if answer.status_code == 200:
        assert b'"internal_error"' not in answer.content, (summary, answer.text)
        assert b'"generation_failed"' not in answer.content, (summary, answer.text)
    elif request.headers.get("content-type") == "application/json":
        assert error_by_path(answer)["message"], summary
    return answer.status_code


async def post(server: ServerProcess, bodies: Bodies | RichBodies, number: int) -> Counter[int]:
    headers = {"content-type": "application/json"}
    pairs = [bodies.next_body() for _ in range(number)]
    return await send_all(
        server,
        [httpx.Request("POST", server.url + path, content=body, headers=headers) for path, body in pairs],
    )


async def test_hostile_bodies(server: ServerProcess, document: Json) -> None:
    statuses = await post(server, Bodies(document, 7), 400)
    assert statuses[200] > 5, statuses
    assert statuses[400] > 80, statuses


async def test_responses_and_messages_with_odd_parts(server: ServerProcess) -> None:
    statuses = await post(server, RichBodies(7), 200)
    assert statuses[200] > 20, "bodies that are refused at once test little"


async def test_odd_paths_queries_and_headers(server: ServerProcess, document: Json) -> None:
    odd = OddRequests(server.url, document, Random(7))
    statuses = await send_all(server, [odd.without_body() for _ in range(300)])
    assert statuses[200] > 20, statuses
    assert statuses[400] + statuses[404] > 20, statuses


async def test_odd_uploads(server: ServerProcess, document: Json) -> None:
    odd = OddRequests(server.url, document, Random(7))
    statuses = await send_all(server, [odd.upload() for _ in range(200)])
    assert statuses[200] > 5, statuses
    assert statuses[400] > 50, statuses


@pytest.mark.slow
@pytest.mark.parametrize("examples", [1, 500])
@pytest.mark.timeout(3600)  # most of the time goes into making the examples
def test_schemathesis_finds_answers_as_described(server: ServerProcess, examples: int) -> None:
    schema = schemathesis.openapi.from_url(server.url + "/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) > 20
    described = [
        getattr(checks, f"{each}_conformance") for each in ("status_code", "content_type", "response_schema")
    ]
    for operation in operations:

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(operation.as_strategy())
        def check(case: Any) -> None:
            answer = case.call(base_url=server.url, timeout=DEADLINE_S)
            assert answer.status_code < 500, (case.as_curl_command(), answer.text)
            case.validate_response(answer, checks=described)

        if operation.path != ENDLESS:
            check()
    status = server.status()
    assert (status["restarts"], status["status"]) == (0, "ready"), status
