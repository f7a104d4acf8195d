"""Calls whose parameters are written one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from openai_cpu_server.prompt.template import to_json
from openai_cpu_server.prompt.tool_formats.patterns import (
    NEVER,
    CallArguments,
    CallBegin,
    CallPart,
    JsonValue,
    Pattern,
    Spelling,
    has_mark,
    merged_parts,
    partial_match,
    pattern_text,
    quoted,
    regex_of,
)
from openai_cpu_server.prompt.tool_formats.reader import Parameter, RawNames

_PYTHON_STRING = r"""([^'\\\x00-\x1f] | "\\" ['"\\/bfnrt])* "'" """


class Parameters(msgspec.Struct, frozen=True):
    """Strings are raw text where possible, other values JSON."""

    begin: Pattern
    raw_begin: str = ""
    """Stands before raw text; "" if only the name distinguishes raw text from JSON."""
    raw_end: str = ""
    """Ends raw text, and JSON too if `raw_begin` is ""."""
    behind: Pattern = ()
    between: Pattern = ()
    close: str = ""
    is_python: bool = False
    """True for Python's strings in single quotes, True and False."""

    def is_raw(self, parameter: Parameter) -> bool:
        """Return True if the value is raw text, and no choice resembles its end."""
        if not parameter.is_text:
            return False
        forbidden = ("'", "\\", "\n", '"') if self.is_python else (self.raw_end, self.raw_end.strip())
        return not any(mark in choice for choice in parameter.choices for mark in forbidden)

    def names(self, name: str) -> bool:
        """Return True if a name is read as written."""
        found = self.next_part.search(pattern_text(self.begin, name))
        is_read = found is not None and found.start() == 0 and found[1] == name
        return is_read and name.isprintable() and not has_mark(name)

    # Grammar

    def gbnf(
        self, parameters: Sequence[Parameter], spelling: Spelling, stem: str, *, in_any_order: bool = False
    ) -> tuple[str, list[str]]:
        """Return the expression of all parameters, and rules whose names begin with `stem`."""
        rules = []
        for i, each in enumerate(parameters):
            rules.append(f"{stem}-key-{i} ::= {spelling.gbnf(self.begin, each.name)}")
            rules.append(f"{stem}-{i} ::= {self._one(each, spelling, f'{stem}-key-{i}')}")
        between = spelling.gbnf(self.between)
        if in_any_order and parameters:
            return f"{stem}-of-0", rules + _in_any_order(parameters, between, stem)
        if not between:
            shown = [f"{stem}-{i}" + ("" if x.is_required else "?") for i, x in enumerate(parameters)]
            return " ".join(shown), rules
        first, rest = "", ""
        for i in reversed(range(len(parameters))):
            here, is_required = f"{stem}-{i} {rest}".strip(), parameters[i].is_required
            alone = here if is_required else f"{here} | {first}" if first else f"({here})?"
            more = f"{between} {stem}-{i}" if is_required else f"({between} {stem}-{i})?"
            first, after, rest = f"{stem}-first-{i}", rest, f"{stem}-rest-{i}"
            rules += [f"{first} ::= {alone}", f"{rest} ::= {more} {after}".strip()]
        return first, rules

    def _one(self, parameter: Parameter, spelling: Spelling, key: str) -> str:
        begin = f"({key} | {NEVER})"
        behind = spelling.gbnf(self.behind)
        plain = f"{parameter.rule} {spelling.literal(self._json_end)}".strip()
        if self.is_python and parameter.is_boolean:
            plain = f'({plain} | "True" | "False")'
        if not self.is_raw(parameter):
            return f"{begin} {plain} {behind}".strip()
        if parameter.choices:
            choices = " | ".join(quoted(choice) if choice else '""' for choice in parameter.choices)
            raw = f"({choices}) {spelling.literal(self.raw_end)}"
        elif parameter.is_ruled:
            raw = f"{parameter.rule} {spelling.literal(self.raw_end)}"
        elif self.is_python:
            raw = _PYTHON_STRING.strip()
        else:
            raw = "raw-text"
        raw = f"{spelling.literal(self.raw_begin)} {raw}".strip()
        value = f"({raw} | {plain})" if self.is_python else raw
        return f"{begin} {value} {behind}".strip()

    @property
    def _json_end(self) -> str:
        return "" if self.raw_begin else self.raw_end

    # Text

    def text(self, arguments: Mapping[str, object]) -> str:
        return pattern_text(self.between).join(self._written(*item) for item in arguments.items())

    def _written(self, name: str, value: object) -> str:
        begin = pattern_text(self.begin, name)
        if self.is_python:
            return begin + repr(value)
        if isinstance(value, str):
            shown = f"{self.raw_begin}{value}{self.raw_end}"
        else:
            shown = to_json(value) + self._json_end
        return begin + shown + pattern_text(self.behind)

    @property
    def next_part(self) -> re.Pattern[str]:
        """Match the next parameter's name, or the end of the call. Text that is neither is read once: a name
        without a tag begins the text and has no separator, because other places would be tried for each
        character."""
        close = re.escape(self.close)
        if isinstance(self.begin[0], str):
            return re.compile(rf"{regex_of(self.begin, f'([^{close[0]}]+?)')}|({close})")
        sign = re.escape(str(self.begin[1]))
        name = rf"([^\s,{close}{sign}][^{close}{sign}]*)"
        return re.compile(rf"\A[\s,]*(?:{name}{sign}|({close}))")


class ParameterScanner:
    def __init__(self, head: re.Pattern[str], layout: Parameters, raw: RawNames) -> None:
        """`head` matches what stands before the parameters, with the function's name."""
        self._head = head
        self._next = layout.next_part
        self._layout = layout
        self._raw = raw
        self._waiting = ""
        self._call: str | None = None
        self._value: _RawText | _PythonText | _JsonText | None = None
        self._key: str | None = None
        self._num_parameters = 0
        self._num_begun = 0

    @property
    def is_cut(self) -> bool:
        return self._call is not None or self._num_begun == 0

    def feed(self, text: str) -> list[CallPart]:
        self._waiting += text
        parts: list[CallPart] = []
        while (found := self._step()) is not None:
            parts += found
        return merged_parts(parts)

    def _step(self) -> list[CallPart] | None:
        if self._value is not None:
            found, self._waiting, is_done = self._value.read(self._waiting)
            if is_done:
                self._value = None
            return [CallArguments(found)] if found else [] if is_done else None
        if self._key is not None:
            return self._begin_value(self._key)
        return self._between_calls() if self._call is None else self._between_parameters()

    def _between_calls(self) -> list[CallPart] | None:
        head = self._head.search(self._waiting)
        if head is None:
            return None
        self._waiting = self._waiting[head.end() :]
        self._call, self._num_parameters = head[1], 0
        self._num_begun += 1
        return [CallBegin(head[1]), CallArguments("{")]

    def _between_parameters(self) -> list[CallPart] | None:
        found = self._next.search(self._waiting)
        if found is None:
            return None
        self._waiting = self._waiting[found.end() :]
        if found[2] is not None:
            self._call = None
            return [CallArguments("}")]
        self._key = found[1]
        comma = "," if self._num_parameters else ""
        self._num_parameters += 1
        return [CallArguments(f"{comma}{to_json(found[1])}:")]

    def _begin_value(self, key: str) -> list[CallPart] | None:
        assert self._call is not None
        mark = self._layout.raw_begin
        if mark:
            self._waiting = self._waiting.lstrip()
            if len(self._waiting) < len(mark) and mark.startswith(self._waiting):
                return None
            is_raw = self._waiting.startswith(mark)
            self._waiting = self._waiting.removeprefix(mark)
        else:
            is_raw = key in self._raw.get(self._call, frozenset())
        self._key = None
        if is_raw:
            self._value = _PythonText() if self._layout.is_python else _RawText(self._layout.raw_end)
        else:
            self._value = _JsonText()
        return []


def _in_any_order(parameters: Sequence[Parameter], between: str, stem: str) -> list[str]:
    required = sum(1 << i for i, each in enumerate(parameters) if each.is_required)
    rules = []
    for written in range(1 << len(parameters)):
        left = [i for i in range(len(parameters)) if not written >> i & 1]
        comma = between if written else ""
        ways = [f"{comma} {stem}-{i} {stem}-of-{written | 1 << i}".strip() for i in left]
        may_end = written & required == required
        ways += ['""'] if may_end else []
        rules.append(f"{stem}-of-{written} ::= {' | '.join(ways)}")
    return rules


Read = tuple[str, str, bool]
"""Certain JSON text, the rest of the text, and True if the value has ended."""


class _RawText:
    def __init__(self, end: str) -> None:
        self._end = end
        self._open = '"'

    def read(self, text: str) -> Read:
        content, found, rest = text.partition(self._end)
        if not found:
            sure = len(text) - partial_match(text, self._end)
            content, rest = text[:sure], text[sure:]
        begin, self._open = self._open, ""
        return begin + _escaped(content) + ('"' if found else ""), rest, bool(found)


class _PythonText:
    def __init__(self) -> None:
        self._open = '"'

    def read(self, text: str) -> Read:
        found, self._open = self._open, ""
        at = 0
        while at < len(text):
            if text[at] == "'":
                return found + '"', text[at + 1 :], True
            if text[at] == "\\":
                if at + 1 == len(text):
                    break
                found += "'" if text[at + 1] == "'" else text[at : at + 2]
                at += 2
            else:
                found += _escaped(text[at])
                at += 1
        return found, text[at:], False


_WORDS = {"True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"[A-Za-z0-9+.-]+(?=[^A-Za-z0-9+.-])")


class _JsonText:
    def __init__(self) -> None:
        self._value: JsonValue | None = None

    def read(self, text: str) -> Read:
        if self._value is None:
            text = text.lstrip()
            if not text:
                return "", "", False
            if text[0] not in '"{[':
                word = _WORD.match(text)
                return (_WORDS.get(word[0], word[0]), text[word.end() :], True) if word else ("", text, False)
            self._value = JsonValue()
        end = self._value.end_in(text)
        return (text, "", False) if end is None else (text[:end], text[end:], True)


def _escaped(text: str) -> str:
    return to_json(text)[1:-1]
