"""Conversations as a template can show them, without loss of text: results behind their calls, turns where it
accepts them."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

import msgspec

from openai_cpu_server.prompt.template import (
    CallShape,
    SystemPlace,
    TemplateMessage,
    TemplateShape,
    arguments_object,
    content_text,
    to_json,
)
from openai_cpu_server.prompt.tool_formats import ToolFormat, WrittenCall

_Tools = Sequence[Mapping[str, object]]
_SYSTEM = ("system", "developer")
_RESULTS = "Results of the functions:"
_NO_RESULT = "There is no result."
"""Stands behind calls beside others with results, because templates give those to the calls one by one."""
_SILENT = "..."
"""User's text where a template needs a missing turn."""
_WORD = re.compile("[A-Za-z0-9]{4,64}")
_LOOKED_AT = 512


# -- results belong to calls -----------------------------------------------------------------------------


class PlacedMessage(NamedTuple):
    message: TemplateMessage
    place: int
    """Index in the client's messages."""
    is_stray: bool = False
    """True for a result without a call, which became a user's turn."""


@dataclass
class _Call:
    call: Mapping[str, Any]
    result: PlacedMessage | None = None

    @property
    def name(self) -> object:
        return self.call["function"]["name"]

    def answer(self, message: TemplateMessage, place: int) -> None:
        named = {"name": self.name, **{field: value for field, value in message.items() if value is not None}}
        self.result = PlacedMessage({**named, "tool_call_id": self.call["id"]}, place)


class _OpenCalls:
    def __init__(self) -> None:
        self._by_id: dict[object, list[deque[_Call]]] = {}
        self._latest: list[_Call] = []
        self._ids: Counter[str] = Counter()

    def of(self, calls: Sequence[Mapping[str, Any]]) -> list[_Call]:
        self._latest = []
        new: dict[object, deque[_Call]] = {}
        for sent in calls:
            name = str(sent.get("id") or "")
            self._ids[name] += 1
            own_id = name if name and self._ids[name] == 1 else f"{name}-{self._ids[name]}"
            self._latest.append(_Call({**sent, "id": own_id}))
            new.setdefault(sent.get("id"), deque()).append(self._latest[-1])
        for call_id, waiting in new.items():
            self._by_id.setdefault(call_id, []).append(waiting)
        return self._latest

    def taken(self, result: TemplateMessage) -> _Call | None:
        """A result without an id belongs to the latest message's next call, unless it names another."""
        call_id, name = result.get("tool_call_id"), result.get("name")
        if call_id:
            messages = self._by_id.get(call_id, [])
            while messages:
                while messages[-1]:
                    if (call := messages[-1].popleft()).result is None:
                        return call
                messages.pop()
            return None
        open_calls = (call for call in self._latest if call.result is None and name in (None, call.name))
        return next(open_calls, None)


def with_bound_results(messages: Sequence[TemplateMessage]) -> list[PlacedMessage]:
    """Move each result behind its call, with the function's name. A result without a call becomes text."""
    open_calls, found = _OpenCalls(), list[tuple[PlacedMessage, Sequence[_Call]]]()
    for place, message in enumerate(messages):
        if message.get("role") != "tool":
            calls = open_calls.of(sent) if (sent := _calls(message)) else []
            own = {**message, "tool_calls": [call.call for call in calls]} if calls else message
            found.append((PlacedMessage(own, place), calls))
        elif (call := open_calls.taken(message)) is not None:
            call.answer(message, place)
        else:
            stray = {"role": "user", "content": f"{_RESULTS}\n{content_text(message.get('content'))}"}
            found.append((PlacedMessage(stray, place, is_stray=True), []))
    return [each for placed, calls in found for each in (placed, *_results(placed, calls))]


def _results(placed: PlacedMessage, calls: Sequence[_Call]) -> Iterator[PlacedMessage]:
    if not any(call.result for call in calls):
        return
    for call in calls:
        if call.result is None:
            call.answer({"role": "tool", "content": _NO_RESULT}, placed.place)
        assert call.result is not None
        yield call.result


def _calls(message: TemplateMessage) -> list[Mapping[str, Any]]:
    calls = message.get("tool_calls")
    return list(calls) if isinstance(calls, Sequence) else []


# -- as the template takes it ----------------------------------------------------------------------------


