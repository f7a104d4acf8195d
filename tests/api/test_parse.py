"""Bytes in, a checked body or an InvalidRequest with its param out."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from openai_cpu_server.api.schemas.chat import ChatBody, TextPart
from openai_cpu_server.api.schemas.completion import CompletionBody
from openai_cpu_server.api.schemas.parse import NOT_YET, parse, path_of
from openai_cpu_server.errors import InvalidRequest

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
TYPE = "invalid_type"


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def refused(data: bytes, schema: type[ChatBody] | type[CompletionBody] = ChatBody) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema, data, lenient=False)
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff",
        b'{"messages": "\xff"}',
        b'{"user": "\\ud800"}',
        b"[]",
        b"null",
        b'"text"',
        b"{} trailing",
        b'{"x":' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"seed":' + b"9" * 5000 + b"}",
    ],
)
def test_what_is_no_json_object_has_a_code_and_no_param(data: bytes) -> None:
    error = refused(data)
    assert (error.param, error.code) == (None, "invalid_json")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "1"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"top_k": 1.5}, "top_k"),
        ({"top_k": 2**31}, "top_k"),
        ({"min_p": -0.1}, "min_p"),
        ({"typical_p": 0}, "typical_p"),
        ({"repeat_penalty": 0}, "repeat_penalty"),
        ({"repeat_last_n": -1}, "repeat_last_n"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -2.5}, "frequency_penalty"),
        ({"n": 0}, "n"),
        ({"n": "2"}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stop": ""}, "stop"),
        ({"stop": 5}, "stop"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logprobs": 2}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"metadata": {"k": 1}}, "metadata.k"),
        ({"metadata": {"k": "v" * 513}}, "metadata.k"),
        ({"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 64),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"service_tier": "scale"}, "service_tier"),
        ({"priority": 1}, "priority"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream_options": {"colour": 1}}, "stream_options.colour"),
        ({"user": 5}, "user"),
        ({"model": 5}, "model"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "colour": "red"}]}, "messages[0].colour"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
    ],
)
def test_a_wrong_value_is_named(fields: dict[str, object], param: str) -> None:
    assert refused(chat(**fields)).param == param


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_parts_that_are_no_text_are_named_by_their_type(kind: str) -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": kind, kind: {"url": "data:"}}]
    error = refused(chat(messages=[*MESSAGES, {"role": "user", "content": parts}]))
    assert error.param == "messages[1].content[1].type"


@pytest.mark.parametrize(
    ("fields", "message", "code"),
    [
        ({"temperature": "1"}, "Invalid type for 'temperature': expected a number, but got a string.", TYPE),
        ({"stream": 1}, "Invalid type for 'stream': expected a boolean, but got an integer.", TYPE),
        ({"n": 1.5}, "Invalid type for 'n': expected an integer, but got a number.", TYPE),
        ({"stop": {}}, "Invalid type for 'stop': expected a string or an array, but got an object.", TYPE),
        ({"messages": None}, "Invalid type for 'messages': expected an array, but got null.", TYPE),
        (
            {"tools": [TOOL], "tool_choice": True},
            "Invalid type for 'tool_choice': expected 'none', 'auto', 'required' or an object,"
            " but got a boolean.",
            TYPE,
        ),
        (
            {"temperature": 2.5},
            "Invalid value for 'temperature': expected a value <= 2, but got 2.5.",
            "decimal_above_max_value",
        ),
        (
            {"typical_p": 0},
            "Invalid value for 'typical_p': expected a value > 0, but got 0.",
            "decimal_below_min_value",
        ),
        ({"n": 0}, "Invalid value for 'n': expected a value >= 1, but got 0.", "integer_below_min_value"),
        (
            {"top_k": 10**50},
            "Invalid value for 'top_k': expected a value < 2147483648, but got 1" + "0" * 39 + ".",
            "integer_above_max_value",
        ),
        (
            {"messages": []},
            "Invalid value for 'messages': expected at least 1 item, but got 0.",
            "empty_array",
        ),
        (
            {"stop": ["x"] * 17},
            "Invalid value for 'stop': expected at most 16 items, but got 17.",
            "array_above_max_length",
        ),
        (
            {"stop": ""},
            "Invalid value for 'stop': expected at least 1 character, but got 0.",
            "string_below_min_length",
        ),
        (
            {"metadata": {"k": "v" * 513}},
            "Invalid value for 'metadata.k': expected at most 512 characters, but got 513.",
            "string_above_max_length",
        ),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "Invalid value for 'metadata': expected at most 16 properties, but got 17.",
            "object_above_max_properties",
        ),
        (
            {"service_tier": "scale"},
            "Invalid value for 'service_tier': expected 'auto', 'default', 'flex' or 'priority'.",
            "invalid_value",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "Invalid value for 'messages[0].content[0].type': content of type 'image_url' is not supported,"
            " only 'text'.",
            "invalid_value",
        ),
    ],
)
def test_it_is_said_what_was_expected(fields: dict[str, object], message: str, code: str) -> None:
    error = refused(chat(**fields))
    assert (str(error), error.code) == (message, code)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [1, 1]},
        {"messages": [{"role": "user", "content": [1, 1]}]},
        {"messages": [{"role": "assistant", "tool_calls": [1, 1]}]},
        {"stop": [1, 1]},
        {"choice": [1, 1]},
        {"tools": [1, 1]},
        {"functions": [1, 1]},
    ],
)
def test_a_long_list_of_wrong_values_costs_no_more_than_one(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatBody.model_validate_json(chat(**fields))
    assert caught.value.error_count() == 1


def test_it_is_said_where_json_ends_to_be_json() -> None:
    message = str(refused(b'{"a"'))
    assert message == "The request body is not valid JSON: EOF while parsing an object at line 1 column 4."


def test_a_missing_parameter_is_named() -> None:
    error = refused(b"{}")
    assert str(error) == "Missing required parameter: 'messages'."
    assert (error.param, error.code) == ("messages", "missing_required_parameter")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        (5, "prompt"),
        ([], "prompt"),
        ([[]], "prompt[0]"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([[1], ["a"]], "prompt[1][0]"),
        ({"a": 1}, "prompt"),
    ],
)
def test_prompts_of_wrong_shape_are_named(prompt: object, param: str) -> None:
    assert refused(json.dumps({"prompt": prompt}).encode(), CompletionBody).param == param


@pytest.mark.parametrize("prompt", ["text", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts_come_in_four_shapes(prompt: object) -> None:
    body, _ = parse(CompletionBody, json.dumps({"prompt": prompt}).encode(), lenient=False)
    assert body.prompt == prompt


def test_null_means_absent_for_every_optional_field() -> None:
    optional = [name for name, field in ChatBody.model_fields.items() if not field.is_required()]
    everything = dict.fromkeys([*optional, *NOT_YET, "no_such_field"])
    message = {
        "role": "user",
        "content": "hi",
        "name": None,
        "tool_calls": None,
        "refusal": None,
        "audio": None,
    }
    body, ignored = parse(ChatBody, chat(**{**everything, "messages": [message]}), lenient=False)
    plain, _ = parse(ChatBody, chat(), lenient=False)
    assert body.model_dump(include=set(optional)) == plain.model_dump(include=set(optional))
    assert ignored.names == ()


def test_unknown_fields_are_refused_by_name() -> None:
    error = refused(chat(temprature=1, colour="red"))
    assert str(error) == "Unknown parameters: 'temprature', 'colour'."
    assert (error.param, error.code) == ("temprature", "unknown_parameter")


def test_a_lenient_server_names_what_it_ignores() -> None:
    body, ignored = parse(ChatBody, chat(temprature=1, stream_options={"x,\ny": 1}), lenient=True)
    assert body.temperature is None
    assert ignored.headers == {"x-ignored-parameters": "temprature,stream_options.x??y"}


def test_nothing_ignored_is_no_header() -> None:
    _, ignored = parse(ChatBody, chat(), lenient=True)
    assert ignored.headers == {}


@pytest.mark.parametrize("name", NOT_YET)
@pytest.mark.parametrize("lenient", [True, False])
def test_what_is_not_done_is_refused_even_by_a_lenient_server(name: str, lenient: bool) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ChatBody, chat(**{name: {"type": "json_object"}}), lenient=lenient)
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tool_choice": "none"},
        {"store": False},
        {"modalities": ["text"]},
    ],
)
def test_values_that_ask_for_nothing_are_accepted(fields: dict[str, object]) -> None:
    _, ignored = parse(ChatBody, chat(**fields), lenient=False)
    assert ignored.names == ()


def test_a_value_that_only_equals_an_accepted_one_is_refused() -> None:
    assert refused(chat(store=0)).param == "store"


def test_text_parts_and_tool_calls_are_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "be brief"}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "c1"},
    ]
    body, _ = parse(ChatBody, chat(messages=messages), lenient=False)
    assert body.messages[0].content == [TextPart(type="text", text="be brief")]
    assert body.messages[1].tool_calls is not None
    assert body.messages[1].tool_calls[0].function.name == "f"


def test_whole_numbers_are_numbers() -> None:
    body, _ = parse(ChatBody, chat(temperature=1, seed=-(10**40)), lenient=False)
    assert (body.temperature, body.seed) == (1.0, -(10**40))


def test_paths_leave_out_what_pydantic_adds() -> None:
    assert path_of(("messages", 0, "content", "<list>", 1, "type")) == "messages[0].content[1].type"
    assert path_of(()) is None
