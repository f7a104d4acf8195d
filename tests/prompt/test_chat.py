"""Conversion of OpenAI's messages to those that templates expect, and to the text of the prompt."""

from __future__ import annotations

from typing import Any

import pytest

from openai_cpu_server.contract.model_info import FimTokens
from openai_cpu_server.errors import InvalidRequest, TemplateFailed
from openai_cpu_server.prompt.chat_prompts import needs_special_tokens, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.template import TemplateMessage, fim_tokens, template_messages

TURNS = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}"
    "{% if tools %}<tools>{{ tools | length }}</>{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}{{ style }}",
    bos_text="<s>",
    eos_text="</s>",
)
USER = {"role": "user", "content": "Hello"}
PREFILL = {"role": "assistant", "content": "Sure, "}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "Sure,"}, {"type": "text", "text": "so"}]}
RENDERED: dict[str, tuple[list[TemplateMessage], dict[str, Any], str]] = {
    "an answer begins afresh": ([USER], {}, "<user>Hello</><assistant>"),
    "a prefill continues the turn": ([USER, PREFILL], {}, "<user>Hello</><assistant>Sure, "),
    "a prefill in parts": ([USER, PARTS], {}, "<user>Hello</><assistant>Sure,\nso"),
    "without a generation prompt the last turn is finished": (
        [USER, PREFILL], {"add_generation_prompt": False}, "<user>Hello</><assistant>Sure, </>"),
    "tools and extra variables": (
        [USER], {"tools": [{}, {}], "extra": {"style": "!"}}, "<user>Hello</><tools>2</><assistant>!"),
    "no tools": ([USER], {"tools": []}, "<user>Hello</><assistant>"),
}  # fmt: skip


@pytest.mark.parametrize("name", RENDERED)
def test_rendered_conversations(name: str) -> None:
    messages, more, expected = RENDERED[name]
    assert render_chat(TURNS, messages, **more).text == expected


def test_prefill_with_tool_calls_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="results of the calls must follow"):
        render_chat(TURNS, [USER, {"role": "assistant", "tool_calls": [{"id": "1"}]}])


def test_template_that_wants_parts_gets_parts() -> None:
    source = (
        "{% for m in messages %}{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endfor %}"
    )
    parts = ChatTemplate(source, bos_text="", eos_text="")
    assert render_chat(parts, [USER]).text == "(text:Hello)"


def test_failure_of_the_template() -> None:
    picky = ChatTemplate("{{ raise_exception('no system role') }}", bos_text="", eos_text="")
    with pytest.raises(TemplateFailed, match=r"^no system role$"):
        render_chat(picky, [USER])


@pytest.mark.parametrize(
    ("text", "bos_text", "expected"),
    [
        *(("<s>Hi", "<s>", False), ("\n\n<s>Hi", "<s>", False)),
        *(("Hi<s>", "<s>", True), ("Hi", "", True), ("", "<s>", True)),
    ],
)
def test_bos_is_never_doubled(text: str, bos_text: str, expected: bool) -> None:
    assert needs_special_tokens(text, bos_text=bos_text) is expected


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


ANSWER = {"role": "assistant", "content": "x"}
FOUND = {"role": "tool", "content": "4", "name": "add", "tool_call_id": "1"}
STRANGE = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}
NULLS = {"role": "assistant", "content": None, "name": None}
MESSAGES = {
    "developer is system": ({"role": "developer", "content": "x"}, False, {"role": "system", "content": "x"}),
    "parts become one text": (user(text("a", "b")), False, user("a\nb")),
    "or one part": (user(text("a", "b")), True, user(text("a\nb"))),
    "text becomes a part where wanted": (user("a"), True, user(text("a"))),
    "absent content is empty text": (NULLS, False, {"role": "assistant", "content": ""}),
    "other fields are passed on": (FOUND, False, FOUND),
    "no tool calls is no field": ({**ANSWER, "tool_calls": []}, False, ANSWER),
    "strange tool calls are passed on": (STRANGE, False, STRANGE),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_as_templates_expect_it(name: str) -> None:
    message, as_parts, expected = MESSAGES[name]
    assert template_messages([dict(message)], as_parts=as_parts) == [expected]


def message_with_call(arguments: object) -> dict[str, object]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("content", [7, [{"type": "image_url"}], ["a"], [{"type": "text", "text": 1}]])
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest) as failure:
        template_messages([user("a"), user(content)])
    assert str(failure.value.param).startswith("messages[1].content")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        ("[1]", {"arguments": [1]}),
        ('{"a": ', {"arguments": '{"a": '}),
        ("[" * 100_000, {"arguments": "[" * 100_000}),
        *(("", {}), (" \n", {}), ("null", {}), (None, {})),
    ],
)
def test_arguments_of_tool_calls(arguments: object, expected: object) -> None:
    message = message_with_call(arguments)
    (found,) = template_messages([message])
    assert found["tool_calls"] == message_with_call(expected)["tool_calls"]
    assert message == message_with_call(arguments), "the caller's messages stay as they are"


def test_prefix_suffix_middle() -> None:
    fim = FimTokens(prefix=100, suffix=101, middle=102)
    assert fim_tokens([1, 2], (3,), fim) == (100, 1, 2, 101, 3, 102)
    assert fim_tokens([], [], fim) == (100, 101, 102)