def in_words(shape: TemplateShape) -> TemplateShape:
    return msgspec.structs.replace(
        shape,
        system=SystemPlace.NOWHERE,
        calls=None,
        alternates=True,
        takes_empty=False,
        shows_system_tools=False,
    )


def adapted(
    messages: Sequence[TemplateMessage],
    tools: _Tools,
    shape: TemplateShape,
    form: ToolFormat,
    *,
    shows_thoughts: bool = False,
) -> tuple[list[TemplateMessage], _Tools]:
    """Return bound messages as the template can show them, and the tools left for it. Raises
    InvalidRequest."""
    calls = None if form.replaces_template else shape.calls
    turns: list[TemplateMessage] = []
    for index, message in enumerate(messages):
        role = "system" if message.get("role") == "developer" else message.get("role")
        text = content_text(message.get("content"), f"messages[{index}].content")
        turns.append({**message, "role": role, "content": text})
    turns, tools = _with_tools(turns, tools, shape, form)
    if not shape.takes_empty:
        turns = [one for one in turns[:-1] if not _is_empty(one, shows_thoughts)] + turns[-1:]
    turns = _with_system(turns, shape.system)
    if shape.alternates:
        turns = _joined(turns)
    turns = [
        turn for exchange in _exchanges(turns) for turn in _shown(exchange, form, calls, shape.alternates)
    ]
    if shape.alternates:
        turns = _joined(turns)
        first = next((at for at, turn in enumerate(turns) if turn["role"] != "system"), len(turns))
        if turns and (first == len(turns) or turns[first]["role"] != "user"):
            turns.insert(first, {"role": "user", "content": _SILENT})
    return turns, tools


def lost(messages: Sequence[TemplateMessage], tools: Sequence[str], text: str) -> int:
    """Count missing texts, calls and tools, by their longest words, because templates trim and write JSON."""
    num_lost, at = sum(name not in text for name in tools), 0
    for message in messages:
        called = (str(call["function"]["name"]) for call in _calls(message))
        for part in (content_text(message.get("content"))[:_LOOKED_AT], *called):
            word = max(_WORD.findall(part), key=len, default="")
            found = text.find(word, at)  # they stand there in their order, nearly always
            if found < 0 and word not in text:
                num_lost += 1
            at = max(at, found)
    return num_lost


def _is_empty(message: TemplateMessage, shows_thoughts: bool) -> bool:
    is_thought = shows_thoughts and message.get("reasoning_content")
    return message["role"] == "assistant" and not (message["content"] or _calls(message) or is_thought)


# -- tools -----------------------------------------------------------------------------------------------


def _with_tools(
    messages: list[TemplateMessage], tools: _Tools, shape: TemplateShape, form: ToolFormat
) -> tuple[list[TemplateMessage], _Tools]:
    if not tools or (shape.shows_tools and not form.replaces_template):
        return messages, tools
    has_system = bool(messages) and messages[0]["role"] == "system"
    head, rest = (messages[:1], messages[1:]) if has_system else ([], messages)
    if shape.shows_system_tools and not form.replaces_template:
        listed = to_json([tool["function"] for tool in tools])
        first = head[0] if head else _system("You are a helpful assistant with some tools.")
        return [{**first, "tools": listed}, *rest], ()
    listed = "\n".join(to_json(tool["function"]) for tool in tools)
    example = form.written([WrittenCall("NAME", {"PARAMETER": "VALUE"})])
    text = f"You can call these functions:\n{listed}\nTo call them, end your answer with:\n{example}"
    return [*_joined([*head, _system(text)]), *rest], ()


# -- the system's messages -------------------------------------------------------------------------------


def _system(text: str) -> TemplateMessage:
    return {"role": "system", "content": text}


def _with_system(messages: list[TemplateMessage], place: SystemPlace) -> list[TemplateMessage]:
    """Rejected system messages become text of the user, joined to the last text, else to the next."""
    if place is SystemPlace.ANYWHERE:
        return messages
    head = [*takewhile(lambda message: message["role"] == "system", messages)]
    rest = messages[len(head) :]
    turns: list[TemplateMessage] = []
    if place is SystemPlace.HEAD:
        turns = head
    elif place is SystemPlace.FIRST:
        turns = _joined(head)
    else:
        rest = messages
    is_waiting = False
    for message in rest:
        is_systems = message["role"] == "system"
        turn = {"role": "user", "content": message["content"]} if is_systems else message
        joins = bool(turns) and turns[-1]["role"] == turn["role"] == "user" and (is_systems or is_waiting)
        turns[-1:] = [_both(turns[-1], turn)] if joins else [*turns[-1:], turn]
        is_waiting = is_systems and (is_waiting or not joins)
    return turns


