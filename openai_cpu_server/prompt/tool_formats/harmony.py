"""gpt-oss' harmony. `analysis` has thoughts, `final` the answer, `commentary` a call or words before one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from openai_cpu_server.contract.request import overlap
from openai_cpu_server.prompt.template import to_json
from openai_cpu_server.prompt.tool_formats import patterns
from openai_cpu_server.prompt.tool_formats.form import ToolFormat
from openai_cpu_server.prompt.tool_formats.literals import NO_SCHEMAS, ParameterSchema
from openai_cpu_server.prompt.tool_formats.reader import (
    Callee,
    Content,
    Part,
    RawNames,
    ThinkingText,
    WrittenCall,
)

_CHANNEL, _MESSAGE, _END, _NEXT = "<|channel|>", "<|message|>", "<|end|>", "<|start|>assistant"
_TO = " to=functions."
_ANY_TEXT = "[^\\x00]*"


class HarmonyFormat(ToolFormat, frozen=True):
    def recognises(self, template: str) -> bool:
        return _CHANNEL in template and "<|start|>" in template and _MESSAGE in template

    def announces(self, spelling: patterns.Spelling) -> bool:
        return True

    def behind_marker(self, callees: Sequence[Callee], spelling: patterns.Spelling, *, several: bool) -> str:
        return self.whole(callees, spelling, several=several, answer=None)

    def whole(
        self, callees: Sequence[Callee], spelling: patterns.Spelling, *, several: bool, answer: str | None
    ) -> str:
        endings = ["call"] if callees else []
        endings += ["final"] if answer is not None else []
        lines = [f"thoughts ({' | '.join(endings)})", *_thoughts(spelling)]
        if callees:
            lines.append(f"call ::= {' | '.join(f'call-{index}' for index in range(len(callees)))}")
        for index, callee in enumerate(callees):
            lines += _call(index, callee, spelling)
        if answer is not None:
            form = f'(" "? {spelling.literal("<|constrain|>")} "json")? ' if answer else ""
            begin = f'{spelling.literal(_CHANNEL)} "final" {form}{spelling.literal(_MESSAGE)}'
            lines.append(f"final ::= {begin} {answer or _ANY_TEXT}")
        return "\n".join(lines) + "\n"

    def written(self, calls: Sequence[WrittenCall]) -> str:
        return f"<|end|>{_NEXT}".join(
            f"{_CHANNEL}commentary{_TO}{call.name} <|constrain|>json{_MESSAGE}{to_json(call.arguments)}"
            for call in calls
        )

    def reader(
        self,
        functions: RawNames,
        *,
        at_start: bool = False,
        schemas: Mapping[str, ParameterSchema] = NO_SCHEMAS,
    ) -> HarmonyReader:
        return HarmonyReader()


def _thoughts(spelling: patterns.Spelling) -> list[str]:
    """A model without these marks begins at once."""
    if spelling.control_token(_CHANNEL) is None:
        return ['thoughts ::= ""']
    channel, message = spelling.literal(_CHANNEL), spelling.literal(_MESSAGE)
    text = spelling.until(_END)
    return [
        f'thoughts ::= ({channel} ("analysis" | "commentary") {message} {text} {spelling.literal(_NEXT)})*'
    ]


def _call(index: int, callee: Callee, spelling: patterns.Spelling) -> list[str]:
    channel, message = spelling.literal(_CHANNEL), spelling.literal(_MESSAGE)
    to = spelling.literal(_TO + callee.name)
    kind = f'((" " | " "? {spelling.literal("<|constrain|>")}) "json")?'
    heads = (f'{to} {channel} "commentary" {kind}', f'{channel} ("commentary" | "analysis") {to} {kind}')
    return [f"call-{index} ::= head-{index} {message} {callee.rule}", f"head-{index} ::= {' | '.join(heads)}"]


_FUNCTION = re.compile(r"to=functions\.([A-Za-z0-9_.-]+)")
_THOUGHT = re.compile(re.escape(_CHANNEL) + r"\s*analysis")


class HarmonyReader:
    """Text outside of messages is content."""

    def __init__(self) -> None:
        self._header: str | None = ""
        """Header so far, or None while its text is read."""
        self._waiting = ""
        self._kind: type[ThinkingText] | type[Content] | type[patterns.CallArguments] = Content
        self._arguments = patterns.JsonValue()
        self.is_cut = False
        self.has_calls = False

    def feed(self, text: str) -> list[Part]:
        self._waiting += text
        parts: list[Part] = []
        while (found := self._in_text() if self._header is None else self._in_header()) is not None:
            parts += found
        for part in parts:
            if isinstance(part, patterns.CallArguments) and self._arguments.end_in(part.text) is not None:
                self.is_cut = False
        return patterns.merged_parts(parts)

    def finish(self) -> list[Part]:
        rest, self._waiting = self._waiting, ""
        if self._header is None:
            return [self._kind(rest)] if rest else []
        return [Content(rest)] if rest and not _begins_header(rest) else []

    def _in_header(self) -> list[Part] | None:
        header, found, rest = self._waiting.partition(_MESSAGE)
        if not found:
            if _begins_header(self._waiting):
                return None
            self._header = None
            return []
        self._waiting, self._header = rest, None
        function = _FUNCTION.search(header)
        if function is not None:
            self._kind, self.has_calls, self.is_cut = patterns.CallArguments, True, True
            return [patterns.CallBegin(function[1])]
        self._kind = ThinkingText if _THOUGHT.search(header) else Content
        return []

    def _in_text(self) -> list[Part] | None:
        text, found, rest = self._waiting.partition(_END)
        if found:
            self._waiting, self._header = rest, ""
            kind, self._kind = self._kind, Content
            return [kind(text)] if text else []
        end = len(text) - overlap(text, _END)
        sure, self._waiting = text[:end], text[end:]
        return [self._kind(sure)] if sure else None


def _begins_header(text: str) -> bool:
    starts = (_CHANNEL, "<|start|>", _TO)
    return any(text.startswith(start) or start.startswith(text) for start in starts)
