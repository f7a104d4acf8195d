"""Bounds on the cost of a body.

Values are counted before they are parsed, and prompts before they are tokenised. The schemas of a call are
counted together.
"""

from __future__ import annotations

import itertools
import json

import msgspec
import pytest
from pydantic import ValidationError

from openai_cpu_server.api.admin.tokens import DetokenizeBody
from openai_cpu_server.api.chat.schema import ChatBody
from openai_cpu_server.api.completions.routes import CompletionBody
from openai_cpu_server.api.files.schema import BatchBody
from openai_cpu_server.api.pooling.schema import EmbeddingBody
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.errors import InvalidRequest, PromptTooLong, TooManyValues
from openai_cpu_server.http.parse import Body, parse
from openai_cpu_server.prompt.template import arguments_object
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import chat, complete
from tests.api.serving import api
from tests.api.sockets import opened
from tests.api.talking import MESSAGES
from tests.fakes import FAKE_INFO

MANY = 250_000


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (CompletionBody, {"prompt": [[7] * 400] * 1_000}),
        (EmbeddingBody, {"input": [[7] * 244] * 2_048}),
        (DetokenizeBody, {"tokens": [70_000] * 262_144}),
        (EmbeddingBody, {"input": ["some text, and: [more] of it. " * 200] * 2_048}),
        (ChatBody, {"messages": MESSAGES * 10_000}),
        (
            ResponsesBody,
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}] * 9_999},
        ),
    ],
)
def test_long_bodies_of_honest_clients_pass(schema: type, body: dict[str, object]) -> None:
    parse(schema, json.dumps(body).encode(), lenient=False)


@pytest.mark.parametrize(
    ("schema", "name"),
    [
        *itertools.product([ChatBody, CompletionBody, ResponsesBody], ["logit_bias", "metadata"]),
        (BatchBody, "metadata"),
    ],
)
def test_the_first_wrong_value_of_an_object_is_enough(schema: type[Body], name: str) -> None:
    """An error for each of them took a second and a hundred megabytes."""
    body = {"messages": MESSAGES, "prompt": "a", "input": "a", name: {str(i): [] for i in range(20_000)}}
    with pytest.raises(ValidationError) as caught:
        schema.model_validate_json(json.dumps(body))
    assert len(caught.value.errors()) < 5


class UnusedTokenizer(FakeTokenizer):
    def encode(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        raise AssertionError("tokenised before the number of prompts was looked at")


@pytest.mark.parametrize("fields", [{}, {"n": 8}, {"best_of": 8}])
def test_prompts_are_counted_before_they_are_tokenised(fields: dict[str, int]) -> None:
    with pytest.raises(InvalidRequest, match="60000 prompts") as refusal:
        complete(prompt=["abc"] * 60_000, tokenizer=UnusedTokenizer(), **fields)
    assert refusal.value.param == "prompt"


def costly(number: int) -> dict[str, object]:
    """Function with 60 different patterns."""
    patterns = {
        f"p{i}": {"type": "string", "pattern": f"^(a|b{number}){{1,50}}x[0-9]{{1,{i + 2}}}y.*{i}z$"}
        for i in range(60)
    }
    schema = {"properties": patterns, "additionalProperties": True}
    return {"type": "function", "function": {"name": f"f{number}", "parameters": schema}}


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_the_tools_of_a_call_have_one_budget(times: int) -> None:
    """Remembered schemas count too, so that servers agree. One time takes as long as the other tests."""
    tools = [costly(number) for number in range(40)]
    info = msgspec.structs.replace(FAKE_INFO, context_trained=10**6, kv_tokens=10**6)
    params = set()
    for _ in range(times):
        with pytest.raises(InvalidRequest, match=r"too large together.*fewer tools") as refusal:
            chat(tools=tools, info=info)
        params.add(refusal.value.param)
    (param,) = params
    assert 5 < int(param.removeprefix("tools[").partition("]")[0]) < 39


@pytest.mark.slow
def test_the_largest_number_of_ordinary_tools_passes() -> None:
    formats = {name: {"type": "string", "format": name} for name in ("date-time", "uuid", "email", "uri")}
    tools = [
        {
            "type": "function",
            "function": {"name": f"f{i}", "parameters": {"properties": {**formats, f"q{i}": {}}}},
        }
        for i in range(128)
    ]
    with pytest.raises(PromptTooLong):  # this model's context is small; schemas are looked at before
        chat(tools=tools)


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_messages_of_websockets_are_counted_too(engine: FakeEngine, path: str) -> None:
    async with opened(api(engine), path=path) as socket:
        socket.send({"type": "response.create", "request_id": "a", "odd": [[]] * MANY})
        answer = await socket.next()
        assert answer["status"] == 413
        assert answer["error"]["code"] == "too_many_values"


def test_a_schema_that_comes_as_text_is_counted_too() -> None:
    with pytest.raises(TooManyValues):
        chat(guided_json=json.dumps({"enum": [[]] * MANY}))


def test_arguments_of_many_values_stay_text_in_an_object() -> None:
    text = json.dumps({"a": [[]] * MANY})
    assert arguments_object(text) == {"arguments": text}
