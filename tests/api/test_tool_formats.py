"""Calls as each family of models writes them: what its grammar takes, and what is read from it."""

from __future__ import annotations

import functools
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openai_cpu_server.api.asking.call import Call, PartsReader
from openai_cpu_server.api.asking.resolve import UNENFORCED
from openai_cpu_server.errors import InvalidRequest
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


TOOLS = [tool("get_weather", WEATHER), tool("get_time")]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ROME = ("get_weather", {"city": "Rome", "days": 3})
TIME = ("get_time", {})
ANSWER = {
    "type": "json_schema",
    "json_schema": {
        "name": "n",
        "schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}
# One call, and two of them, as each family's documentation and templates write them.
ONE = {
    "demo": '<|tool_call|>{"name":"get_weather","arguments":{"city":"Rome","days":3}}',
    "hermes": '<tool_call>\n{"name":"get_weather","arguments":{"city":"Rome","days":3}}\n</tool_call>',
    "llama3": '{"name":"get_weather","parameters":{"city":"Rome","days":3}}',
    "pythonic": "[get_weather(city='Rome', days=3)]",
    "mistral": '[TOOL_CALLS][{"name":"get_weather","arguments":{"city":"Rome","days":3}}]',
    "mistral-args": '[TOOL_CALLS]get_weather[ARGS]{"city":"Rome","days":3}',
    "mistral-ids": '[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{"city":"Rome","days":3}',
    "qwen3-coder": "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
    "deepseek": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    '{"city":"Rome","days":3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "deepseek-v3.1": "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city":"Rome","days":3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    "granite": '<|tool_call|>[{"name":"get_weather","arguments":{"city":"Rome","days":3}}]',
    "phi4": '<|tool_call|>[{"name":"get_weather","arguments":{"city":"Rome","days":3}}]<|/tool_call|>',
    "phi4-tags": '<|tool_call|>{"name":"get_weather","arguments":{"city":"Rome","days":3}}<|/tool_call|>',
    "functools": 'functools[{"name":"get_weather","arguments":{"city":"Rome","days":3}}]',
    "functiongemma": "<start_function_call>call:get_weather{city:<escape>Rome<escape>,days:3}"
    "<end_function_call>",
    "gemma4": '<|tool_call>call:get_weather{city:<|"|>Rome<|"|>,days:3}<tool_call|>',
    "harmony": "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city":"Rome","days":3}',
    "kimi": "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city":"Rome","days":3}<|tool_call_end|><|tool_calls_section_end|>',
    "nemotron": '<TOOLCALL>[{"name":"get_weather","arguments":{"city":"Rome","days":3}}]</TOOLCALL>',
    "command-r7b": '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": '
    '{"city":"Rome","days":3}}]<|END_ACTION|>',
    "apertus": '<|tools_prefix|>[{"get_weather":{"city":"Rome","days":3}}]<|tools_suffix|>',
    "seed-oss": "<seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome</parameter>\n"
    "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Rome</parameter>\n'
    '<parameter name="days">3</parameter>\n</invoke>\n</minimax:tool_call>',
    "lfm2": "<|tool_call_start|>[get_weather(city='Rome', days=3)]<|tool_call_end|>",
}
ONE["generic"] = ONE["hermes"]
TWO = {
    "demo": ONE["demo"] + '\n{"name":"get_time","arguments":{}}',
    "hermes": ONE["hermes"] + '\n<tool_call>\n{"name":"get_time","arguments":{}}\n</tool_call>',
    "llama3": ONE["llama3"] + '; {"name":"get_time","parameters":{}}',
    "pythonic": "[get_weather(city='Rome', days=3), get_time()]",
    "mistral": ONE["mistral"][:-1] + ', {"name":"get_time","arguments":{}}]',
    "mistral-args": ONE["mistral-args"] + "[TOOL_CALLS]get_time[ARGS]{}",
    "mistral-ids": ONE["mistral-ids"] + "[TOOL_CALLS]get_time[CALL_ID]123456789[ARGS]{}",
    "qwen3-coder": ONE["qwen3-coder"] + "\n<tool_call>\n<function=get_time>\n</function>\n</tool_call>",
    "glm": ONE["glm"] + "\n<tool_call>get_time\n</tool_call>",
    "deepseek": ONE["deepseek"].removesuffix("<｜tool▁calls▁end｜>")
    + "\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time\n```json\n{}\n```<｜tool▁call▁end｜>"
    "<｜tool▁calls▁end｜>",
    "deepseek-v3.1": ONE["deepseek-v3.1"].removesuffix("<｜tool▁calls▁end｜>")
    + "<｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
    "granite": ONE["granite"][:-1] + ', {"name":"get_time","arguments":{}}]',
    "phi4": ONE["phi4"].replace("]<", ',{"name":"get_time","arguments":{}}]<'),
    "phi4-tags": ONE["phi4-tags"] + '<|tool_call|>{"name":"get_time","arguments":{}}<|/tool_call|>',
    "functools": ONE["functools"][:-1] + ', {"name":"get_time","arguments":{}}]',
    "functiongemma": ONE["functiongemma"] + "<start_function_call>call:get_time{}<end_function_call>",
    "gemma4": ONE["gemma4"] + "<|tool_call>call:get_time{}<tool_call|>",
    "kimi": ONE["kimi"].removesuffix("<|tool_calls_section_end|>")
    + "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
    "<|tool_calls_section_end|>",
    "nemotron": ONE["nemotron"].replace("]<", ', {"name":"get_time","arguments":{}}]<'),
    "command-r7b": ONE["command-r7b"].replace(
        "]<", ', {"tool_call_id": "1", "tool_name": "get_time", "parameters": {}}]<'
    ),
    "apertus": ONE["apertus"].replace("]<", ', {"get_time": {}}]<'),
    "seed-oss": ONE["seed-oss"] + "\n<seed:tool_call>\n<function=get_time>\n</function>\n</seed:tool_call>",
    "minimax": ONE["minimax"].removesuffix("\n</minimax:tool_call>")
    + '\n<invoke name="get_time">\n</invoke>\n</minimax:tool_call>',
    "lfm2": "<|tool_call_start|>[get_weather(city='Rome', days=3),get_time()]<|tool_call_end|>",
}
TWO["generic"] = TWO["hermes"]
CONTROL = (
    *("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "<|/tool_call|>", "<|python_tag|>"),
    *("<start_function_call>", "<end_function_call>", "<escape>", "<|tool_call>", "<tool_call|>"),
    *('<|"|>', "<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<|end|>"),
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>", "<|START_ACTION|>", "<|END_ACTION|>"),
    *("<|tools_prefix|>", "<|tools_suffix|>", "<|tool_call_start|>"),
)
TAUGHT, PLAIN = Follower(CONTROL), Follower()
"""A vocabulary with each family's control tokens, and one to which they are text."""
BOTH = pytest.mark.parametrize(
    "follower", [pytest.param(TAUGHT, id="control"), pytest.param(PLAIN, id="text", marks=pytest.mark.slow)]
)


def asked(form: str, follower: Follower = TAUGHT, **fields: object) -> Call:
    return resolved(form, follower, json.dumps(fields))


@functools.cache
def resolved(form: str, follower: Follower, fields: str) -> Call:
    return chat(**{"form": form, "tokenizer": follower.tokenizer, "tools": TOOLS, **json.loads(fields)})


def accepts(call: Call, follower: Follower, text: str) -> bool:
    constraint = call.requests[0].constraint
    assert constraint is not None
    return follower.accepts(constraint, text)


def read(reader: PartsReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, object]]]:
    """Thoughts, content, and calls with their arguments parsed."""
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


