"""`/v1/conversations`, responses of one, and what is summed up on the way to a response."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from openai_cpu_server.jobs.records import JobOptions
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring
from tests.api.talking import error_of, events
from tests.api.test_responses import begun, has_ended, made, respond, serving

pytestmark = pytest.mark.anyio

Json = dict[str, Any]
HI: Json = {"type": "message", "role": "user", "content": "hi"}


async def a_conversation(http: httpx.AsyncClient, **fields: object) -> str:
    answer = await http.post("/v1/conversations", json=fields)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def texts(http: httpx.AsyncClient, conversation: str) -> list[str]:
    listed = await http.get(f"/v1/conversations/{conversation}/items?order=asc&limit=100")
    assert listed.status_code == 200, listed.text
    return [
        "summary" if item["type"] == "compaction" else item["content"][0]["text"]
        for item in listed.json()["data"]
    ]


async def test_a_conversation_is_kept_changed_and_deleted() -> None:
    async with serving(FakeEngine()) as http:
        begun = (await http.post("/v1/conversations", json={"items": [HI], "metadata": {"a": "b"}})).json()
        assert begun.keys() == {"id", "object", "created_at", "metadata"}
        at = f"/v1/conversations/{begun['id']}"
        assert (await http.get(at)).json() == begun
        changed = (await http.post(at, json={"metadata": {"c": "d"}})).json()
        assert changed == {**begun, "metadata": {"c": "d"}} == (await http.get(at)).json()
        assert (await http.post(at, json={"metadata": None})).json()["metadata"] == {}
        assert error_of(await http.post(at, json={}))["param"] == "metadata"
        gone = (await http.delete(at)).json()
        assert gone == {"id": begun["id"], "object": "conversation.deleted", "deleted": True}
        for answer in (await http.get(at), await http.get(f"{at}/items"), await http.delete(at)):
            assert answer.status_code == 404
        assert error_of(await respond(http, conversation=begun["id"]))["param"] == "conversation"


async def test_items_are_added_listed_shown_and_deleted() -> None:
    async with serving(FakeEngine()) as http:
        named = await a_conversation(http, items=[HI])
        at = f"/v1/conversations/{named}/items"
        call = {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"}
        added = (await http.post(at, json={"items": [call, {"role": "assistant", "content": "Hm."}]})).json()
        assert [item["type"] for item in added["data"]] == ["function_call", "message"]
        page = (await http.get(f"{at}?limit=2")).json()
        assert [item["id"] for item in page["data"]] == [added["last_id"], "fc_1"]
        assert page["has_more"]
        rest = (await http.get(f"{at}?after=fc_1&order=desc")).json()
        assert rest["data"][0]["content"] == [{"type": "input_text", "text": "hi"}]
        assert (await http.get(f"{at}/fc_1")).json()["name"] == "f"
        assert (await http.delete(f"{at}/fc_1")).json()["object"] == "conversation"
        assert (await http.get(f"{at}/fc_1")).status_code == 404
        reference = {"type": "item_reference", "id": added["last_id"]}
        other = await a_conversation(http, items=[reference])
        assert await texts(http, other) == ["Hm."]


@pytest.mark.parametrize(
    ("items", "param"),
    [
        ([], "items"),
        ([HI] * 21, "items"),
        ([{"type": "compaction_trigger"}], "items[0].type"),
        ([HI, {"type": "item_reference", "id": "msg_x"}], "items[1].id"),
        ([{**HI, "id": "msg_1"}, {**HI, "id": "msg_1"}], "items[1].id"),
        ([{**HI, "id": "msg_there"}], "items[0].id"),
        ([{"role": "robot", "content": "hi"}], "items[0].role"),
    ],
)
async def test_items_that_cannot_be_added_change_nothing(items: list[Json], param: str) -> None:
    async with serving(FakeEngine()) as http:
        named = await a_conversation(http, items=[{**HI, "id": "msg_there"}])
        refused = await http.post(f"/v1/conversations/{named}/items", json={"items": items})
        assert error_of(refused)["param"] == param
        assert await texts(http, named) == ["hi"]


async def test_responses_go_on_in_a_conversation() -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        named = await a_conversation(http, items=[{"role": "developer", "content": "Be kind."}])
        first = await made(http, conversation=named)
        assert first["conversation"] == {"id": named}
        told = events(await respond(http, input="And now?", conversation={"id": named}, stream=True))
        assert told[-1]["type"] == "response.completed"
        assert await texts(http, named) == ["Be kind.", "hi", "Hello you", "And now?", "Hello you"]
        counted = {"input": [], "conversation": named}
        before = (await http.post("/v1/responses/input_tokens", json=counted)).json()["input_tokens"]
        running = await begun(http, input="Once more", conversation=named, store=True)
        await has_ended(http, running)
        unstored = await made(http, input="Not stored", conversation=named, store=False)
        assert unstored["usage"]["input_tokens"] > before
        assert (await texts(http, named))[-4:] == ["Once more", "Hello you", "Not stored", "Hello you"]
        await http.delete(f"/v1/responses/{first['id']}")
        assert "Hello you" in await texts(http, named)


async def test_what_the_model_wrote_is_found_as_it_was_written_until_a_part_is_gone() -> None:
    async with serving(FakeEngine(says="  Hello ")) as http:
        named = await a_conversation(http)
        first = await made(http, conversation=named)
        again = await made(http, input="More", conversation=named)
        stored = await made(http, input="More", previous_response_id=(await made(http))["id"])
        assert again["usage"]["input_tokens"] == stored["usage"]["input_tokens"]
        item = first["output"][0]["id"]
        assert (await http.delete(f"/v1/conversations/{named}/items/{item}")).status_code == 200
        assert len(await texts(http, named)) == 3


async def test_a_failed_response_and_a_sent_copy_add_nothing() -> None:
    engine = FakeEngine(says="Hello you")
    async with serving(engine) as http:
        named = await a_conversation(http, items=[{**HI, "id": "msg_1"}])
        await made(http, input=[{**HI, "id": "msg_1"}], conversation=named)
        engine.goes_on.clear()
        await respond(http, conversation=named, stream=True, timeout=0.05)
        late = await respond(http, input=LONG, context_management=managed(100), timeout=0.05)
        assert late.status_code == 408, "its summary has failed"
        assert await texts(http, named) == ["hi", "Hello you"]


async def test_what_cannot_go_together_is_refused() -> None:
    async with serving(FakeEngine(says="Hello")) as http:
        named = await a_conversation(http)
        of_it = (await made(http, conversation=named))["id"]
        both = await respond(http, conversation=named, previous_response_id=of_it)
        assert error_of(both)["code"] == "mutually_exclusive_parameters"
        alone = await respond(http, previous_response_id=of_it)
        assert error_of(alone)["param"] == "previous_response_id"
        assert error_of(await respond(http, conversation=7))["param"] == "conversation"
    async with serving(FakeEngine(), None) as http:
        assert (await http.post("/v1/conversations", json={})).status_code == 404
        assert error_of(await respond(http, conversation="conv_1"))["code"] == "unsupported_parameter"


async def test_the_conversations_of_another_key_are_not_there(tmp_path: Path) -> None:
    async with serving(FakeEngine(says="Hello"), keys=key_ring(tmp_path, ann="", bob="")) as http:
        http.headers["x-api-key"] = "ann"
        named = await a_conversation(http, items=[{**HI, "id": "msg_1"}])
        http.headers["x-api-key"] = "bob"
        at = f"/v1/conversations/{named}"
        for answer in (
            await http.get(at),
            await http.post(at, json={"metadata": {}}),
            await http.get(f"{at}/items"),
            await http.post(f"{at}/items", json={"items": [HI]}),
            await http.get(f"{at}/items/msg_1"),
            await http.delete(f"{at}/items/msg_1"),
            await http.delete(at),
            await respond(http, conversation=named),
        ):
            assert answer.status_code == 404
        reference = {"type": "item_reference", "id": "msg_1"}
        assert (await respond(http, input=[reference])).status_code == 400
        http.headers["x-api-key"] = "ann"
        assert await texts(http, named) == ["hi"]


async def test_conversations_count_as_stored_and_expire(tmp_path: Path) -> None:
    long = {"items": [{**HI, "content": "x" * 600_000}]}
    async with serving(FakeEngine(), keys=key_ring(tmp_path, ann="stored_mb = 1")) as http:
        http.headers["x-api-key"] = "ann"
        named = await a_conversation(http, **long)
        for path in ("", f"/{named}/items"):
            refused = await http.post(f"/v1/conversations{path}", json=long)
            assert (refused.status_code, error_of(refused)["code"]) == (507, "storage_quota_exceeded")
        await http.delete(f"/v1/conversations/{named}")
        await a_conversation(http, **long)
    async with serving(FakeEngine(), job_options=JobOptions(model="fake", response_lifetime_s=0)) as http:
        named = await a_conversation(http)
        assert (await http.get(f"/v1/conversations/{named}")).status_code == 404


# -- summed up on the way ----------------------------------------------------------------------------------

LONG: list[Json] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "a" * 80},
    {"role": "assistant", "content": "b" * 80},
    {"role": "user", "content": "And now?"},
]


def managed(threshold: int | None) -> list[Json]:
    return [{"type": "compaction", "compact_threshold": threshold}]


async def test_a_prompt_beyond_the_threshold_is_summed_up_first() -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        whole = await made(http, input=LONG)
        told = events(await respond(http, input=LONG, context_management=managed(100), stream=True))
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


@pytest.mark.parametrize(("messages", "threshold"), [(LONG, 100_000), (LONG[:2], 1), (LONG, None)])
async def test_a_prompt_that_is_short_or_was_not_answered_yet_is_not(
    messages: list[Json], threshold: int | None
) -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        response = await made(http, input=messages, context_management=managed(threshold))
        assert [item["type"] for item in response["output"]] == ["message"]


async def test_a_conversation_is_summed_up_and_goes_on() -> None:
    async with serving(FakeEngine(says="Hello you")) as http:
        named = await a_conversation(http, items=LONG[:3])
        await made(http, input="And now?", conversation=named, context_management=managed(100))
        assert (await texts(http, named))[3:] == ["And now?", "summary", "Hello you"]
        again = await made(http, input="More", conversation=named, context_management=managed(200))
        assert [item["type"] for item in again["output"]] == ["message"]
        compacted = await http.post("/v1/responses/compact", json={"conversation": named})
        assert compacted.json()["output"][-1]["type"] == "compaction"
        assert (await texts(http, named))[-1] == "Hello you", "a mere summary adds nothing"


async def test_a_summary_counts_against_its_keys_limits(tmp_path: Path) -> None:
    keys = key_ring(tmp_path, ann="tokens_per_minute = 5000\nconcurrent = 1")
    async with serving(FakeEngine(says="Hello you"), keys=keys) as http:
        http.headers["x-api-key"] = "ann"
        summed_up = await made(http, input=LONG, context_management=managed(100))
        after = await respond(http, input="x", max_output_tokens=1)
        left = int(after.headers["x-ratelimit-remaining-tokens"])
        own = after.json()["usage"]["input_tokens"] + 1
        assert left == 5000 - summed_up["usage"]["total_tokens"] - own
