"""Rows of batches: the answers of the HTTP routes, without HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from openai_cpu_server.api.application import create_api
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring
from tests.api.serving import OPTIONS, api, client, new_engine, rows, running, served
from tests.api.talking import MESSAGES, chat
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

CHAT = "/v1/chat/completions"
BODY = {"messages": MESSAGES, "max_tokens": 8, "seed": 1, "temperature": 0}


def body(**fields: object) -> bytes:
    return json.dumps({**BODY, **fields}).encode()


async def test_a_row_gets_what_a_request_gets(engine: FakeEngine) -> None:
    async with client(api(engine)) as http:
        over_http = (await chat(http)).json()
    answer = await rows(engine)(CHAT, body(), "")
    assert (answer.status, answer.retry_after_s) == (200, None)
    row = json.loads(answer.body)
    assert row["object"] == "chat.completion"
    assert row["choices"] == over_http["choices"]


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"temperature": 9}, 400, "temperature"),
        ({"stream": True}, 400, "stream"),
        ({"model": "nobody"}, 404, "model"),
        ({"colour": "red"}, 400, "colour"),
    ],
)
async def test_refused_rows(engine: FakeEngine, fields: dict[str, object], status: int, param: str) -> None:
    answer = await rows(engine)(CHAT, body(**fields), "")
    assert (answer.status, answer.retry_after_s) == (status, None)
    assert json.loads(answer.body)["error"]["param"] == param


async def test_a_row_always_has_batch_priority(engine: FakeEngine) -> None:
    engine.goes_on.clear()
    task = asyncio.create_task(rows(engine)(CHAT, body(priority="interactive"), ""))
    await eventually(lambda: bool(engine.requests()))
    assert [live.priority.label for live in engine.requests()] == ["batch"]
    task.cancel()
    await asyncio.wait([task])
    assert engine.requests() == []


async def test_a_row_is_put_off_when_the_server_ends() -> None:
    async with running(new_engine("step_s=0.05")) as engine:
        task = asyncio.create_task(rows(engine)(CHAT, body(max_tokens=4000, ignore_eos=True), ""))
        await eventually(lambda: bool(engine.requests()))
    answer = await task
    assert answer.status == 503
    assert answer.retry_after_s is not None


async def test_a_row_of_a_removed_key_is_refused(engine: FakeEngine, tmp_path: Path) -> None:
    run_row = create_api(served(engine), OPTIONS, keys=key_ring(tmp_path, ann="")).run_row
    assert (await run_row(CHAT, body(), "ann")).status == 200
    assert (await run_row(CHAT, body(), "bob")).status == 401