# -- calls -----------------------------------------------------------------------------------------------


_Exchange = tuple[TemplateMessage, Sequence[TemplateMessage], bool, bool]
"""Message, results of its calls, and True if a user's message follows, or nothing."""


def _exchanges(messages: Sequence[TemplateMessage]) -> Iterator[_Exchange]:
    at = 0
    while at < len(messages):
        message, at = messages[at], at + 1
        results: list[TemplateMessage] = []
        while at < len(messages) and messages[at]["role"] == "tool":
            results.append(messages[at])
            at += 1
        is_last = at == len(messages)
        yield message, results, not is_last and messages[at]["role"] == "user", is_last


def _shown(
    exchange: _Exchange, form: ToolFormat, shape: CallShape | None, alternates: bool
) -> Iterator[TemplateMessage]:
    """Alternating templates do not count calls and results, so both become text if a user's text follows."""
    message, results, has_next_question, is_last = exchange
    calls = _calls(message)
    if not calls:
        yield message
        yield from results if shape is not None or not results else [_results_turn(results)]
        return
    is_apart = shape is not None and shape.text_apart and bool(message["content"])
    is_refused = alternates and (has_next_question or is_apart)
    if shape is not None and not is_refused:
        yield from _called(message, results, form, shape, is_apart=is_apart)
    elif is_last and not results:
        yield message  # that it calls is an error anyway
    else:
        functions = [call["function"] for call in calls]
        written = form.written(
            [WrittenCall(str(x["name"]), arguments_object(x.get("arguments"))) for x in functions]
        )
        text = f"{message['content']}\n{written}" if message["content"] else written
        rest = {name: value for name, value in message.items() if name != "tool_calls"}
        yield {**rest, "content": text}
        if results:
            yield _results_turn(results)


def _called(
    message: TemplateMessage,
    results: Sequence[TemplateMessage],
    form: ToolFormat,
    shape: CallShape,
    *,
    is_apart: bool,
) -> Iterator[TemplateMessage]:
    calls = _calls(message)
    ids = [form.history_id(str(x["id"]), str(x["function"]["name"]), i) for i, x in enumerate(calls)]
    own = [{**call, "id": call_id} for call, call_id in zip(calls, ids, strict=True)]
    answers = [{**result, "tool_call_id": call_id} for result, call_id in zip(results, ids, strict=False)]
    bare = {name: value for name, value in message.items() if name != "reasoning_content"}
    calling = {**bare, "content": ""}
    if is_apart:
        yield {name: value for name, value in message.items() if name != "tool_calls"}
    first = calling if is_apart else message
    if not shape.one_by_one:
        yield {**first, "tool_calls": own}
        yield from answers
        return
    for index, call in enumerate(own):
        yield {**(calling if index else first), "tool_calls": [call]}
        yield from answers[index : index + 1]


def _results_turn(results: Sequence[TemplateMessage]) -> TemplateMessage:
    texts = "\n".join(str(result["content"]) for result in results)
    return {"role": "user", "content": f"{_RESULTS}\n{texts}"}


# -- turns -----------------------------------------------------------------------------------------------


def _joined(messages: Sequence[TemplateMessage]) -> list[TemplateMessage]:
    turns: list[TemplateMessage] = []
    for message in messages:
        joins = bool(turns) and turns[-1]["role"] == message["role"] != "tool" and not _calls(turns[-1])
        turns[-1:] = [_both(turns[-1], message)] if joins else [*turns[-1:], message]
    return turns


def _both(one: TemplateMessage, other: TemplateMessage) -> TemplateMessage:
    fields = {**one, **other}
    for name, between in (("content", "\n\n"), ("reasoning_content", "\n")):
        texts = [str(text) for text in (one.get(name), other.get(name)) if text]
        if name in fields:
            fields[name] = between.join(texts)
    return fields