def cut(text: str, places: list[int]) -> list[str]:
    return [text[a:b] for a, b in itertools.pairwise(sorted({0, len(text), *places}))]


def test_every_format_has_its_transcripts() -> None:
    assert ONE.keys() == TOOL_FORMATS.keys()
    assert TWO.keys() == TOOL_FORMATS.keys() - {"harmony"}


@BOTH
@pytest.mark.parametrize("form", ONE)
def test_the_grammar_takes_the_familys_calls_and_no_others(form: str, follower: Follower) -> None:
    one, text = ONE[form], "<|channel|>final<|message|>Hello." if form == "harmony" else "Hello."
    wrong = (one.replace("get_weather", "get_whether"), one.replace("3", "9"), one[:-1], f"{one} and more")
    for choice in ("auto", "required"):
        call = asked(form, follower, tool_choice=choice)
        assert accepts(call, follower, one)
        assert not any(accepts(call, follower, each) for each in wrong)
        assert accepts(call, follower, text) is (choice == "auto")
        if form in TWO:
            alone = asked(form, follower, tool_choice=choice, parallel_tool_calls=False)
            assert accepts(call, follower, TWO[form])
            assert not accepts(alone, follower, TWO[form])


@pytest.mark.parametrize("form", ONE)
def test_a_named_function_is_called_once(form: str) -> None:
    call = asked(form, tool_choice=NAMED)
    assert accepts(call, TAUGHT, ONE[form])
    for text in (ONE[form].replace("get_weather", "get_time"), TWO.get(form, "text"), "text"):
        assert not accepts(call, TAUGHT, text)


