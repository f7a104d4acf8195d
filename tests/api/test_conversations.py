"""`/v1/conversations`, beside what `exchanges/conversations.txt` has."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from openai_cpu_server.jobs.records import JobOptions
from tests.api.fake_engine import FakeEngine
from tests.api.talking import events
from tests.api.test_responses import begun, has_ended, made, respond, serving

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
HI: Json = {"type": "message", "id": "msg_1", "role": "user", "content": "hi"}


async def texts(http: httpx.AsyncClient, conversation: str) -> list[str]:
    listed = await http.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")
    return [item["content"][0]["text"] for item in listed.json()["data"]]


async def test_streams_and_background_responses_go_on_in_a_conversation() -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        named = (await http.post("/v1/conversations", json={})).json()["id"]
        told = events(await respond(http, conversation={"id": named}, stream=True))
        assert told[-1]["type"] == "response.completed"
        await has_ended(http, await begun(http, input="Once more", conversation=named, store=True))
        assert await texts(http, named) == ["hi", "Hello you", "Once more", "Hello you"]


async def test_a_failed_response_and_a_sent_copy_add_nothing() -> None:
    engine = FakeEngine(says="Hello you")
    async with serving(engine) as http:
        named = (await http.post("/v1/conversations", json={"items": [HI]})).json()["id"]
        await made(http, input=[HI], conversation=named)
        engine.goes_on.clear()
        await respond(http, conversation=named, stream=True, timeout=0.05)
        late = await respond(http, input=LONG, context_management=MANAGED, timeout=0.05)
        assert late.status_code == 408, "its summary has failed"
        assert await texts(http, named) == ["hi", "Hello you"]


async def test_conversations_expire() -> None:
    async with serving(FakeEngine(), job_options=JobOptions(model="fake", response_lifetime_s=0)) as http:
        named = (await http.post("/v1/conversations", json={})).json()["id"]
        assert (await http.get(f"/v1/conversations/{named}")).status_code == 404


# -- summed up on the way ----------------------------------------------------------------------------------

LONG: list[Json] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "a" * 80},
    {"role": "assistant", "content": "b" * 80},
    {"role": "user", "content": "And now?"},
]


MANAGED = [{"type": "compaction", "compact_threshold": 100}]


async def test_a_prompt_beyond_the_threshold_is_summed_up_first() -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        whole = await made(http, input=LONG)
        told = events(await respond(http, input=LONG, context_management=MANAGED, stream=True))
        response: Any = told[-1]["response"]
        summary, message = response["output"]
        assert (summary["type"], message["type"]) == ("compaction", "message")
        assert summary["encrypted_content"] == "openai-cpu-server:Hello you"
        added = [one for one in told if one["type"] == "response.output_item.added"]
        assert [one["output_index"] for one in added] == [0, 1]
        assert response["usage"]["output_tokens"] == 2 * whole["usage"]["output_tokens"]
        shown = [LONG[0], {"type": "compaction", **summary}, LONG[3]]
        stays = await made(http, input=shown)
        assert stays["usage"]["input_tokens"] < whole["usage"]["input_tokens"]
        later = await made(http, input="More", previous_response_id=response["id"])
        sent = [*LONG, *response["output"], {"role": "user", "content": "More"}]
        assert (await made(http, input=sent))["usage"]["input_tokens"] == later["usage"]["input_tokens"]
        assert later["usage"]["input_tokens"] < whole["usage"]["input_tokens"] + 40
