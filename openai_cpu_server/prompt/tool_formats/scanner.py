"""Finds calls in text that comes in pieces. A grammar made the text; nothing is parsed twice."""

from __future__ import annotations

import re
from typing import Protocol, Union

import msgspec


class CallBegin(msgspec.Struct, frozen=True):
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """A piece of the arguments' JSON text."""

    text: str


CallPart = Union[CallBegin, CallArguments]


class CallScanner(Protocol):
    """Finds calls. It skips separators, brackets and closing marks between them."""

    @property
    def is_cut(self) -> bool:
        """Whether the text, if it ended here, would end within a call, or before the first."""
        ...

    def feed(self, text: str) -> list[CallPart]: ...


class JsonCallScanner:
    """Finds calls whose arguments are one JSON object."""

    def __init__(self, head: re.Pattern[str]) -> None:
        """`head` matches what stands before the arguments; its group is the function's name."""
        self._head = head
        self._waiting = ""
        self._arguments: JsonValue | None = None
        self._num_begun = 0

    @property
    def is_cut(self) -> bool:
        return self._arguments is not None or self._num_begun == 0

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
        self._num_begun += 1
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
    """Finds the end of an object, an array or a string."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped_at: int | None = None

    def end_in(self, text: str) -> int | None:
        """The position behind the value's end in this piece; None: it does not end here."""
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
