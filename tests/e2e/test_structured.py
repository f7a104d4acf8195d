"""Structured output and tools of the official SDK, on the real server.

The model has random weights, so only the server makes its output well-formed. All tool formats:
tests/api/test_tool_formats.py. Schemas on the tiny model: tests/llama/test_constraints.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.e2e.serving import sdk, tiny_server

pytestmark = [pytest.mark.native, pytest.mark.thorough]

Short = Annotated[str, Field(max_length=8)]


class Bounded(BaseModel):
    """Model whose schema does not mention other properties, while validation refuses them."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra=lambda schema: schema.pop("additionalProperties")
    )


class Review(Bounded):
    """A review of a product."""

    rating: int = Field(ge=1, le=5)
    pros: list[Short] = Field(max_length=2)
    cons: list[Short] = Field(max_length=2)
    summary: str = Field(max_length=16)


class Booking(Bounded):
    room: Literal["single", "double"]
    nights: int = Field(ge=1, le=30)


PARAMS: Any = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Tell me about the river and the bridge."}],
    "temperature": 1.5,
    "max_tokens": 300,
}
TOOLS: Any = [openai.pydantic_function_tool(Booking), openai.pydantic_function_tool(Review)]
TOOL_PARAMS: Any = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}


@pytest.fixture(scope="module", params=["qwen3-coder", pytest.param("harmony", marks=pytest.mark.slow)])
def any_format(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """Client of a tool format with tags, or with channels. Most other formats are JSON."""
    with tiny_server("--tool-format", request.param) as process, sdk(process) as client:
        yield client


def arguments_of(choice: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]


def test_parse_gives_pydantic_models_also_of_a_stream(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(**PARAMS, response_format=Review, n=4)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}
    assert all(isinstance(choice.message.parsed, Review) for choice in answer.choices)
    with client.chat.completions.stream(**PARAMS, response_format=Review) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Review)
    with pytest.raises(openai.LengthFinishReasonError):
        client.chat.completions.parse(**{**PARAMS, "max_tokens": 5}, response_format=Review)


def test_calls_fit_their_tools_and_streamed_ones_are_the_whole_ones(any_format: openai.OpenAI) -> None:
    for choice in any_format.chat.completions.create(**PARAMS, **TOOL_PARAMS, n=4).choices:
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        ((name, arguments),) = arguments_of(choice)
        {"Booking": Booking, "Review": Review}[name].model_validate(arguments)
    whole = any_format.chat.completions.parse(**PARAMS, **TOOL_PARAMS, seed=3).choices[0]
    with any_format.chat.completions.stream(**PARAMS, **TOOL_PARAMS, seed=3) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"
    assert arguments_of(streamed) == arguments_of(whole)
    for choice in (whole, streamed):
        assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, (Booking, Review))
