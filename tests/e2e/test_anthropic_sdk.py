"""Anthropic's SDK with only the base URL changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from pydantic import BaseModel

from tests.lazy import Lazy
from tests.server_process import ServerProcess

anthropic = Lazy("anthropic")

pytestmark = pytest.mark.native

HELLO: Any = [{"role": "user", "content": "Tell me about the river and the bridge."}]
GREEDY: Any = {"model": "tiny", "max_tokens": 30, "messages": HELLO, "extra_body": {"temperature": 0}}
CITY: Any = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
CITY |= {"$schema": "https://json-schema.org/draft/2020-12/schema", "additionalProperties": False}
WEATHER: Any = {"name": "get_weather", "description": "The weather in a city", "input_schema": CITY}


@pytest.fixture(scope="module")
def sdk(server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        yield client


def text_of(message: anthropic.types.Message) -> str:
    return "".join(block.text for block in message.content if isinstance(block, anthropic.types.TextBlock))


def test_a_stream_has_the_text_of_the_whole_answer(sdk: anthropic.Anthropic) -> None:
    whole = sdk.messages.create(**GREEDY)
    with sdk.messages.stream(**GREEDY) as stream:
        texts = list(stream.text_stream)
        final = stream.get_final_message()
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", "tiny")
    assert whole._request_id is not None
    assert len(texts) > 3
    assert "".join(texts) == text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason == "max_tokens"
    usage, hits = final.usage, final.usage.cache_read_input_tokens
    assert hits
    assert usage.input_tokens + hits == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_a_tool_is_called_and_answered(sdk: anthropic.Anthropic) -> None:
    options: Any = {"tools": [WEATHER], "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    with sdk.messages.stream(model="tiny", max_tokens=60, messages=HELLO, **options) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        message = stream.get_final_message()
    (call,) = message.content
    assert message.stop_reason == "tool_use"
    assert isinstance(call, anthropic.types.ToolUseBlock)
    assert call.name == "get_weather"
    assert call.input["city"] in ("Rome", "Oslo")
    assert "".join(pieces)
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns: Any = [{"role": "assistant", "content": message.content}, {"role": "user", "content": [result]}]
    more: Any = {"tools": [WEATHER], "tool_choice": {"type": "none"}}
    assert text_of(sdk.messages.create(model="tiny", max_tokens=5, messages=[*HELLO, *turns], **more))


class City(BaseModel):
    name: Literal["Rome", "Oslo"]
    is_large: bool


def test_structured_output_is_parsed(sdk: anthropic.Anthropic) -> None:
    parsed = sdk.messages.parse(model="tiny", max_tokens=100, messages=HELLO, output_format=City)
    assert parsed.stop_reason == "end_turn"
    assert isinstance(parsed.parsed_output, City)


def test_errors_are_the_exceptions_that_users_catch(server: ServerProcess, sdk: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        sdk.messages.create(model="claude-none", max_tokens=1, messages=HELLO)
    message = "The model 'claude-none' does not exist on this server. The models are: tiny."
    error = {"type": "error", "error": {"type": "not_found_error", "message": message}}
    assert missing.value.body == {**error, "request_id": missing.value.request_id}
    empty: Any = {"role": "user", "content": []}
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\].content"):
        sdk.messages.create(model="tiny", max_tokens=1, messages=[empty])
    long: Any = {"role": "user", "content": "river " * 20_000}
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        sdk.messages.create(model="tiny", max_tokens=1, messages=[long])
