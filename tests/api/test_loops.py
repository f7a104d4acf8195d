"""Answers that repeat themselves: how each route ends them, and which may go on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    async with client(api(FakeEngine(text=says), options)) as http:
        response = await http.post(path, json={**BODIES[path], "stream": stream, **more})
    assert response.status_code == 200, response.text
    return response


REASONS = {
    "/v1/messages": ("stop_reason", "max_tokens"),
    "/v1/responses": ("reason", "max_output_tokens"),
    "/completion": ("stop_type", "limit"),
    **dict.fromkeys(("/api/chat", "/api/generate"), ("done_reason", "length")),
}


def endings(value: Any) -> Iterator[Json]:
    """Objects with a reason of ours."""
    if isinstance(value, dict) and "ended_by" in value:
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from endings(inner)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_says_why_it_ended(path: str, stream: bool) -> None:
    """In its header, where the end is known before the beginning is sent."""
    made = await answer(path, stream=stream)
    told: list[Any] = [made.json()] if not stream else events(made)
    if stream and path.startswith("/api/"):
        told = [msgspec.json.decode(line) for line in made.text.splitlines()]
    (ending,) = endings(told)
    name, reason = REASONS.get(path, ("finish_reason", "length"))
    assert (ending[name], ending["ended_by"]) == (reason, "repetition")
    assert made.headers.get(HEADER) == (None if stream else "repetition")


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
