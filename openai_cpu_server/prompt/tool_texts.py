"""Rewrites tools, calls and results for templates that want them otherwise, or cannot show them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import takewhile

from openai_cpu_server.prompt.messages import Message, arguments_object, content_text
from openai_cpu_server.prompt.template import Template
from openai_cpu_server.prompt.tool_formats import ToolFormat, WrittenCall

Tools = Sequence[Mapping[str, object]]


def told_tools(
    messages: Sequence[Message], tools: Tools, template: Template, form: ToolFormat
) -> tuple[Sequence[Message], Tools]:
    """The messages as the template can show them, and the tools that are left for it to show."""
    shape = None if form.replaces_template else template.call_shape
    if shape is None:
        messages = with_written_calls(messages, form)
    else:
        messages = with_history_ids(with_single_calls(messages) if shape.one_by_one else messages, form)
    if not tools or (template.shows_tools and not form.replaces_template):
        return messages, tools
    if template.shows_system_tools and not form.replaces_template:
        return with_system_tools(messages, tools), ()
    return with_instructions(messages, tools, form, as_system=template.shows_system), ()


def with_history_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with the ids of calls in the form that the format's templates want."""
    return [_with_ids(message, form) for message in messages]


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, with a message of its own for each call, and each result behind its call."""
    single: list[Message] = []
    rest = list(messages)
    while rest:
        message = rest.pop(0)
        calls = message.get("tool_calls")
        if not isinstance(calls, Sequence) or len(calls) < 2:
            single.append(message)
            continue
        results = list(takewhile(lambda each: each.get("role") == "tool", rest))
        del rest[: len(results)]
        for index, call in enumerate(calls):
            single.append({**message, "tool_calls": [call], **({"content": None} if index else {})})
            of_call = [result for result in results if result.get("tool_call_id") == call["id"]]
            single += of_call[:1]
            results = [result for result in results if result not in of_call[:1]]
        single += results
    return single


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


def with_system_tools(messages: Sequence[Message], tools: Tools) -> list[Message]:
    """The messages, with the tools as JSON in a field of the system message."""
    listed = json.dumps([tool["function"] for tool in tools], ensure_ascii=False)
    if messages and messages[0].get("role") in ("system", "developer"):
        return [{**messages[0], "tools": listed}, *messages[1:]]
    content = "You are a helpful assistant with some tools."
    return [{"role": "system", "content": content, "tools": listed}, *messages]


def with_instructions(
    messages: Sequence[Message], tools: Tools, form: ToolFormat, *, as_system: bool = True
) -> list[Message]:
    """The messages, with the tools and how to call them in the system message; in the first message if the
    template shows none."""
    instructions = _instructions(tools, form)
    first = messages[0] if messages else {}
    if first.get("role") in ("system", "developer"):
        text = content_text(first.get("content"), "messages[0].content")
        return [{**first, "content": f"{text}\n\n{instructions}"}, *messages[1:]]
    if not as_system and first.get("role") == "user":
        text = content_text(first.get("content"), "messages[0].content")
        return [{**first, "content": f"{instructions}\n\n{text}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


def _with_ids(message: Message, form: ToolFormat) -> Message:
    fields = dict(message)
    if isinstance(answered := message.get("tool_call_id"), str):
        fields["tool_call_id"] = form.history_id(answered)
    if isinstance(calls := message.get("tool_calls"), Sequence):
        fields["tool_calls"] = [{**call, "id": form.history_id(call["id"])} for call in calls]
    return fields


def _instructions(tools: Tools, form: ToolFormat) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.written([WrittenCall("NAME", {"PARAMETER": "VALUE"})])
    return f"You can call these functions:\n{listed}\nTo call them, end your answer with:\n{example}"


def _written(message: Message, form: ToolFormat) -> Message:
    calls = message["tool_calls"]
    assert isinstance(calls, Sequence)
    written = form.written([_call(call["function"]) for call in calls])
    text = content_text(message.get("content"))
    return {"role": "assistant", "content": f"{text}\n{written}" if text else written}


def _call(function: Mapping[str, object]) -> WrittenCall:
    arguments = arguments_object(function["arguments"])
    # Arguments that are no object were never ours: they are shown under a name that says so.
    known = arguments if isinstance(arguments, Mapping) else {"arguments": arguments}
    return WrittenCall(str(function["name"]), known)


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
