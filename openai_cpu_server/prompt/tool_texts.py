"""Rewrites tools, calls and results for templates that want them otherwise, or cannot show them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from openai_cpu_server.prompt.messages import Message, arguments_object, content_text
from openai_cpu_server.prompt.tool_formats import ToolFormat


def with_history_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with the ids of calls in the form that the format's templates want."""
    return [_with_ids(message, form) for message in messages]


def with_written_calls(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with earlier calls and results as text.
    A last message that calls stays: it is an error anyway."""
    texts: list[Message] = []
    for index, message in enumerate(messages):
        if message.get("role") == "tool":
            _add_result(texts, message)
        elif message.get("tool_calls") and index < len(messages) - 1:
            texts.append(_written(message, form))
        else:
            texts.append(message)
    return texts


def with_instructions(
    messages: Sequence[Message], tools: Sequence[Mapping[str, object]], form: ToolFormat
) -> list[Message]:
    """The messages, with the tools and how to call them in the system message."""
    instructions = _instructions(tools, form)
    if messages and messages[0].get("role") in ("system", "developer"):
        text = content_text(messages[0].get("content"), "messages[0].content")
        return [{**messages[0], "content": f"{text}\n\n{instructions}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _with_ids(message: Message, form: ToolFormat) -> Message:
    fields = dict(message)
    if isinstance(answered := message.get("tool_call_id"), str):
        fields["tool_call_id"] = form.history_id(answered)
    if isinstance(calls := message.get("tool_calls"), Sequence):
        fields["tool_calls"] = [{**call, "id": form.history_id(call["id"])} for call in calls]
    return fields


def _instructions(tools: Sequence[Mapping[str, object]], form: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.written(json.dumps({"name": "NAME", form.arguments_key: {"PARAMETER": "VALUE"}}))
    return f"You can call these functions:\n{listed}\nTo call them, end your answer with:\n{example}"


def _written(message: Message, form: ToolFormat) -> Message:
    calls = message["tool_calls"]
    assert isinstance(calls, Sequence)
    written = form.written("\n".join(_line(call["function"], form) for call in calls))
    text = content_text(message.get("content"))
    return {"role": "assistant", "content": f"{text}\n{written}" if text else written}


def _line(function: Mapping[str, object], form: ToolFormat) -> str:
    arguments = arguments_object(function["arguments"])
    return json.dumps({"name": function["name"], form.arguments_key: arguments}, ensure_ascii=False)


_RESULTS = "Results of the functions:"


def _add_result(texts: list[Message], message: Message) -> None:
    """Add a result to the message before it, if that has results:
    many templates demand that roles take turns."""
    result = content_text(message.get("content"))
    last = texts[-1].get("content") if texts else None
    if isinstance(last, str) and texts[-1].get("role") == "user" and last.startswith(_RESULTS):
        texts[-1] = {"role": "user", "content": f"{last}\n{result}"}
    else:
        texts.append({"role": "user", "content": f"{_RESULTS}\n{result}"})
