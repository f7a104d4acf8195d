"""Patterns of the text around calls, which are written, read and made grammars."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, Union

import msgspec


class PatternSlot(enum.Enum):
    NAME = "a function's or a parameter's name"
    BLANK = "white space as far as the server allows it in JSON; written without"
    SPACE = "the same; written as one space"
    GAP = "a space or none; written without"
    LINE = "a line break; outputs are read without it, too"
    ID = "nine letters or digits"
    INDEX = "the call's number"
    KIND = "a word for the type of a parameter's value"


CallPattern = tuple[Union[str, PatternSlot], ...]
_SLOT = re.compile(rf"\$({'|'.join(slot.name for slot in PatternSlot)})")


def read_pattern(text: str) -> CallPattern:
    parts = enumerate(_SLOT.split(text))
    return tuple(PatternSlot[part] if index % 2 else part for index, part in parts if part)


_WRITTEN = {
    PatternSlot.BLANK: "",
    PatternSlot.SPACE: " ",
    PatternSlot.GAP: "",
    PatternSlot.LINE: "\n",
    PatternSlot.ID: "000000000",
}
_NAME = r"([A-Za-z0-9_.-]+)"
_REGEX = {
    PatternSlot.ID: "[A-Za-z0-9_-]+",
    PatternSlot.INDEX: "[0-9]+",
    PatternSlot.KIND: "(?P<kind>[a-z]+)",
}
_OPEN = (PatternSlot.NAME, PatternSlot.LINE, PatternSlot.GAP)
_GBNF = {
    PatternSlot.GAP: '" "?',
    PatternSlot.LINE: r'"\n"',
    PatternSlot.ID: "[A-Za-z0-9]{9}",
    PatternSlot.INDEX: "[0-9] [0-9]?",
}
_MARK = re.compile(r"(｜DSML｜|\]<\]minimax\[>\[|<(?!/?｜DSML｜)[^<>\s]+>|\[[A-Z_]{3,}\])")
"""Control tokens of models that were taught the mark."""


def pattern_text(pattern: CallPattern, name: str = "", index: int = 0) -> str:
    slots = {**_WRITTEN, PatternSlot.NAME: name, PatternSlot.INDEX: str(index)}
    return "".join(part if isinstance(part, str) else slots[part] for part in pattern)


def has_mark(text: str) -> bool:
    return _MARK.search(text) is not None


def regex_of(pattern: CallPattern, name: str = _NAME) -> str:
    """The name is the group, tried once and not from each letter. An open end stops before a mark."""
    if pattern[0] is PatternSlot.NAME and name == _NAME:
        name = rf"(?<![A-Za-z0-9_.-]){name}"
    slots = {**_REGEX, PatternSlot.NAME: name}
    found = "".join(re.escape(x) if isinstance(x, str) else slots.get(x, r"\s*") for x in pattern)
    return found + r"(?=[<{])" if pattern[-1] in _OPEN else found


def quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


NEVER = "never"
"""Recursive rule that matches nothing. A rule that names it is not read as one lexeme, as in `structured`."""
NEVER_RULE = f"{NEVER} ::= [^\\x00-\\U0010FFFF] {NEVER}"


class Spelling(msgspec.Struct, frozen=True):
    blank: str
    """GBNF of optional white space, or ""."""
    control_token: Callable[[str], int | None]
    """Returns the number of a control token, or None if its name is plain text."""

    def gbnf(self, pattern: CallPattern, name: str = "") -> str:
        names = {PatternSlot.NAME: name}
        texts = [part if isinstance(part, str) else names.get(part) for part in pattern]
        return " ".join(filter(None, self._joined(zip(pattern, texts, strict=True))))

    def literal(self, text: str) -> str:
        return self.gbnf((text,))

    def _joined(self, parts: Iterable[tuple[Union[str, PatternSlot], str | None]]) -> Iterable[str]:
        waiting = ""
        for part, text in parts:
            if text is not None:
                waiting += text
                continue
            assert isinstance(part, PatternSlot)
            slot = _GBNF.get(part, self.blank)
            if slot:
                yield self._spelt(waiting)
                yield slot
                waiting = ""
        yield self._spelt(waiting)

    def _spelt(self, text: str) -> str:
        found, waiting = [], ""
        for part in _MARK.split(text):
            number = self.control_token(part) if _MARK.fullmatch(part) else None
            if number is None:
                waiting += part
                continue
            found += [quoted(waiting)] if waiting else []
            found.append(f"<[{number}]>")
            waiting = ""
        return " ".join(found + ([quoted(waiting)] if waiting else []))

    def until(self, end: str) -> str:
        """Match any text up to `end`, without its first character if that is not unique in it."""
        spelt = self._spelt(end)
        if spelt != quoted(end):
            return f"[^\\x00]* {spelt}"
        first, rest = end[0], end[1:]
        if first in rest:  # a search would have to go back into what it has read
            return f"{_none_of(first)}* {quoted(end)}"
        mark = quoted(first)
        found = ""
        for char in reversed(rest[:-1]):
            found = f"({quoted(char)} {found})?" if found else f"{quoted(char)}?"
        prefix = found or '""'
        other = " | ".join(
            f"{quoted(rest[:i])} {_none_of(first + rest[i])}" if i else _none_of(first + rest[0])
            for i in range(len(rest))
        )
        again = f"({prefix} {mark})*"
        if not rest:
            return f"{_none_of(first)}* {mark}"
        return f"({_none_of(first)} | {mark} {again} ({other}))* {mark} {again} {quoted(rest)}"


def _none_of(chars: str) -> str:
    escaped = "".join(
        {"\n": "\\n", "\\": "\\\\", "]": "\\]", "^": "\\^", "-": "\\-"}.get(c, c) for c in chars
    )
    return f"[^\\x00{escaped}]"


class CallBegin(msgspec.Struct, frozen=True):
    name: str
    takes_text: bool = False


class OutputPiece(msgspec.Struct, frozen=True):
    text: str


class CallArguments(OutputPiece, frozen=True): ...


CallPart = Union[CallBegin, CallArguments]
P = TypeVar("P", bound=msgspec.Struct)


def merged_parts(parts: Sequence[P]) -> list[P]:
    found: list[P] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, OutputPiece) and isinstance(last, OutputPiece) and type(part) is type(last):
            found[-1] = type(part)(last.text + part.text)
        else:
            found.append(part)
    return found


class CallScanner(Protocol):
    @property
    def is_cut(self) -> bool:
        """True within a call, or before the first."""

    def feed(self, text: str) -> list[CallPart]: ...


class JsonCallScanner:
    def __init__(self, head: re.Pattern[str]) -> None:
        """`head` matches what stands before the arguments; its group is the function's name."""
        self._head = head
        self._waiting = ""
        self._arguments: JsonValue | None = None
        self._num_started = 0

    @property
    def is_cut(self) -> bool:
        return self._arguments is not None or self._num_started == 0

    def feed(self, text: str) -> list[CallPart]:
        parts: list[CallPart] = []
        while text:
            part, text = self._between(text) if self._arguments is None else self._inside(text)
            parts += [part] if part is not None else []
        return parts

    def _between(self, text: str) -> tuple[CallBegin | None, str]:
        self._waiting += text
        head = self._head.search(self._waiting)
        if head is None:
            return None, ""
        rest, self._waiting = self._waiting[head.end() :], ""
        self._arguments = JsonValue()
        self._num_started += 1
        return CallBegin(head[1]), rest

    def _inside(self, text: str) -> tuple[CallArguments, str]:
        assert self._arguments is not None
        end = self._arguments.end_in(text)
        if end is None:
            return CallArguments(text), ""
        self._arguments = None
        return CallArguments(text[:end]), text[end:]


_MARKS = re.compile(r'["\\{}\[\]]')


class JsonValue:
    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped_at: int | None = None

    def end_in(self, text: str) -> int | None:
        skip, self._escaped_at = self._escaped_at, None
        for mark in _MARKS.finditer(text):
            at = mark.start()
            if at == skip:
                continue
            if mark[0] == "\\":
                skip = at + 1
            elif self._ends(mark[0]):
                return at + 1
        self._escaped_at = 0 if skip == len(text) else None
        return None

    def _ends(self, mark: str) -> bool:
        if mark == '"':
            self._in_string = not self._in_string
        elif not self._in_string:
            self._depth += 1 if mark in "{[" else -1
        return not self._in_string and self._depth == 0
