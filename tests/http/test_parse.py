"""Bytes in, a checked body or an InvalidRequest with its param out."""

from __future__ import annotations

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pydantic import ValidationError

from openai_cpu_server.api.admin.tokens import TokenizeBody
from openai_cpu_server.api.chat.schema import ChatBody
from openai_cpu_server.api.chat.to_params import checked_messages, message_attachments, unsupported_parts
from openai_cpu_server.api.completions.routes import CompletionBody
from openai_cpu_server.api.llama_server.schema import LlamaCompletionBody
from openai_cpu_server.api.ollama.schema import OllamaChatBody
from openai_cpu_server.api.pooling.schema import EmbeddingBody, RerankBody
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.http.ignored_params import (
    GENERATION_IGNORED,
    GENERATION_UNSUPPORTED,
    IgnoredParam,
    UnsupportedParam,
)
from openai_cpu_server.http.parse import MOST_IGNORED_NAMED, Body, Ignored, parse, parse_form, path_of
from tests.waiting import DEADLINE_S

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}
TYPE = "invalid_type"
TEXT_ONLY = "only parts of type 'text' are supported"
LONG_NOTE: dict[str, object] = {"metadata": {"k": "v" * 513}}


def chat(**fields: object) -> bytes:
    return json.dumps({"messages": MESSAGES, **fields}).encode()


def refused(data: bytes, schema: type[Body] = ChatBody) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema, data, lenient=False)
    return caught.value