@BOTH
@pytest.mark.parametrize("form", ONE)
def test_an_answer_of_a_form_stands_beside_calls(form: str, follower: Follower) -> None:
    call = asked(form, follower, response_format=ANSWER)
    answer = '{"a":7}'
    shown = f"<|channel|>final <|constrain|>json<|message|>{answer}" if form == "harmony" else answer
    assert accepts(call, follower, shown)
    assert accepts(call, follower, ONE[form])
    assert not accepts(call, follower, shown.replace("7", '"x"'))
    assert not accepts(call, follower, "Hello.")
    for pieces in ([shown], list(shown)):
        assert read(call.reader(), pieces) == ("", answer, [])
    for pieces in ([ONE[form]], list(ONE[form])):
        assert read(call.reader(), pieces) == ("", "", [ROME])


@pytest.mark.parametrize("form", ONE)
@settings(max_examples=8, deadline=None)
@given(places=st.lists(st.integers(0, 200), max_size=12))
def test_text_and_calls_are_read_alike_however_they_are_cut(form: str, places: list[int]) -> None:
    text, calls = (TWO[form], [ROME, TIME]) if form in TWO else (ONE[form], [ROME])
    content = "" if form in ("llama3", "pythonic", "harmony") else "Let me <see> [it]."
    text = f"{content}\n\n{text}" if content else text
    for pieces in (cut(text, [min(p, len(text)) for p in places]), list(text)):
        assert read(asked(form).reader(), pieces) == ("", content, calls)


@pytest.mark.parametrize("form", ONE)
def test_written_calls_are_read_back(form: str) -> None:
    written = TOOL_FORMATS[form].written([WrittenCall(*ROME)])
    assert read(asked(form).reader(), [written]) == ("", "", [ROME])


@pytest.mark.parametrize("form", ["qwen3-coder", "glm", "seed-oss", "minimax", "functiongemma", "gemma4"])
@BOTH
@settings(max_examples=30, deadline=None)
@given(city=st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30))
def test_raw_text_becomes_a_json_string(form: str, follower: Follower, city: str) -> None:
    text = ONE[form].replace("Rome", city)
    call = asked(form, follower)
    if accepts(call, follower, text):
        assert read(call.reader(), list(text)) == ("", "", [("get_weather", {"city": city, "days": 3})])
    else:
        assert "<" in city


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("[get_weather(city='it\\'s \"so\"\\n', now=True)]", {"city": 'it\'s "so"\n', "now": True}),
        ('[get_weather(city="O\'Hare", tags=["a)","b="], now=false)]', None),
        ("[get_weather(city='x', unit='celsius')]", {"city": "x", "unit": "celsius"}),
    ],
)
def test_pythons_strings_and_words_become_jsons(text: str, arguments: object) -> None:
    wanted = arguments or {"city": "O'Hare", "tags": ["a)", "b="], "now": False}
    assert read(asked("pythonic").reader(), list(text)) == ("", "", [("get_weather", wanted)])
    assert accepts(asked("pythonic"), TAUGHT, text)
    assert not accepts(asked("pythonic"), TAUGHT, text.replace("celsius", "kelvin").replace("city", "town"))


def test_choices_bind_raw_text_too() -> None:
    text = ONE["qwen3-coder"].replace("=days>\n3", "=unit>\ncelsius")
    assert accepts(asked("qwen3-coder"), TAUGHT, text)
    assert not accepts(asked("qwen3-coder"), TAUGHT, text.replace("celsius", "kelvin"))
    assert not accepts(asked("qwen3-coder"), TAUGHT, ONE["qwen3-coder"].replace("city", "unit"))


def test_llamas_calls_may_follow_its_mark() -> None:
    text = "<|python_tag|>" + ONE["llama3"]
    assert accepts(asked("llama3"), TAUGHT, text)
    assert read(asked("llama3").reader(), list(text)) == ("", "", [ROME])


def test_harmonys_channels_are_thoughts_content_and_calls() -> None:
    text = (
        "<|channel|>analysis<|message|>We need <the> tool.<|end|><|start|>assistant"
        "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant"
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city":"Rome","days":3}'
    )
    assert accepts(asked("harmony"), TAUGHT, text)
    assert read(asked("harmony").reader(), list(text)) == ("We need <the> tool.", "One moment.", [ROME])
    final = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Hi"
    assert accepts(asked("harmony"), TAUGHT, final)
    assert read(asked("harmony").reader(), list(final)) == ("Easy.", "Hi", [])
    assert read(asked("harmony").reader(), ["no channels"]) == ("", "no channels", [])


SPLIT = [name for name, form in TOOL_FORMATS.items() if form.splits_parameters]
FILE = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "offset": {"type": "integer"}, "limit": {"type": "integer"}},
    "required": ["path"],
}


