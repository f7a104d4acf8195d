"""Tool calls in the format of each model family: the texts that its grammar allows, and the parsed calls."""

from __future__ import annotations

import functools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest
from openai_cpu_server.prompt.tool_formats import (
    TOOL_FORMATS,
    CallArguments,
    CallBegin,
    Content,
    Part,
    ThinkingText,
    WrittenCall,
)
from tests.api.following import Follower
from tests.api.resolving import chat
from tests.prompt.test_tool_formats import SINGLE, TRANSCRIPTS

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "where"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 5},
        "tags": {"type": "array", "items": {"type": "string"}},
        "now": {"type": "boolean"},
    },
    "required": ["city"],
}


def tool(name: str, parameters: object = None) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


TOOLS = [tool("weather", WEATHER), tool("now")]
NAMED = {"type": "function", "function": {"name": "weather"}}
ROME = ("weather", {"city": "Rome", "days": 3})
A_NUMBER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANSWER = {"type": "json_schema", "json_schema": {"name": "n", "schema": A_NUMBER}}


def compact(text: str) -> str:
    """Return the call with the white space of grammars that are not flexible."""
    text = re.sub(r'\{"(name|tool_name)": "(\w+)", "(\w+)": ', r'{"\1":"\2","\3":', text)
    return text.replace('{"city": "Rome", "days": 3}', '{"city":"Rome","days":3}')


ONE = {name: compact(form.written([WrittenCall(*ROME)])) for name, form in TOOL_FORMATS.items()}
TWO = {name: compact(text) for name, text in TRANSCRIPTS.items() if name not in ("harmony", *SINGLE)}
CONTROL = (
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|/tool_call|>", "<|python_tag|>"),
    *("<start_function_call>", "<end_function_call>", "<escape>", "<|tool_call>", "<tool_call|>"),
    *('<|"|>', "<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    *("<|tools_prefix|>", "<|tools_suffix|>", "<|tool_call_start|>", "｜DSML｜", "]<]minimax[>["),
    "<tool_calls:opensource>",
    *("<tool_call:opensource>", "<tool_sep:opensource>", "<arg_key:opensource>", "</arg_key:opensource>"),
    *("<arg_value:opensource>", "</arg_value:opensource>", "</tool_call:opensource>", "<|open|>", "<|sep|>"),
    *("<|close|>", "<|function_call|>", "<|message_sep|>", "<|role_sep|>", "<|tool_calls|>", "<|calls|>"),
    *("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>"),
)
TAUGHT, PLAIN = Follower(CONTROL), Follower()
"""Vocabularies with the control tokens of all families, and without them."""
BOTH = pytest.mark.parametrize(
    "follower", [pytest.param(TAUGHT, id="control"), pytest.param(PLAIN, id="text", marks=pytest.mark.slow)]
)


def resolve(form: str, follower: Follower = TAUGHT, **fields: object) -> ResolvedRequest:
    return resolve_cached(form, follower, json.dumps(fields))


@functools.cache
def resolve_cached(form: str, follower: Follower, fields: str) -> ResolvedRequest:
    return chat(**{"form": form, "tokenizer": follower.tokenizer, "tools": TOOLS, **json.loads(fields)})


def accepts(call: ResolvedRequest, follower: Follower, text: str) -> bool:
    constraint = call.requests[0].constraint
    assert constraint is not None
    return follower.accepts(constraint, text)


def read(reader: PartsReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, object]]]:
    """Return thoughts, content, and calls with parsed arguments."""
    parts: list[Part] = [part for piece in pieces for part in reader.read_texts("", piece, has_ended=False)]
    parts += reader.read_texts("", "")
    thoughts, content, calls = "", "", list[tuple[str, str]]()
    for part in parts:
        match part:
            case ThinkingText(text=text):
                thoughts += text
            case Content(text=text):
                content += text
            case CallBegin(name=name):
                calls.append((name, ""))
            case CallArguments(text=text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return thoughts, content, [(name, json.loads(text)) for name, text in calls]


@BOTH
@pytest.mark.parametrize("form", ONE)
def test_the_grammar_accepts_only_calls_of_its_family(form: str, follower: Follower) -> None:
    good, text = ONE[form], "<|channel|>final<|message|>Hello." if form == "harmony" else "Hello."
    wrong = (good.replace("weather", "whether"), good.replace("3", "9"), good[:-1], f"{good} and more")
    for choice in ("auto", "required"):
        call = resolve(form, follower, tool_choice=choice)
        assert accepts(call, follower, good)
        assert not any(accepts(call, follower, wrong_text) for wrong_text in wrong)
        assert accepts(call, follower, text) is (choice == "auto")
        if form in TWO:
            sequential = resolve(form, follower, tool_choice=choice, parallel_tool_calls=False)
            assert accepts(call, follower, TWO[form])
            assert not accepts(sequential, follower, TWO[form])


@pytest.mark.parametrize("form", ONE)
def test_a_named_function_is_called_once_and_free_text_may_have_stop_strings(form: str) -> None:
    assert resolve(form, stop="x").requests[0].stop == ("x",)
    call = resolve(form, tool_choice=NAMED)
    assert accepts(call, TAUGHT, ONE[form])
    for text in (ONE[form].replace("weather", "now"), TWO.get(form, "text"), "text"):
        assert not accepts(call, TAUGHT, text)


@BOTH
@pytest.mark.parametrize("form", ONE)
def test_a_structured_answer_is_allowed_beside_calls(form: str, follower: Follower) -> None:
    call = resolve(form, follower, response_format=ANSWER)
    answer = '{"a":7}'
    shown = f"<|channel|>final <|constrain|>json<|message|>{answer}" if form == "harmony" else answer
    assert accepts(call, follower, shown)
    assert accepts(call, follower, ONE[form])
    assert not accepts(call, follower, shown.replace("7", '"x"'))
    assert not accepts(call, follower, "Hello.")
    assert read(call.reader(), list(shown)) == ("", answer, [])
    assert read(call.reader(), list(ONE[form])) == ("", "", [ROME])


RAW = [
    "qwen3-coder",
    "glm",
    "seed-oss",
    "minimax",
    "functiongemma",
    "gemma4",
    "hy3",
    "deepseek-v4",
    "kimi-k3",
]


@pytest.mark.parametrize("form", RAW)
@BOTH
@settings(max_examples=30, deadline=None)
@given(city=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30))
def test_raw_text_becomes_a_json_string(form: str, follower: Follower, city: str) -> None:
    text = ONE[form].replace("Rome", city)
    call = resolve(form, follower)
    if accepts(call, follower, text):
        assert read(call.reader(), list(text)) == ("", "", [("weather", {"city": city, "days": 3})])
    else:
        assert "<" in city or any(token in city for token in CONTROL)