@pytest.mark.parametrize(
    ("fields", "values"),
    [
        (
            [("temperature", "0.5"), ("stream", "true"), ("seed", "7")],
            {"temperature": 0.5, "stream": True, "seed": 7},
        ),
        ([("stop[]", "a"), ("stop[]", "b")], {"stop": ["a", "b"]}),
        ([("stop", "a"), ("stop", "b")], {"stop": ["a", "b"]}),
        ([("stop", "1")], {"stop": "1"}),
        (
            [("temperature", ""), ("stream", "False"), ("seed", " ")],
            {"temperature": None, "stream": False, "seed": None},
        ),
        (
            [("temperature", "0"), ("stream", "True"), ("seed", "None")],
            {"temperature": 0.0, "stream": True, "seed": None},
        ),
        (
            [("temperature", "undefined"), ("stream", "null"), ("seed", "8")],
            {"temperature": None, "stream": None, "seed": 8},
        ),
        ([("metadata[a]", "1"), ("metadata[b]", "2")], {"metadata": {"a": "1", "b": "2"}}),
    ],
)
def test_texts_of_a_form_become_the_types_of_json(
    fields: list[tuple[str, str]], values: dict[str, object]
) -> None:
    body, _ = parse_form(CompletionBody, [("prompt", "true"), *fields], lenient=False)
    assert body.prompt == "true"
    assert {name: getattr(body, name) for name in values} == values


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("seed", "x", TYPE),
        ("seed", "1.5", TYPE),
        ("stream", "1", TYPE),
        ("seed[]", "1", TYPE),
        ("a[b[", "", "unknown_parameter"),
    ],
)
def test_a_wrong_value_of_a_form_is_refused(name: str, text: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_form(CompletionBody, [("prompt", "a"), (name, text)], lenient=False)
    assert (refusal.value.param, refusal.value.code) == (name.removesuffix("[]"), code)


def test_threads_may_use_a_body_for_the_first_time_together() -> None:
    """Schemas are built when they are first used, which a version of pydantic without a lock gets wrong."""
    for _ in range(20):

        class Fresh(ChatBody):
            own: int

        barrier = threading.Barrier(8)

        def read(schema: type[Fresh] = Fresh, barrier: threading.Barrier = barrier) -> int:
            barrier.wait(DEADLINE_S)
            return parse(schema, chat(own=7), lenient=False)[0].own

        with ThreadPoolExecutor(8) as threads:
            assert [future.result() for future in [threads.submit(read) for _ in range(8)]] == [7] * 8


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
def test_a_body_that_is_not_a_json_object_has_a_code_and_no_param(data: bytes) -> None:
    error = refused(data)
    assert (error.param, error.code) == (None, "invalid_json")


@pytest.mark.parametrize(
    ("schema", "fields", "param"),
    [
        (ChatBody, {"stop": 5}, "stop"),
        (ChatBody, {"stop": ["a", ""]}, "stop[1]"),
        (ChatBody, {"logprobs": 2}, "logprobs"),
        (ChatBody, {"logit_bias": {"5": 101}}, "logit_bias.5"),
        (ChatBody, {"logit_bias": [1]}, "logit_bias"),
        (ChatBody, {"metadata": {"k": 1}}, "metadata.k"),
        (ChatBody, {"metadata": {"k" * 65: "v"}}, "metadata." + "k" * 64),
        (ChatBody, {"service_tier": 5}, "service_tier"),
        (ChatBody, {"priority": 1}, "priority"),
        (ChatBody, {"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        (ChatBody, {"stream_options": {"continuous_usage_stats": True}},
         "stream_options.continuous_usage_stats"),
        (ChatBody, {"stream_options": {"colour": 1}}, "stream_options.colour"),
        (ChatBody, {"model": 5}, "model"),
        (ChatBody, {"messages": "hi"}, "messages"),
        (ChatBody, {"messages": [{"content": "x"}]}, "messages[0].role"),
        (ChatBody, {"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        (ChatBody, {"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
        (ChatBody, {"messages": [{"role": "user", "images": ["eHg="]}]}, "messages[0].images"),
        (ChatBody, {"messages": [{"role": "assistant", "audio": {"id": "a"}}]}, "messages[0].audio"),
        (ChatBody, {"response_format": {"type": "json_object", "schema": 1}}, "response_format.schema"),
        (ChatBody, {"structured_outputs": {"regex": "a", "white": "b"}}, "structured_outputs.white"),
        (ChatBody, {"tools": [TOOL], "tool_choice": {**TOOL, "mode": "any"}}, "tool_choice.mode"),
        (CompletionBody, {"prompt": None}, "prompt"),
        (CompletionBody, {"prompt": 5}, "prompt"),
        (CompletionBody, {"prompt": []}, "prompt"),
        (CompletionBody, {"prompt": [[]]}, "prompt[0]"),
        (CompletionBody, {"prompt": ["a", 1]}, "prompt[1]"),
        (CompletionBody, {"prompt": [1, "a"]}, "prompt[1]"),
        (CompletionBody, {"prompt": [1, True]}, "prompt[1]"),
        (CompletionBody, {"prompt": [1.0]}, "prompt[0]"),
        (CompletionBody, {"prompt": [[1], ["a"]]}, "prompt[1][0]"),
        (CompletionBody, {"prompt": {"a": 1}}, "prompt"),
        (TokenizeBody, {"content": [72, 1.5]}, "content[1]"),
        (TokenizeBody, {"content": [None]}, "content[0]"),
        (LlamaCompletionBody, {"prompt": "a", "logit_bias": {"a": "b"}}, "logit_bias"),
        (LlamaCompletionBody, {"prompt": "a", "samplers": 3}, "samplers"),
        (LlamaCompletionBody, {"prompt": {"prompt_string": 3}}, "prompt"),
        (OllamaChatBody, {"model": "a", "keep_alive": {}}, "keep_alive"),
        (EmbeddingBody, {"input": ["a", 3]}, "input[1]"),
        (EmbeddingBody, {"input": "a", "truncate": []}, "truncate"),
        (ChatBody, {"messages": [{"role": "assistant", "function_call": {"name": "a", "arguments": 3}}]},
         "messages[0].function_call.arguments"),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_its_path(
    schema: type[Body], fields: dict[str, object], param: str
) -> None:
    """The alternatives of a union are not part of a path."""
    complete = {"messages": MESSAGES, **fields} if schema is ChatBody else fields
    assert refused(json.dumps(complete).encode(), schema).param == param


@pytest.mark.parametrize(
    ("kind", "lack", "supported"),
    [
        ("input_audio", "it contains no audio", ""),
        ("image_url", "it contains no image", ""),
        ("file", "it contains no file", ""),
        ("video_url", "this model has no vision and cannot see videos", TEXT_ONLY),
        (
            "hologram",
            "content of type 'hologram' is not supported",
            "parts are of type 'text', 'file', or, as the model sees or hears, 'image_url', 'input_audio'",
        ),
    ],
)
def test_parts_other_than_text_are_refused_with_a_reason(kind: str, lack: str, supported: str) -> None:
    parts = [{"type": "text", "text": "what is this?"}, {"type": kind, kind: {}}]
    question = {"role": "user", "content": parts}
    body, _ = parse(ChatBody, chat(messages=[*MESSAGES, question]), lenient=False)
    with pytest.raises(InvalidRequest) as caught:
        checked_messages(body.messages)
    error = caught.value
    param = "messages[1].content[1].type"
    assert (error.param, error.code) == (param, "unsupported_content")
    assert str(error) == f"Invalid value for '{param}': {lack}{supported and f'; {supported}'}."
    earlier, _ = parse(ChatBody, chat(messages=[question, *MESSAGES]), lenient=False)
    assert unsupported_parts(earlier.messages) == [f"messages[0].content[1] ({kind})"]
    (first_message, _) = checked_messages(earlier.messages)
    assert first_message["content"] == [parts[0], {"type": "text", "text": f"[{lack}]"}]


def test_a_picture_has_a_refusal_or_a_text_for_models_without_vision() -> None:
    """The model is not known yet. One without vision refuses a picture in the latest message, and gets a text
    in place of an earlier one."""
    question = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    body, _ = parse(ChatBody, chat(messages=[question, *MESSAGES, question]), lenient=False)
    checked_messages(body.messages)
    lack, place = "this model has no vision and cannot see images", "messages[2].content[0]"
    earlier, latest = message_attachments(body.messages)
    assert (earlier.refusal, earlier.lack, earlier.at) == (None, lack, "messages[0].content[0]")
    refusal = f"Invalid value for '{place}.type': {lack}; {TEXT_ONLY}."
    assert (latest.refusal, latest.refused_at, latest.at) == (refusal, f"{place}.type", place)


@pytest.mark.parametrize(
    ("fields", "expected", "code"),
    [
        ({"temperature": "1"}, "a number, but got a string", TYPE),
        ({"stream": 1}, "a boolean, but got an integer", TYPE),
        ({"n": 1.5}, "an integer, but got a number", TYPE),
        ({"stop": {}}, "a string or an array, but got an object", TYPE),
        ({"messages": None}, "an array, but got null", TYPE),
        ({"tool_choice": True}, "'none', 'auto', 'required' or an object, but got a boolean", TYPE),
        ({"temperature": 2.5}, "a value <= 2, but got 2.5", "decimal_above_max_value"),
        ({"typical_p": 0}, "a value > 0, but got 0", "decimal_below_min_value"),
        ({"n": 0}, "a value >= 1, but got 0", "integer_below_min_value"),
        ({"top_k": 10**50}, f"a value < 2147483648, but got 1{'0' * 39}", "integer_above_max_value"),
        ({"messages": []}, "at least 1 item, but got 0", "empty_array"),
        ({"stop": ["x"] * 65}, "at most 64 items, but got 65", "array_above_max_length"),
        ({"stop": ""}, "at least 1 character, but got 0", "string_below_min_length"),
        (
            {"metadata": {str(i): "" for i in range(17)}},
            "at most 16 properties, but got 17",
            "object_above_max_properties",
        ),
        (LONG_NOTE, "at most 512 characters, but got 513", "string_above_max_length"),
    ],
)
def test_an_error_names_the_expected_value(fields: dict[str, object], expected: str, code: str) -> None:
    error, kind = refused(chat(**fields)), "type" if code == TYPE else "value"
    name = "metadata.k" if fields == LONG_NOTE else next(iter(fields))
    assert (error.param, error.code) == (name, code)
    assert str(error) == f"Invalid {kind} for '{name}': expected {expected}."


@pytest.mark.parametrize("name", ["messages", "stop", "choice", "tools", "functions"])
def test_a_long_list_of_wrong_values_costs_no_more_than_one(name: str) -> None:
    for fields in (
        {name: [1, 1]},
        {"messages": [{"role": "user", "content": [1, 1]}]},
        {"messages": [{"role": "assistant", "tool_calls": [1, 1]}]},
    ):
        with pytest.raises(ValidationError) as caught:
            ChatBody.model_validate_json(chat(**fields))
        assert caught.value.error_count() == 1


def test_null_means_absent_for_every_optional_field() -> None:
    optional = [name for name, field in ChatBody.model_fields.items() if not field.is_required()]
    everything = dict.fromkeys([*optional, *GENERATION_IGNORED, *GENERATION_UNSUPPORTED, "no_such_field"])
    message = {**MESSAGES[0], **dict.fromkeys(("name", "tool_calls", "refusal", "audio"))}
    body, ignored = parse(ChatBody, chat(**{**everything, "messages": [message]}), lenient=False)
    plain, _ = parse(ChatBody, chat(), lenient=False)
    assert body.model_dump(include=set(optional)) == plain.model_dump(include=set(optional))
    assert ignored.names == ()


@pytest.mark.parametrize(
    ("data", "message", "param", "code"),
    [
        (
            chat(temprature=1, colour="red"),
            "Unknown parameters: 'temprature', 'colour'.",
            "temprature",
            "unknown_parameter",
        ),
        (b"{}", "Missing required parameter: 'messages'.", "messages", "missing_required_parameter"),
        (
            b'{"a"',
            "The request body is not valid JSON: EOF while parsing an object at line 1 column 4.",
            None,
            "invalid_json",
        ),
    ],
)
def test_unknown_and_missing_fields_are_named(
    data: bytes, message: str, param: str | None, code: str
) -> None:
    error = refused(data)
    assert (str(error), error.param, error.code) == (message, param, code)


def test_a_lenient_server_names_what_it_ignores() -> None:
    body, ignored = parse(ChatBody, chat(temprature=1, stream_options={"x,\ny": 1}), lenient=True)
    assert body.temperature is None
    assert parse(ChatBody, chat(), lenient=True)[1].headers == {}
    assert ignored.headers == {"x-ignored-parameters": "temprature,stream_options.x??y"}


def unlimited(field: str, limit: object) -> ChatBody:
    return parse(ChatBody, chat(**{field: limit}), lenient=True)[0]


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_a_lenient_server_takes_a_limit_of_minus_one_as_none(field: str) -> None:
    assert getattr(unlimited(field, -1), field) is None
    assert getattr(unlimited(field, 1), field) == 1
    for wrong in (-2, 0, -1.0, "-1"):
        with pytest.raises(InvalidRequest) as caught:
            unlimited(field, wrong)
        assert caught.value.param == field


def ignored_of(**fields: object) -> tuple[str, ...]:
    return parse(ChatBody, chat(**fields), lenient=False)[1].names


@pytest.mark.parametrize(("name", "param"), GENERATION_IGNORED.items())
def test_ignored_fields_are_accepted_and_named(name: str, param: IgnoredParam) -> None:
    assert ignored_of(**{name: "any-name"}) == (name,)
    assert [value for value in param.accepted if ignored_of(**{name: value})] == []


@pytest.mark.parametrize(("name", "refusal"), GENERATION_UNSUPPORTED.items())
def test_unsupported_fields_are_refused_except_for_neutral_values(
    name: str, refusal: UnsupportedParam
) -> None:
    for is_lenient in (True, False):
        with pytest.raises(InvalidRequest, match=re.escape(refusal.why)) as caught:
            parse(ChatBody, chat(**{name: {"type": "json_object"}}), lenient=is_lenient)
        assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    assert [value for value in refusal.accepted if ignored_of(**{name: value})] == []


@pytest.mark.parametrize(
    ("fields", "ignored"),
    [
        ({"response_format": {"type": "text"}}, ()),
        ({"tool_choice": "none"}, ()),
        ({"tools": []}, ()),
        ({"stream_options": {"include_obfuscation": False, "continuous_usage_stats": False}}, ()),
        ({"stream_options": {"include_obfuscation": True}}, ("stream_options.include_obfuscation",)),
        ({"store": 0}, ("store",)),
    ],
)
def test_other_fields_have_neutral_values_too(fields: dict[str, object], ignored: tuple[str, ...]) -> None:
    assert ignored_of(**fields) == ignored


def test_an_error_names_the_accepted_values() -> None:
    message = str(refused(chat(modalities=["text", "audio"])))
    assert message == (
        "'modalities' is not supported: the models answer with text only (only [\"text\"] is accepted)."
    )


def test_a_value_of_another_type_is_not_the_accepted_one_that_it_equals() -> None:
    assert refused(chat(use_beam_search=0)).param == "use_beam_search"


NOTES = {"cache_control": {"type": "ephemeral"}, "id": 7, "opts": {"visible": False}}


def test_notes_of_clients_in_messages_are_ignored_and_named_once() -> None:
    part = {"type": "text", "text": "hi", "annotations": [], **NOTES}
    function = {"name": "f", "arguments": "{}", "output": 1}
    call = {"index": 0, "id": "c1", "type": "function", "function": function}
    answer = {"role": "assistant", "tool_calls": [call], "reasoning_details": [{}], "audio": None}
    ignored = ignored_of(
        messages=[{"role": "user", "content": [part, part], "agent": "cli"}, answer, answer],
        tools=[{**TOOL, "cache_control": {}, "function": {"name": "f", "response": {}}}],
    )
    assert ignored == (
        "messages[].agent",
        "messages[].content[].annotations",
        "messages[].content[].cache_control",
        "messages[].content[].id",
        "messages[].content[].opts",
        "messages[].reasoning_details",
        "messages[].tool_calls[].index",
        "messages[].tool_calls[].function.output",
        "tools[].cache_control",
        "tools[].function.response",
    )


def test_the_header_stays_small() -> None:
    noted = {f"note{index}": 1 for index in range(1000)}
    _, ignored = parse(ChatBody, chat(messages=[{**MESSAGES[0], **noted}]), lenient=False)
    assert (len(ignored.names), ignored.names[-1]) == (MOST_IGNORED_NAMED + 1, "...")


def test_a_refusal_that_is_sent_back_is_text() -> None:
    parts = [{"type": "refusal", "refusal": "no"}]
    messages = [
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": parts},
    ]
    body, ignored = parse(ChatBody, chat(messages=messages), lenient=False)
    assert body.messages[0].refusal == "no"
    assert isinstance(body.messages[1].content, list)
    assert body.messages[1].content[0].text == "no"
    assert ignored.names == ("messages[].content[].refusal",)


def pooled(schema: type[EmbeddingBody] | type[RerankBody], **fields: object) -> Ignored:
    documents = [{"text": "b", "title": "c"}]
    base = {"input": "a"} if schema is EmbeddingBody else {"query": "a", "documents": documents}
    return parse(schema, json.dumps({**base, **fields}).encode(), lenient=False)[1]


def test_embeddings_and_reranking_have_hints_of_their_own() -> None:
    assert pooled(EmbeddingBody, input_type="query", user="u", normalize=True).names == ("input_type",)
    assert pooled(RerankBody, max_chunks_per_doc=1, service_tier="standard").names == (
        "max_chunks_per_doc",
        "service_tier",
        "documents[].title",
    )
    with pytest.raises(InvalidRequest, match="length 1"):
        pooled(EmbeddingBody, normalize=False)


def test_truncate_accepts_the_words_of_other_apis() -> None:
    for word, cuts in (("END", True), ("none", False), (True, True), (False, False)):
        body, _ = parse(EmbeddingBody, json.dumps({"input": "a", "truncate": word}).encode(), lenient=False)
        assert body.truncate is cuts
    with pytest.raises(InvalidRequest, match="'truncate'"):
        pooled(EmbeddingBody, truncate="START")


def test_whole_numbers_are_numbers() -> None:
    body, _ = parse(ChatBody, chat(temperature=1, seed=-(10**40)), lenient=False)
    assert (body.temperature, body.seed) == (1.0, -(10**40))


def test_paths_leave_out_the_additions_of_pydantic() -> None:
    body = {"messages": [{"content": [{}, {"type": "x"}]}], "dict": {"int": 1}}
    path = ("messages", 0, "content", "<list>", 1, "type")
    assert path_of(path, body) == "messages[0].content[1].type"
    assert path_of(("messages", 0, "role"), body, is_missing=True) == "messages[0].role"
    assert path_of(("dict", "int", "int"), body) == "dict.int"
    assert path_of(("dict", "no", "[key]"), {"dict": {"no": 1}}) == "dict.no"
    assert path_of((), body) is None


@pytest.mark.parametrize(
    "body",
    [
        chat(**{"x" * 100_000: 1}),
        chat(metadata={"x" * 100_000: 1}),
        chat(response_format={"type": "text", "x" * 100_000: 1}),
    ],
)
def test_a_name_of_a_client_is_shown_in_part(body: bytes) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(ChatBody, body, lenient=False)
    assert len(str(refusal.value)) < 300
    assert refusal.value.param is not None
    assert len(refusal.value.param) < 128
