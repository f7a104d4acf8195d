"""Rewrites tools, calls and results for templates that want them otherwise, or cannot show them. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.messages import Message, arguments_object, content_text
from openai_cpu_server.prompt.tool_formats import ToolFormat, WrittenCall

Tools = Sequence[Mapping[str, object]]


def told_tools(
    messages: Sequence[Message], tools: Tools, template: ChatTemplate, form: ToolFormat
) -> tuple[Sequence[Message], Tools]:
    """The messages as the template can show them, and the tools that are left for it to show."""
    shape = None if form.replaces_template else template.call_shape
    if shape is None:
        messages = with_written_calls(messages, form)
    else:
        messages = with_history_ids(with_single_calls(messages) if shape.one_by_one else messages, form)
    if tools and (form.replaces_template or not template.shows_tools):
        return with_instructions(messages, tools, form, as_system=template.shows_system), ()
    return messages, tools


def with_history_ids(messages: Sequence[Message], form: ToolFormat) -> list[Message]:
    """The messages, with the ids of calls in the form that the format's templates want."""
    return [_with_ids(message, form) for message in messages]


def with_single_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, with a message of its own for each call, and each result behind its call."""
    results = {message.get("tool_call_id"): message for message in messages if message.get("role") == "tool"}
    placed: set[object] = set()
    single: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, Sequence) and len(calls) > 1:
            for index, call in enumerate(calls):
                alone = {**message, "tool_calls": [call]}
                single.append(alone if index == 0 else {**alone, "content": None})
                if (result := results.get(call["id"])) is not None:
                    single.append(result)
                    placed.add(call["id"])
        elif message.get("role") != "tool" or message.get("tool_call_id") not in placed:
            single.append(message)
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