@pytest.mark.parametrize("form", SPLIT)
def test_parameters_come_in_any_order_where_the_tool_is_not_strict(form: str) -> None:
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


def test_many_parameters_keep_their_order() -> None:
    names = [f"p{number}" for number in range(9)]
    many = {"type": "object", "properties": {name: {"type": "integer"} for name in names}}
    call = split(many, form="glm")
    for order, is_taken in ((names, True), (names[::-1], False)):
        written = TOOL_FORMATS["glm"].written([WrittenCall("f", dict.fromkeys(order, 1))])
        assert accepts(call, PLAIN, written) is is_taken


@pytest.mark.parametrize("form", SPLIT)
def test_parameters_have_any_names_that_the_format_can_read(form: str) -> None:
    names = ["größe", "$filter", "a b", "a:b", "a=b", "a,b", "x-y", "max(1)", "it's", "@type", "a>b", "a.b"]
    can = TOOL_FORMATS[form].names_parameter
    arguments = {name: 1 for name in names if can(name)}
    assert {"größe", "$filter", "a b", "x-y", "@type", "a.b"} <= arguments.keys()
    assert not any(map(can, ["", "<bos>", "<|end|>", "a\nb", "a\x00"]))
    call = split({"type": "object", "properties": {name: {"type": "integer"} for name in names}}, form=form)
    written = TOOL_FORMATS[form].written([WrittenCall("f", arguments)])
    assert accepts(call, PLAIN, written)
    assert read(call.reader(), list(written)) == ("", "", [("f", arguments)])


def test_names_and_texts_of_arguments_are_written_as_they_are() -> None:
    call = split({"type": "object", "properties": {"größe": {"type": "string"}}})
    written = TOOL_FORMATS["qwen3-coder"].written([WrittenCall("f", {"größe": "zoë"})])
    parts = call.reader().read_texts("", written)
    assert "".join(part.text for part in parts if isinstance(part, CallArguments)) == '{"größe":"zoë"}'


def split(parameters: object, *, form: str = "qwen3-coder", strict: bool | None = None) -> Call:
    function = {"name": "f", "parameters": parameters, "strict": strict}
    return chat(form=form, tools=[{"type": "function", "function": function}], tool_choice="required")


def test_what_concerns_several_parameters_at_once_is_named_or_refused() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "minProperties": 1}
    assert split(schema).headers[UNENFORCED] == "tools[0].function.parameters.minProperties"
    with pytest.raises(InvalidRequest) as error:
        split(schema, strict=True)
    assert (error.value.param, error.value.code) == (
        "tools[0].function.parameters.minProperties",
        "unsupported_schema",
    )


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"properties": []}, "properties"),
        ({"properties": {}, "required": "a"}, "required"),
        ({"required": [1]}, "required"),
        ({"required": ["a<b"]}, "required"),
        ({"anyOf": [{"required": ["a"]}]}, "anyOf"),
    ],
)
def test_schemas_that_cannot_be_split_are_refused(schema: dict[str, object], keyword: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        split(schema)
    assert error.value.param == f"tools[0].function.parameters.{keyword}"


def test_a_string_with_limits_is_json_in_its_tag() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/short"}},
        "$defs": {"short": {"type": "string", "maxLength": 2}},
    }
    call = split({"type": "object", "required": ["a"], **schema})
    text = "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>"
    assert accepts(call, PLAIN, text % '"ab"')
    assert not accepts(call, PLAIN, text % '"abc"')
    assert not accepts(call, PLAIN, text % "ab")
    assert read(call.reader(), list(text % '"ab"')) == ("", "", [("f", {"a": "ab"})])


def test_references_of_a_parameter_lead_into_the_whole_schema() -> None:
    schema = {
        "$id": "https://example.org/f",
        "type": "object",
        "properties": {
            "a": {"type": "integer", "maximum": 5},
            "b": {"$ref": "#/properties/a"},
            "c": {"$ref": "urn:short"},
        },
        "$defs": {"s": {"$id": "urn:short", "enum": [1, 2]}},
        "required": ["b", "c"],
    }
    call = split(schema, form="pythonic")
    assert accepts(call, PLAIN, "[f(b=5, c=2)]")
    assert not accepts(call, PLAIN, "[f(b=6, c=2)]")
    assert not accepts(call, PLAIN, "[f(b=5, c=3)]")


def test_many_optional_parameters_make_no_large_grammar() -> None:
    many = {f"p{index}": {"type": "integer"} for index in range(40)}
    call = split({"type": "object", "properties": many}, form="pythonic")
    for text in ("[f()]", "[f(p3=1)]", "[f(p0=1, p39=2)]"):
        assert accepts(call, PLAIN, text)
    assert not accepts(call, PLAIN, "[f(p4=1, p3=2)]")
