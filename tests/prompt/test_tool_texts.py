"""Tools for templates that do not know them, and ids as templates want them."""

from __future__ import annotations

import json

from openai_cpu_server.prompt.chat_prompts import (
    told_tools,
    with_history_ids,
    with_instructions,
    with_single_calls,
    with_written_calls,
)
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.template import Message
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS

HERMES, MISTRAL = TOOL_FORMATS["hermes"], TOOL_FORMATS["mistral"]
FUNCTION = {"name": "f", "description": "does it", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
USER: Message = {"role": "user", "content": "hi"}


def calling(*ids: str) -> Message:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for i in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(of: str, text: str) -> Message:
    return {"role": "tool", "tool_call_id": of, "content": text}


def test_ids_of_calls_and_results_still_match() -> None:
    _, calls, *results = with_history_ids(
        [USER, calling("x", "y"), result("x", "1"), result("y", "2")], MISTRAL
    )
    assert isinstance(calls["tool_calls"], list)
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [r["tool_call_id"] for r in results]
    assert all(len(i) == 9 for i in ids)


def test_the_tools_stand_in_a_system_message_of_their_own() -> None:
    first, second = with_instructions([USER], TOOLS, HERMES)
    assert second == USER
    assert first["role"] == "system"
    assert json.dumps(FUNCTION) in str(first["content"])
    assert '<tool_call>\n{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}\n</tool_call>' in str(
        first["content"]
    )


def test_or_at_the_end_of_the_one_that_is_there() -> None:
    system: Message = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
    first, _ = with_instructions([system, USER], TOOLS, HERMES)
    assert str(first["content"]).startswith("Be brief.\n\nYou can call")


def test_calls_and_results_become_turns_of_text() -> None:
    messages = [
        USER,
        calling("x", "y"),
        result("x", "1"),
        result("y", "2"),
        {"role": "assistant", "content": "3"},
    ]
    assert with_written_calls(messages, HERMES) == [
        USER,
        {
            "role": "assistant",
            "content": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>\n'
            '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        },
        {"role": "user", "content": "Results of the functions:\n1\n2"},
        {"role": "assistant", "content": "3"},
    ]


def test_what_a_template_knows_is_tried_out() -> None:
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", bos_text="", eos_text="")
    assert (plain.shows_tools, plain.call_shape) == (False, None)
    knowing = ChatTemplate(
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}{% endfor %}",
        bos_text="",
        eos_text="",
    )
    assert knowing.shows_tools
    assert knowing.call_shape is not None


def test_a_template_that_takes_one_call_a_message_gets_each_with_its_result() -> None:
    messages = [USER, calling("x", "y"), result("y", "2"), result("x", "1"), USER]
    assert with_single_calls(messages) == [
        USER,
        calling("x"),
        result("x", "1"),
        calling("y"),
        result("y", "2"),
        USER,
    ]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_text="", eos_text="")


def test_a_template_without_system_messages_gets_the_tools_in_the_users() -> None:
    refusing = template(
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    )
    (message,), tools = told_tools([USER], TOOLS, refusing, TOOL_FORMATS["generic"])
    assert tools == ()
    assert message["role"] == "user"
    assert str(message["content"]).startswith("You can call these functions:")
    assert str(message["content"]).endswith("\n\nhi")


def test_tools_may_stand_in_a_field_of_the_system_message() -> None:
    phi = template("{% for m in messages %}{{ m.content }}{{ m.tools }}{% endfor %}")
    (system, _), tools = told_tools([USER], TOOLS, phi, TOOL_FORMATS["phi4"])
    assert (system["tools"], tools) == (json.dumps([FUNCTION]), ())


def test_what_shows_tools_in_an_unknown_form_is_told_in_words_all_the_same() -> None:
    knowing = template("{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}")
    messages, tools = told_tools(
        [USER, calling("x"), result("x", "1")], TOOLS, knowing, TOOL_FORMATS["generic"]
    )
    assert tools == ()
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