SPLIT = [name for name, form in TOOL_FORMATS.items() if form.splits_parameters]
FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}, "limit": {"type": "integer"}},
    "required": ["path"],
}


@pytest.mark.parametrize("form", SPLIT)
def test_parameters_may_have_any_order_unless_the_tool_is_strict(form: str) -> None:
    free, strict = (split(FILE, form=form, strict=strict) for strict in (None, True))
    values = {"path": "a", "offset": 1, "limit": 2}
    for names in ("path offset limit", "limit path offset", "offset path", "path limit"):
        order = {name: values[name] for name in names.split()}
        written = TOOL_FORMATS[form].written([WrittenCall("f", order)])
        assert accepts(free, PLAIN, written)
        assert accepts(strict, PLAIN, written) is (names in ("path offset limit", "path limit"))
        assert read(free.reader(), [written]) == ("", "", [("f", order)])
    lacking = TOOL_FORMATS[form].written([WrittenCall("f", {"limit": 2, "offset": 1})])
    twice = TOOL_FORMATS[form].written([WrittenCall("f", {"path": "a", "limit": 2, "LIMIT": 3})])
    assert not accepts(free, PLAIN, lacking)
    assert not accepts(free, PLAIN, twice.replace("LIMIT", "limit"))


@pytest.mark.parametrize("form", SPLIT)
def test_parameters_may_have_any_name_that_the_format_can_read(form: str) -> None:
    names = ["größe", "$filter", "a b", "a:b", "a=b", "a,b", "x-y", "max(1)", "it's", "@type", "a>b", "a.b"]
    is_readable = TOOL_FORMATS[form].names_parameter
    arguments = {name: 1 for name in names if is_readable(name)}
    assert {"größe", "$filter", "a b", "x-y", "@type", "a.b"} <= arguments.keys()
    assert not any(map(is_readable, ["", "<bos>", "<|end|>", "a\nb", "a\x00"]))
    call = split({"type": "object", "properties": {name: {"type": "integer"} for name in names}}, form=form)
    written = TOOL_FORMATS[form].written([WrittenCall("f", arguments)])
    assert accepts(call, PLAIN, written)
    assert read(call.reader(), list(written)) == ("", "", [("f", arguments)])


def split(parameters: object, *, form: str = "qwen3-coder", strict: bool | None = None) -> ResolvedRequest:
    function = {"name": "f", "parameters": parameters, "strict": strict}
    return chat(form=form, tools=[{"type": "function", "function": function}], tool_choice="required")


