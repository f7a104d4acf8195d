"""Chat and text completions of the real application: progress of prompts, scored prompts, raw prompts."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from openai_cpu_server.api.application import create_api
from openai_cpu_server.engine_client.client import EngineClient
from tests.api.fake_engine import FakeEngine
from tests.api.serving import OPTIONS, api, client, served
from tests.api.talking import complete, events

pytestmark = pytest.mark.anyio

LONG_CHAT = [{"role": "user", "content": "a" * 600}]


@pytest.fixture
def app(process: EngineClient) -> Starlette:
    """The application on a real engine process."""
    return api(process)


@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", {"messages": LONG_CHAT}),
        ("/v1/completions", {"prompt": "b" * 600}),
        ("/completion", {"prompt": "c" * 600}),
    ],
)
async def test_a_stream_reports_its_progress_as_llama_server_does(
    http: httpx.AsyncClient, path: str, prompt: dict[str, object]
) -> None:
    body = {"max_tokens": 4, "stream": True, "temperature": 0, "seed": 1, **prompt}
    plain = await http.post(path, json=body)
    chunks = events(await http.post(path, json={**body, "return_progress": True, "timings_per_token": True}))
    progress: Any = [chunk["prompt_progress"] for chunk in chunks if "prompt_progress" in chunk]
    assert progress[0].keys() == {"total", "cache", "processed", "time_ms", "place", "seconds_left"}
    assert progress[0]["cache"] == progress[0]["processed"]
    assert progress[-1]["processed"] == progress[-1]["total"] >= 600
    assert all(each["place"] is None for each in progress)
    left_s = [each["seconds_left"] for each in progress]
    assert left_s == sorted(left_s, reverse=True)
    assert left_s[-1] == 0
    reading: Any = [chunk["timings"] for chunk in chunks if "prompt_progress" in chunk]
    read = [one["processed"] - one["cache"] for one in progress]
    assert [timings["prompt_n"] for timings in reading] == read
    timed: Any = [e["timings"] for e in chunks if "timings" in e and "prompt_progress" not in e]
    assert [each["predicted_n"] for each in timed][:4] == [1, 2, 3, 4]
    assert not any("prompt_progress" in chunk for chunk in events(plain))
    assert texts_of(chunks) == texts_of(events(plain))


@pytest.mark.parametrize(
    ("path", "prompt", "line"),
    [
        (
            "/v1/responses",
            {"input": "d" * 600, "max_output_tokens": 4},
            "event: response.in_progress\ndata: ",
        ),
        ("/v1/messages", {"messages": LONG_CHAT, "max_tokens": 4}, "event: ping\ndata: "),
        ("/api/chat", {"messages": LONG_CHAT, "options": {"num_predict": 4}}, ""),
        ("/api/generate", {"prompt": "g" * 600, "options": {"num_predict": 4}}, ""),
        ("/v1/generate", {"prompt": "h" * 600, "max_tokens": 4}, "data: "),
    ],
)
async def test_other_streams_report_progress_where_their_clients_read_or_skip_it(
    http: httpx.AsyncClient, path: str, prompt: dict[str, object], line: str
) -> None:
    body = {"model": "fake", "stream": True, **prompt}
    by_field = (await http.post(path, json={**body, "return_progress": True})).text
    by_header = (await http.post(path, json=body, headers={"X-Progress": "true"})).text
    plain = (await http.post(path, json=body, headers={"X-Progress": "false"})).text
    for stream in (by_field, by_header):
        found = re.findall(rf"^{line}(\{{.*)$", stream, re.MULTILINE)
        objects = [each for each in map(json.loads, found) if "prompt_progress" in each]
        progress = [each["prompt_progress"] for each in objects]
        assert progress[-1]["processed"] == progress[-1]["total"] >= 600
        assert stream.count("prompt_progress") == len(objects)
    assert "prompt_progress" not in plain


def texts_of(chunks: list[dict[str, Any]]) -> str:
    """Text of chunks of any of the three shapes."""
    choices = [choice for chunk in chunks for choice in chunk.get("choices", [chunk])]
    return "".join(one.get("delta", one).get("content", one.get("text")) or "" for one in choices)


async def test_a_prompt_is_scored(http: httpx.AsyncClient) -> None:
    scored = (await complete(http, echo=True, logprobs=1, max_tokens=0)).json()
    (choice,) = scored["choices"]
    assert (choice["text"], choice["logprobs"]["token_logprobs"]) == ("hi", [None, -1.0, -1.0])
    assert scored["usage"]["completion_tokens"] == 0


async def test_a_model_that_cannot_chat_continues_the_prompt(engine: FakeEngine) -> None:
    body = {"prompt": "hi", "max_tokens": 8, "temperature": 0}
    async with client(create_api(served(engine, template=None), OPTIONS).app) as http:
        text, raw = [
            (await http.post("/generate", json={**body, "raw": raw})).json() for raw in (False, True)
        ]
    assert text["text"] == raw["text"] != ""
