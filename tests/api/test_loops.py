"""Answers that repeat themselves: how each route ends them, and which may go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client
from tests.api.talking import MESSAGES, events

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
LOOP = "and so on, " * 150
BODIES: Mapping[str, Json] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hi"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2000},
    "/v1/responses": {"input": "hi"},
    "/v1/generate": {"prompt": "hi"},
    "/completion": {"prompt": "hi"},
    "/api/chat": {"model": "fake", "messages": MESSAGES},
    "/api/generate": {"model": "fake", "prompt": "hi"},
}
HEADER = "x-ended-by"


async def answer(
    path: str, *, stream: bool, says: str = LOOP, ends: bool = True, **more: object
) -> httpx.Response:
    options = msgspec.structs.replace(OPTIONS, end_loops=ends)
    async with client(api(FakeEngine(says=says), options)) as http:
        response = await http.post(path, json={**BODIES[path], "stream": stream, **more})
    assert response.status_code == 200, response.text
    return response


def ending(path: str, last: Json) -> tuple[object, object]:
    """The reason to end under the family's name, and ours."""
    match path:
        case "/v1/chat/completions" | "/v1/completions":
            (choice,) = last["choices"]
            return choice["finish_reason"], choice.get("ended_by")
        case "/v1/responses":
            details = last.get("response", last)["incomplete_details"]
            return details["reason"], details.get("ended_by")
        case "/v1/messages":
            delta = last.get("delta", last)
            return delta["stop_reason"], delta.get("ended_by")
        case "/v1/generate":
            return last["finish_reason"], last.get("ended_by")
        case "/completion":
            return last["stop_type"], last.get("ended_by")
    return last["done_reason"], last.get("ended_by")


REASONS = {"/v1/messages": "max_tokens", "/v1/responses": "max_output_tokens", "/completion": "limit"}


@pytest.mark.parametrize("path", BODIES)
async def test_a_whole_answer_says_why_it_ended(path: str) -> None:
    made = await answer(path, stream=False)
    assert ending(path, made.json()) == (REASONS.get(path, "length"), "repetition")
    assert made.headers[HEADER] == "repetition"


@pytest.mark.parametrize("path", BODIES)
async def test_the_end_of_a_stream_says_why(path: str) -> None:
    made = await answer(path, stream=True)
    if path.startswith("/api/"):
        lines = [msgspec.json.decode(line) for line in made.text.splitlines()]
    else:
        lines = events(made)
    if path == "/v1/messages":
        lines = [line for line in lines if line["type"] == "message_delta"]
    assert ending(path, lines[-1]) == (REASONS.get(path, "length"), "repetition")
    assert HEADER not in made.headers


@pytest.mark.parametrize("path", BODIES)
async def test_other_ends_have_no_reason_of_ours(path: str) -> None:
    made = await answer(path, stream=False, says="Hi")
    assert "ended_by" not in made.text
    assert HEADER not in made.headers


@pytest.mark.parametrize(
    ("ends", "fields"),
    [(False, {}), (True, {"ignore_eos": True, "max_tokens": 1600})],
)
async def test_what_may_repeat_itself(ends: bool, fields: Json) -> None:
    """Without the option, and where the client ignores the model's end."""
    made = await answer("/v1/completions", stream=False, ends=ends, **fields)
    assert made.json()["choices"][0]["text"].startswith(LOOP[:1600])
    assert HEADER not in made.headers


FORMS: tuple[Json, ...] = (
    {},
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "string"}}}},
    {"regex": "(and so on, )*"},
)


async def test_a_loop_ends_in_forms_and_beside_tools_too() -> None:
    async with client(api(engine := FakeEngine(says="Hi"))) as http:
        for more in FORMS:
            await http.post("/v1/chat/completions", json={"messages": MESSAGES, **more})
    assert [request.ends_loops for request in engine.submitted] == [True] * len(FORMS)
