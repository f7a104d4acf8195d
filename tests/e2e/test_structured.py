"""Structured output and tools: the real server, the official SDK, LangChain. The model is random, so all that
it writes well-formed is the server's doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict, Field

from tests.e2e.serving import sdk
from tests.lazy import Lazy
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path

langchain_openai = Lazy("langchain_openai")

pytestmark = [pytest.mark.native, pytest.mark.thorough]

HELLO: Any = [{"role": "user", "content": "Tell me about the river and the bridge."}]
Short = Annotated[str, Field(max_length=8)]


class Bounded(BaseModel):
    """Forbids further fields, which a random model would never stop writing."""

    model_config = ConfigDict(extra="forbid")


class Review(Bounded):
    """A review of a product."""

    rating: int = Field(ge=1, le=5)
    pros: list[Short] = Field(max_length=2)
    cons: list[Short] = Field(max_length=2)
    summary: str = Field(max_length=16)


class Booking(Bounded):
    room: Literal["single", "double"]
    nights: int = Field(ge=1, le=30)


TOOLS: Any = [openai.pydantic_function_tool(Booking), openai.pydantic_function_tool(Review)]
BOOKING: Any = {"type": "function", "function": {"name": "Booking"}}


# Tags, and channels; JSON is what hermes writes; tests/api/test_tool_formats.py has what every family writes.
FORMATS = ["qwen3-coder", "harmony"]
MORE_FORMATS = [
    pytest.param(form, marks=pytest.mark.slow) for form in ("llama3", "mistral", "demo", "pythonic")
]


@pytest.fixture(scope="module", params=[*FORMATS, *MORE_FORMATS])
def any_format(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    yield from _serving(request.param)


@pytest.fixture(scope="module")
def hermes() -> Iterator[openai.OpenAI]:
    yield from _serving("hermes")


@pytest.fixture(scope="module", params=["tiny", pytest.param("demo", marks=pytest.mark.slow)])
def any_model(request: pytest.FixtureRequest) -> Iterator[openai.OpenAI]:
    """One that knows nothing of JSON, and one that has learnt it."""
    if request.param == "tiny":
        yield from _serving("hermes")
    else:
        yield from _serving("demo", model="demo")


def _serving(form: str, model: str | None = None) -> Iterator[openai.OpenAI]:
    options = ("--model", model or str(tiny_model_path()), "--served-model-name", "tiny")
    with ServerProcess(*options, "--tool-format", form) as process, sdk(process) as client:
        yield client


def ask(client: openai.OpenAI, **fields: Any) -> list[Any]:
    asked = {"model": "tiny", "messages": HELLO, "temperature": 1.5, "max_tokens": 300, "n": 4, **fields}
    choices: list[Any] = client.chat.completions.create(**asked).choices
    return choices


def arguments_of(choice: Any) -> list[tuple[str, dict[str, Any]]]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]


# -- the SDK ---------------------------------------------------------------------------------------------


def test_parse_gives_pydantic_models_also_of_a_stream(hermes: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "temperature": 1.5, "response_format": Review}
    for parse in (hermes.chat.completions.parse, hermes.beta.chat.completions.parse):
        answer = parse(**asked, max_tokens=300, n=4)
        assert {choice.finish_reason for choice in answer.choices} == {"stop"}
        assert all(isinstance(choice.message.parsed, Review) for choice in answer.choices)
    with hermes.chat.completions.stream(**asked, max_tokens=300) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Review)
    with pytest.raises(openai.LengthFinishReasonError):
        hermes.chat.completions.parse(**asked, max_tokens=5)


def test_text_completions_obey_too(hermes: openai.OpenAI) -> None:
    schema = {"name": "review", "schema": Review.model_json_schema(), "strict": True}
    answer = hermes.completions.create(
        model="tiny",
        prompt=["A", "B"],
        n=3,
        temperature=1.5,
        max_tokens=300,
        extra_body={"response_format": {"type": "json_schema", "json_schema": schema}},
    )
    assert len([Review.model_validate_json(choice.text) for choice in answer.choices]) == 6


@pytest.mark.parametrize(
    ("fields", "pattern"),
    [
        ({"choice": ["north", "south pole"]}, r"north|south pole"),
        ({"guided_regex": r"\d{3}-[a-f]{2}"}, r"\d{3}-[a-f]{2}"),
        ({"grammar": 'root ::= ("ab" | "c"){2,4} "."'}, r"(ab|c){2,4}\."),
    ],
)
def test_extensions(hermes: openai.OpenAI, fields: Any, pattern: str) -> None:
    for choice in ask(hermes, extra_body=fields):
        assert choice.finish_reason == "stop"
        jsonschema.validate(choice.message.content, {"pattern": f"^(?:{pattern})$"})


# -- tools, in every format --------------------------------------------------------------------------------


def test_calls_that_must_come(any_format: openai.OpenAI) -> None:
    for choice in ask(any_format, tools=TOOLS, tool_choice="required", parallel_tool_calls=False):
        assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
        ((name, arguments),) = arguments_of(choice)
        {"Booking": Booking, "Review": Review}[name].model_validate(arguments)
    for choice in ask(any_format, tools=TOOLS, tool_choice=BOOKING, logprobs=True):
        assert choice.finish_reason == "stop"
        ((name, arguments),) = arguments_of(choice)
        assert (name, Booking.model_validate(arguments).room in ("single", "double")) == ("Booking", True)
        assert choice.logprobs.content


def test_streamed_calls_are_the_whole_ones(any_format: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "messages": HELLO, "max_tokens": 200, "seed": 3, "temperature": 1.5}
    asked |= {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    whole = any_format.chat.completions.parse(**asked).choices[0]
    with any_format.chat.completions.stream(**asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"
    assert arguments_of(streamed) == arguments_of(whole)
    for choice in (whole, streamed):
        assert isinstance(choice.message.tool_calls[0].function.parsed_arguments, (Booking, Review))


def test_an_answer_or_calls_where_either_may_come(any_format: openai.OpenAI) -> None:
    """A random model may end at once, and may go on and on within a string."""
    for choice in ask(any_format, tools=TOOLS, max_tokens=100):
        assert (choice.message.content is None) == bool(choice.message.tool_calls) or choice.message.content
        assert choice.finish_reason in ("stop", "length", "tool_calls")
    form: Any = {"type": "json_schema", "json_schema": {"name": "b", "schema": Booking.model_json_schema()}}
    for choice in ask(any_format, tools=TOOLS, response_format=form):
        if choice.finish_reason == "length":
            continue
        if choice.message.tool_calls:
            assert {name for name, _ in arguments_of(choice)} <= {"Booking", "Review"}
        else:
            Booking.model_validate_json(choice.message.content)


def test_calls_and_their_results_go_back_in(any_format: openai.OpenAI) -> None:
    first = ask(any_format, tools=TOOLS, tool_choice=BOOKING, n=1)[0].message
    result = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "booked"}
    second = ask(any_format, messages=[*HELLO, first, result], tools=TOOLS, tool_choice=BOOKING, n=1)[0]
    assert arguments_of(second)[0][0] == "Booking"


# -- LangChain -------------------------------------------------------------------------------------------


def chat_model(client: openai.OpenAI, **fields: Any) -> langchain_openai.ChatOpenAI:
    return langchain_openai.ChatOpenAI(
        base_url=str(client.base_url), api_key="none", model="tiny", temperature=1.5, max_tokens=300, **fields
    )


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_pydantic_models(hermes: openai.OpenAI, method: Any) -> None:
    structured = chat_model(hermes).with_structured_output(Review, method=method)
    assert all(isinstance(each, Review) for each in structured.batch(["a", "b", "c", "d"]))


def test_langchain_in_json_mode(hermes: openai.OpenAI) -> None:
    """Any object is asked for: the empty one is made likely, for a random model would go on and on."""
    url = str(hermes.base_url).removesuffix("v1/")
    braces = httpx.post(url + "tokenize", json={"content": "{}"}).json()["tokens"]
    model = chat_model(hermes, logit_bias={str(token): 100 for token in braces})
    answers = model.with_structured_output(method="json_mode").batch(["a", "b", "c", "d"])
    assert answers == [{}] * 4


# -- many schemas ----------------------------------------------------------------------------------------

LEAVES: list[Any] = [
    {"type": "integer", "minimum": 1, "maximum": 5},
    {"type": "integer", "multipleOf": 7, "minimum": -20, "maximum": 50},
    {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    {"enum": ["red", "green", 3, None]},
    {"const": "only"},
    {"type": ["boolean", "null"]},
    {"type": "string", "maxLength": 6},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"const": "x"}], "items": False, "minItems": 2},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 9}, {"type": "null"}]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 8}]},
    {"type": "object", "maxProperties": 0},
    {"not": {"enum": [1, 2]}, "type": "integer", "minimum": 0, "maximum": 4},
    {"type": "array", "items": {"type": "array", "items": {"const": 0}, "maxItems": 2}, "maxItems": 2},
    {"$ref": "#/$defs/short"},
    {"type": "string", "enum": ["\n", '"', "é\u2028"]},
    {"if": {"const": "a"}, "then": {"const": "a"}, "else": {"const": "b"}},
    {"type": "string", "format": "time"},
]


DEFINITIONS: Any = {"$defs": {"short": {"type": "string", "maxLength": 5}}}


def in_object(leaf: Any) -> dict[str, Any]:
    properties = {"first": leaf, "second": {"type": "boolean"}}
    form = {"type": "object", "properties": properties, "required": ["first"], "additionalProperties": False}
    return {**form, **DEFINITIONS}


def in_list(leaf: Any) -> dict[str, Any]:
    items = {"anyOf": [leaf, {"const": "none"}]}
    return {"type": "array", "items": items, "minItems": 1, "maxItems": 2, **DEFINITIONS}


@pytest.mark.timeout(600)  # all of it is computing, of which a busy machine does little
def test_two_hundred_answers_of_fifty_schemas_are_valid(any_model: openai.OpenAI) -> None:
    """What ends by itself. The demo model loves zeros: some of its numbers go on until they are cut."""
    schemas = [wrap(leaf) for leaf in LEAVES for wrap in (in_object, in_list)]
    answers = asyncio.run(_all_answers(str(any_model.base_url), schemas))
    pairs = [(choice, schema) for schema, all_of in zip(schemas, answers, strict=True) for choice in all_of]
    cut = [choice.message.content for choice, _ in pairs if choice.finish_reason == "length"]
    ended = [(c.message.content, schema) for c, schema in pairs if c.finish_reason == "stop"]
    assert len(cut) + len(ended) == 200
    assert [
        text for text in cut if not text.rstrip("0123456789").endswith((".", "-", ",", ":", "[", "e"))
    ] == []
    assert len(cut) <= 20
    assert [text for text, schema in ended if not _is_valid(text, schema)] == []


async def _all_answers(url: str, schemas: list[dict[str, Any]]) -> list[list[Any]]:
    asked: Any = {"model": "tiny", "messages": HELLO, "temperature": 1.5, "max_tokens": 250, "n": 4}
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:

        async def ask_for(schema: dict[str, Any]) -> list[Any]:
            wanted: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
            answer = await client.chat.completions.create(**asked, response_format=wanted)
            return list(answer.choices)

        return await asyncio.gather(*map(ask_for, schemas))


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    return jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(json.loads(text))
