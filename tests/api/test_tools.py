"""Which functions the model may call, in which form, and what is refused."""

from __future__ import annotations

import pytest

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.resolve import UNENFORCED
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.following import Follower
from tests.api.resolving import chat, refused

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"$ref": "#/$defs/few"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"few": {"type": "integer", "minimum": 1, "maximum": 5}},
}
HARD = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(x)\1"}}, "required": ["a"]}


def tool(name: str, parameters: object = None, **fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **fields}}


SEARCH = {"type": "web_search"}
TOOLS = [tool("weather", CITY, description="of a city"), tool("now")]
NAMED = {"type": "function", "function": {"name": "now"}}
WEATHER = '{"name":"weather","arguments":{"city":"Rome","days":3}}'
NOW = '{"name":"now","arguments":{}}'
FOLLOWER = Follower()


def allowed(mode: str, *names: str) -> dict[str, object]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def written(*calls: str) -> str:
    return "<|tool_call|>" + "\n".join(calls)


def constraint(**fields: object) -> Constraint:
    found = chat(**{"tools": TOOLS, **fields}).requests[0].constraint
    assert found is not None
    return found


def accepts(of: Constraint, text: str) -> bool:
    return FOLLOWER.accepts(of, text)


def shown_prompt(call: ResolvedRequest) -> str:
    return FakeTokenizer().decode(list(call.prompts[0].tokens), special=True)


def test_without_a_marker_the_first_character_decides() -> None:
    shape = constraint(form="llama3")
    weather, now = (call.replace("arguments", "parameters") for call in (WEATHER, NOW))
    assert (shape.opening, shape.triggers) == ((), ())
    for good in (f"{weather}; {now}", "", "text", " {", "Müde?\n{}"):
        assert accepts(shape, good)
    for wrong in ("{", "{}", f"{now} more", WEATHER):
        assert not accepts(shape, wrong)


def test_only_allowed_tools_can_be_called_but_all_are_shown() -> None:
    for mode in ("auto", "required"):
        resolved = chat(tools=TOOLS, tool_choice=allowed(mode, "now"))
        shape = resolved.requests[0].constraint
        assert shape is not None
        assert accepts(shape, written(NOW))
        assert not accepts(shape, written(WEATHER))
        assert accepts(shape, "text") == (mode == "auto")
        assert "of a city" in shown_prompt(resolved)


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS, "tool_choice": "none"},
        {"functions": [{"name": "f"}], "function_call": "none"},
        {"tools": []},
        {"functions": []},
        {"tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": [], "tool_choice": "none"},
        {"functions": [], "function_call": "auto"},
    ],
)
def test_functions_that_may_not_be_called_are_as_if_there_were_none(fields: dict[str, object]) -> None:
    call = chat(**fields)
    assert (call.requests[0].constraint, call.tool_calls) == (None, None)
    assert call.prompts == chat().prompts


def test_white_space_in_calls_is_the_servers_choice() -> None:
    spaced = written('{ "name" : "weather",\n "arguments": {"city": "Rome"} }')
    assert accepts(constraint(is_flexible=True, tool_choice="required"), spaced)
    assert not accepts(constraint(tool_choice="required"), spaced)


def test_the_template_gets_all_of_a_tool() -> None:
    template = "{{ tools | tojson }}"
    assert shown_prompt(chat(tools=TOOLS[1:], template=template)) == (
        '<s>[{"type": "function", "function": {"name": "now", "description": "", '
        '"parameters": {"type": "object", "properties": {}}}}]'
    )


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"tools": TOOLS, "form": "hermes", "regex": "<.*"}, "regex", "unsupported_parameter"),
        ({"tools": TOOLS, "form": "llama3", "regex": "a"}, "regex", "unsupported_parameter"),
        ({"tools": TOOLS, "form": "hermes", "grammar": 'root ::= "a"'}, "grammar", "unsupported_parameter"),
    ],
)
def test_grammars_that_look_like_calls_are_refused(fields: dict[str, object], param: str, code: str) -> None:
    error = refused(**fields)
    assert (error.param, error.code) == (param, code)


def test_a_tool_of_another_type_is_left_out_and_named() -> None:
    alone, beside = chat(tools=[SEARCH]), chat(tools=[SEARCH, *TOOLS])
    assert alone.tool_calls is None
    assert beside.tool_calls is not None
    named = {"x-ignored-parameters": "tools[0] (web_search)"}
    assert alone.headers == beside.headers == named


def test_free_text_beside_tools_may_have_stop_strings() -> None:
    for form in TOOL_FORMATS:
        assert chat(tools=TOOLS, form=form, stop="x").requests[0].stop == ("x",)


@pytest.mark.parametrize("strict", [False, None])
def test_what_a_tool_that_is_not_strict_cannot_have_is_named(strict: bool | None) -> None:
    resolved = chat(tools=[tool("f"), tool("g", HARD, strict=strict)])
    assert resolved.headers[UNENFORCED] == "tools[1].function.parameters.properties.a.pattern"
    shape = resolved.requests[0].constraint
    assert shape is not None
    assert accepts(shape, written('{"name":"g","arguments":{"a":"anything"}}'))
    assert not accepts(shape, written('{"name":"g","arguments":{"a":1}}'))


def test_calls_that_must_come_leave_no_room_for_the_answers_form() -> None:
    asked = {"tool_choice": "required", "response_format": {"type": "json_object"}}
    assert constraint(**asked) == constraint(tool_choice="required")


FUNCTIONS = {"functions": [{"name": "weather", "parameters": CITY}, {"name": "now"}]}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"tools": TOOLS, "tool_choice": "auto"}, "tool_calls"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_calls"),
        ({"tools": TOOLS, "tool_choice": NAMED}, "stop"),
        ({**FUNCTIONS, "function_call": None}, "function_call"),
        ({**FUNCTIONS, "function_call": "auto"}, "function_call"),
        ({**FUNCTIONS, "function_call": {"name": "now"}}, "stop"),
    ],
)
def test_finish_reasons_are_openais(fields: dict[str, object], reason: str) -> None:
    """Deprecated functions are tools by another name, of which one is called at most."""
    call, is_legacy = chat(**fields), "functions" in fields
    assert call.tool_calls is not None
    assert (call.tool_calls.reason, call.tool_calls.is_legacy) == (reason, is_legacy)
    assert call.requests[0].show_control_tokens
    shape = call.requests[0].constraint
    assert shape is not None
    assert accepts(shape, written(NOW))
    assert accepts(shape, written(WEATHER)) is (reason != "stop")
    assert accepts(shape, written(NOW, NOW)) is (reason == "tool_calls")


def test_deprecated_messages_are_understood() -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "4"},
    ]
    template = (
        "{% for m in messages %}{{ m.role }} {{ m.tool_calls[0].id if m.tool_calls }}"
        "{{ m.tool_call_id }} {{ m.content }};{% endfor %}"
    )
    template += "{{ tools }}{% for m in messages %}{{ m.tool_calls }}{% endfor %}"
    text = shown_prompt(chat(messages=messages, template=template))
    assert text.startswith("<s>user  hi;assistant function_f ;tool function_f 4;")
