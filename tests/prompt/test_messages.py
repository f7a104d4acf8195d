"""Messages as templates expect them, and the order of a fill-in-the-middle prompt."""

from __future__ import annotations

import pytest

from openai_cpu_server.contract.model_info import FimTokens
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.template import fim_tokens, template_messages


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def text(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


SAID = {"role": "assistant", "content": "x"}
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
    "no tool calls is no field": ({**SAID, "tool_calls": []}, False, SAID),
    "strange tool calls are the template's affair": (STRANGE, False, STRANGE),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_as_templates_expect_it(name: str) -> None:
    message, as_parts, expected = MESSAGES[name]
    assert template_messages([dict(message)], as_parts=as_parts) == [expected]


def calling(arguments: object) -> dict[str, object]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize(
    "content", [7, [{"type": "image_url", "image_url": {"url": "x"}}], ["a"], [{"type": "text", "text": 1}]]
)
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest) as failure:
        template_messages([{"role": "user", "content": "a"}, {"role": "user", "content": content}])
    assert failure.value.param is not None
    assert failure.value.param.startswith("messages[1].content")


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
    message = calling(arguments)
    (found,) = template_messages([message])
    assert found["tool_calls"] == calling(expected)["tool_calls"]
    assert message == calling(arguments), "the caller's messages stay as they are"


def test_prefix_suffix_middle() -> None:
    fim = FimTokens(prefix=100, suffix=101, middle=102)
    assert fim_tokens([1, 2], (3,), fim) == (100, 1, 2, 101, 3, 102)
    assert fim_tokens([], [], fim) == (100, 101, 102)
