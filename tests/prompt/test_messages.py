"""Messages as templates expect them."""

from __future__ import annotations

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.prompt.template import template_messages


def one(message: dict[str, object], *, as_parts: bool = False) -> dict[str, object]:
    (result,) = template_messages([message], as_parts=as_parts)
    return result


def calling(arguments: object) -> dict[str, object]:
    function = {"name": "f", "arguments": arguments}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def test_developer_is_system() -> None:
    assert one({"role": "developer", "content": "x"}) == {"role": "system", "content": "x"}


def test_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert one({"role": "user", "content": parts})["content"] == "a\nb"
    assert one({"role": "user", "content": parts}, as_parts=True)["content"] == [
        {"type": "text", "text": "a\nb"}
    ]


def test_text_becomes_a_part_where_wanted() -> None:
    assert one({"role": "user", "content": "a"}, as_parts=True)["content"] == [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    "content", [7, [{"type": "image_url", "image_url": {"url": "x"}}], ["a"], [{"type": "text", "text": 1}]]
)
def test_other_content_is_refused(content: object) -> None:
    with pytest.raises(InvalidRequest) as failure:
        template_messages([{"role": "user", "content": "a"}, {"role": "user", "content": content}])
    assert failure.value.param is not None
    assert failure.value.param.startswith("messages[1].content")


def test_absent_content_is_empty_text() -> None:
    assert one({"role": "assistant", "content": None, "name": None}) == {"role": "assistant", "content": ""}


def test_other_fields_are_passed_on() -> None:
    message = {"role": "tool", "content": "4", "name": "add", "tool_call_id": "1"}
    assert one(dict(message)) == message


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1]}', {"a": [1]}),
        ({"a": 1}, {"a": 1}),
        ("[1]", "[1]"),
        ('{"a": ', '{"a": '),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_arguments_of_tool_calls(arguments: object, expected: object) -> None:
    message = calling(arguments)
    assert one(message)["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": expected}}
    ]
    assert message == calling(arguments), "the caller's messages stay as they are"


def test_no_tool_calls_is_no_field() -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": []})


def test_strange_tool_calls_are_the_templates_affair() -> None:
    assert one({"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]})["tool_calls"] == [
        {"id": "1"}
    ]