KINDS = {"$defs": {"kind": {"type": "string", "enum": ["a", "b c"]}}}
UNIONS = [
    ({"type": ["string", "null"]}, ["Rome", "5", "true", '"x"', "", "nul", "{1}", None]),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ["Rome", "-1.5", "n" * 400, " null", None]),
    ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, ["Rome", "5.5", "null", "05", 5, -7]),
    ({"type": ["number", "boolean", "string"]}, ["Rome", "null", 5, -2.5e-07, True, False]),
    ({"anyOf": [{"type": ["string", "number"]}, {"type": "null"}]}, ["Rome", "false", 1e300, None]),
    ({"type": ["string", "null"], "enum": ["a", "b c", None]}, ["a", "b c", None]),
    ({"anyOf": [{"enum": ["a", "b c"], "type": "string"}, {"type": "boolean"}]}, ["b c", True, False]),
    ({"anyOf": [{"$ref": "#/$defs/kind"}, {"type": "null"}], "default": None}, ["a", "b c", None]),
    ({"$ref": "#/$defs/kind"}, ["a", "b c"]),
]


@pytest.mark.parametrize("form", SPLIT)
@pytest.mark.parametrize(("schema", "values"), UNIONS)
def test_a_string_beside_other_scalars_is_raw_where_strings_are(
    form: str, schema: dict[str, object], values: list[object]
) -> None:
    whole = {"type": "object", "properties": {"a": schema}, "required": ["a"], **KINDS}
    call = split(whole, form=form, strict=True)
    for value in values:
        text = TOOL_FORMATS[form].written([WrittenCall("f", {"a": value})])
        assert accepts(call, PLAIN, text), text
        for pieces in ([text], list(text)):
            assert read(call.reader(), pieces) == ("", "", [("f", {"a": value})])
    other = TOOL_FORMATS[form].written([WrittenCall("f", {"a": "c"})])
    assert accepts(call, PLAIN, other) is ("Rome" in values)


def test_a_null_that_two_alternatives_of_oneof_allow_is_not_accepted() -> None:
    schema = {"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}
    call = split({"type": "object", "properties": {"a": schema}, "required": ["a"]}, strict=True)
    assert not accepts(call, PLAIN, TOOL_FORMATS["qwen3-coder"].written([WrittenCall("f", {"a": None})]))


PART = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "zip": {"anyOf": [{"type": "string", "pattern": "^[0-9]{5}$"}, {"type": "null"}]},
        "kind": {"enum": ["it's", "<b>", "5", "a b"]},
        "sizes": {"type": "array", "items": {"type": "array", "items": {"type": "number"}}},
        "on": {"type": "boolean"},
        "item": {"type": "string", "maxLength": 3},
        "a b": {"type": "integer"},
        "more": {"type": "object", "additionalProperties": {"$ref": "#/$defs/part"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "part": {"$ref": "#/$defs/part"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 2},
        "any": {},
    },
    "$defs": {"part": PART},
}
VALUES: list[dict[str, object]] = [
    {"part": {"name": "5"}},
    {"part": {"name": "true", "zip": "00501", "kind": "5"}},
    {"part": {"name": 'it\'s "a"\n', "zip": None, "kind": "it's", "item": ""}},
    {"part": {"name": "", "sizes": [[1, 2.5], [], [-3e7]], "on": True}},
    {"part": {"name": "Zoë 🎈", "on": False, "item": "5"}, "parts": []},
    {"part": {"name": "a", "a b": 7}},
    {"parts": [{"name": "a", "more": {"b": {"name": "c", "more": {"d": {"name": "e"}}}}}, {"name": "b"}]},
    {"parts": [{"name": "a", "more": {}}]},
    {"any": [1, {"a": ["b c", None, True]}]},
    {"any": {"a": {"b": "c"}}},
]
WRONG: list[dict[str, object]] = [
    {"part": {"zip": "00501"}},
    {"part": {"name": "a", "zip": "5"}},
    {"part": {"name": "a", "kind": "b"}},
    {"part": {"name": "a", "kind": 5.5}},
    {"part": {"name": "a", "item": "abcd"}},
    {"part": {"name": "a", "sizes": [["b"]]}},
    {"part": {"name": "a", "other": 1}},
    {"part": {"name": "a", "on": 1}},
    {"part": ["a"]},
    {"parts": [{"name": "a"}] * 3},
    {"parts": [{"name": "a", "more": {"b": {"zip": None}}}]},
]


@BOTH
@pytest.mark.parametrize("form", ["hermes", *SPLIT])
def test_nested_values_follow_their_schema_in_the_formats_notation(form: str, follower: Follower) -> None:
    call = chat(
        form=form,
        tokenizer=follower.tokenizer,
        tools=[tool("f", NESTED)],
        tool_choice="required",
        is_flexible=True,
    )
    for arguments in VALUES:
        text = TOOL_FORMATS[form].written([WrittenCall("f", arguments)])
        assert accepts(call, follower, text), text
        assert read(call.reader(), list(text)) == ("", "", [("f", arguments)])
    for arguments in WRONG:
        text = TOOL_FORMATS[form].written([WrittenCall("f", arguments)])
        assert not accepts(call, follower, text), text
