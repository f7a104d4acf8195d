"""Odd conversations of agents and odd parts: each is answered, or refused at its place in one sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.api.fake_engine import FakeEngine
from tests.api.serving import api, client

pytestmark = pytest.mark.anyio
Json = dict[str, Any]
HI: Json = {"role": "user", "content": "hi"}
URI = "data:image/png;base64,"
LONG = "x" * 3000


def user(*parts: object) -> Json:
    return {"role": "user", "content": list(parts)}


def call(call_id: str, name: str = "f", arguments: object = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Json) -> Json:
    return {"role": "assistant", "content": None, "tool_calls": list(calls)}


def result(call_id: str, content: object = "ok") -> Json:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def file(**fields: str) -> Json:
    return user({"type": "file", "file": fields})


FINE: list[list[Json]] = [
    [HI, calling(call("1"), call("1")), result("1"), result("1")],
    [HI, calling(call("1")), result("1"), calling(call("1")), result("1"), HI],
    [HI, result("9")],
    [result("9"), HI],
    [HI, calling(call("1")), HI],
    [HI, calling(call("1"), call("2", "g")), result("2"), result("1")],
    [HI, calling(call("1")), result("1"), result("1")],
    [HI, calling(call("1")), HI, result("1")],
    [user({"type": "text", "text": ""})],
    [HI, {"role": "assistant", "content": []}, HI],
    [HI, calling(call("1", "a b\n<x>")), result("1")],
    [HI, calling(call("1", "")), result("1")],
    [HI, calling(call(LONG, LONG[:500])), result(LONG)],
    *([HI, calling(call("1", arguments=text)), result("1")] for text in ("{a", "[1]", "", None, {"a": 1})),
    [HI, calling(call("1", arguments='{"a": NaN, "b": Infinity, "a": 2}')), result("1")],
    [HI, calling(call("")), result("")],
    [HI, {"role": "assistant", "content": "a", "tool_calls": None}, HI],
    [HI, calling(call("1")), result("1", None)],
    [HI, calling(call("1")), result("1", [])],
    [HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, HI],
    [HI, {"role": "assistant", "content": [{"type": "image_url", "image_url": {"url": URI}}]}, HI],
    [user({"type": "image_url"}), {"role": "assistant", "content": "What?"}, HI],
    [{"role": "user", "name": "a b\n" * 1000, "content": "x"}],
]
AT = "messages[0].content[0]"
REFUSED: list[tuple[list[Json], str]] = [
    ([HI, calling(call("1"))], "messages"),
    ([user()], "messages[0].content"),
    ([user({"type": "hologram"})], f"{AT}.type"),
    ([user({"text": "a"})], f"{AT}.type"),
    ([user("a")], AT),
    ([user(None)], AT),
    ([user({"type": "image_url"})], f"{AT}.type"),
    ([user({"type": "image_url", "image_url": {"url": ""}})], f"{AT}.type"),
    ([user({"type": "image_url", "image_url": {"url": f"{URI}!!!!"}})], f"{AT}.type"),
    ([user({"type": "input_audio"})], f"{AT}.type"),
    ([user({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}})], f"{AT}.type"),
    ([file()], f"{AT}.type"),
    ([file(filename=LONG, file_data="data:text/plain;base64,aGk=")], AT),
    ([file(file_id="../x")], AT),
    ([HI, calling({"id": "1", "type": "retrieval"}), result("1")], "messages[1].tool_calls[0].type"),
    ([HI, calling({"id": 5, "type": "function"}), result("1")], "messages[1].tool_calls[0].id"),
    ([HI, calling(call("1")), result("1", {"a": 1})], "messages[2].content"),
    ([HI, calling(call("1")), {"role": "tool", "content": "x"}], "messages[2].tool_call_id"),
    ([{**HI, "tool_calls": [call("1")]}], "messages[0].tool_calls"),
    ([{"role": "narrator", "content": "a"}], "messages[0].role"),
]


async def test_odd_conversations_go_on() -> None:
    async with client(api(FakeEngine(says="Yes."))) as http:
        for messages in FINE:
            got = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 4})
            assert got.status_code == 200, (messages, got.text)


async def test_odd_questions_are_refused_at_their_place_in_one_sentence() -> None:
    async with client(api(FakeEngine())) as http:
        for messages, param in REFUSED:
            got = await http.post("/v1/chat/completions", json={"messages": messages})
            error = got.json()["error"]
            assert (got.status_code, error["param"]) == (400, param), (messages, error)
            assert error["message"].endswith("."), "a sentence"


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "'input[0].content[0]': it contains no file.",
        ),
        (
            "/v1/responses",
            {"input": [{"type": "telepathy"}]},
            "'input' has no item of a supported type.",
        ),
        (
            "/v1/messages",
            {"max_tokens": 4, "messages": [user({"type": "image"})]},
            "'messages[0].content[0]': it contains no image.",
        ),
    ],
)
async def test_questions_of_other_families_without_their_content_are_refused(
    path: str, body: Json, message: str
) -> None:
    async with client(api(FakeEngine())) as http:
        got = await http.post(path, json={"model": "fake", **body})
    assert (got.status_code, got.json()["error"]["message"]) == (400, message)


async def test_half_a_character_is_named() -> None:
    data = json.dumps({"messages": [{"role": "user", "content": "\ud83d"}]})
    async with client(api(FakeEngine())) as http:
        got = await http.post("/v1/chat/completions", content=data)
    assert "a character may be cut in half" in got.json()["error"]["message"]
