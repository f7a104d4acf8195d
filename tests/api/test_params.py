"""Parameters that the API families share; `exchanges/` has their answers."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from openai_cpu_server.api.application import create_api
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import JobOptions
from openai_cpu_server.jobs.store.database import open_database
from tests.api.captures import captured
from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client, served
from tests.api.talking import MESSAGES, error_of, events
from tests.fakes import STATEFUL_INFO

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
CHAT_PATH, TEXT, ANTHROPIC = "/v1/chat/completions", "/v1/completions", "/v1/messages"
RESPONSES, OLD = "/v1/responses", "/v1/generate"
BODIES: dict[str, Json] = {
    CHAT_PATH: {"messages": MESSAGES},
    TEXT: {"prompt": "hi"},
    ANTHROPIC: {"messages": MESSAGES, "max_tokens": 5},
    RESPONSES: {"input": "hi"},
    OLD: {"prompt": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_has_the_boundaries_of_its_conversation(path: str) -> None:
    """Boundaries are behind `<|user|>` and `<|assistant|>`, in rows of batches too."""
    engine = FakeEngine(STATEFUL_INFO, text="Hi")
    application = create_api(served(engine), ApiOptions(output_token_cap=2))
    async with client(application.app) as http:
        assert (await http.post(path, json=BODIES[path])).status_code == 200
    (request,) = engine.submitted
    assert [request.tokens[boundary - 1] for boundary in request.boundaries] == (
        [] if path == TEXT else [300, 301]
    )
    if path not in (ANTHROPIC, OLD):  # rows have OpenAI's paths
        await application.run_row(path, json.dumps(BODIES[path]).encode(), "")
        assert [row.boundaries for row in engine.submitted[1:]] == [request.boundaries]


async def test_a_row_of_a_batch_is_stored_as_a_response_only_on_demand() -> None:
    jobs = Jobs(open_database("sqlite://"), JobOptions(model="fake"))
    api = create_api(served(FakeEngine(text="Hello")), ApiOptions(), jobs=jobs)
    stored = {}
    for store in (None, False, True):
        body = json.dumps({"input": "hi", "store": store}).encode()
        answer = await api.run_row(RESPONSES, body, "")
        response = json.loads(answer.body)
        async with client(api.app) as http:
            found = await http.get(f"{RESPONSES}/{response['id']}")
        stored[store] = (response["store"], found.status_code)
    assert stored == {None: (False, 404), False: (False, 404), True: (True, 200)}
    await api.settle()
    await jobs.close()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("grammar", ['root ::= "("', 'root ::= "aa!"'], ids=["at its start", "later"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/generate", "/generate"])
async def test_a_grammar_that_cannot_be_followed_is_the_clients_error(
    process: EngineClient, path: str, grammar: str, stream: bool
) -> None:
    """SDKs retry server errors. The fake backend breaks at a bracket and at an exclamation mark."""
    prompt = {"messages": MESSAGES} if "chat" in path else {"prompt": "hi"}
    body = {**prompt, "grammar": grammar, "max_tokens": 50, "stream": stream and "generate" not in path}
    async with client(api(process)) as http:
        answer = await http.post(path, json=body)
        if body["stream"]:
            (error,) = [event["error"] for event in events(answer) if "error" in event]
            assert isinstance(error, dict)
        else:
            assert answer.status_code == 400
            assert answer.headers["x-should-retry"] == "false"
            error = error_of(answer)
    expected = ("invalid_request_error", "grammar_failed", "grammar")
    assert (error["type"], error["code"], error["param"]) == expected
    assert process.status().restarts == 0


@pytest.mark.parametrize("program", captured("chat_programs"))
async def test_bodies_of_well_known_programs_are_answered(http: httpx.AsyncClient, program: str) -> None:
    body = {"model": "fake", "max_tokens": 4, **captured("chat_programs")[program]}
    answer = await http.post(CHAT_PATH, json=body)
    assert answer.status_code == 200, answer.text
    assert "choices" in answer.text
