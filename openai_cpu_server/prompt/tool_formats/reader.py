"""Protocol of tool-call formats, and readers of an output as it comes.

Models write calls of custom tools as calls of a function with one parameter.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Union

import msgspec

from openai_cpu_server.contract.request import overlap
from openai_cpu_server.prompt.tool_formats import patterns


class Content(patterns.OutputPiece, frozen=True): ...


class ThinkingText(patterns.OutputPiece, frozen=True): ...


class CallText(patterns.OutputPiece, frozen=True): ...


Part = Union[ThinkingText, Content, patterns.CallBegin, patterns.CallArguments, CallText]


class OutputReader(Protocol):
    @property
    def is_cut(self) -> bool:
        """Return True if the output ends within a call."""

    @property
    def has_calls(self) -> bool: ...

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]: ...


class TextReader:
    is_cut = False
    has_calls = False

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class MarkerGate:
    """`feed` returns the certain content, and the text of calls once they have begun, else None."""

    def __init__(self, marker: str) -> None:
        self._marker = marker
        self._held = ""

    def feed(self, text: str) -> tuple[str, str | None]:
        text = self._held + text
        content, found, calls = text.partition(self._marker)
        if found:
            self._held = ""
            return content.rstrip(), calls
        safe = len(text[: len(text) - overlap(text, self._marker)].rstrip())
        self._held = text[safe:]
        return text[:safe], None

    def rest(self) -> str:
        held, self._held = self._held, ""
        return held


class HeadGate:
    """An output that begins with a call consists of calls."""

    def __init__(self, ways: Sequence[patterns.CallPattern], names: Sequence[str]) -> None:
        """`ways`: beginnings of calls. `names`: () for any function."""
        self._ways = ways
        self._names = names
        self._held: str | None = ""
        """Text that may be a call, or None once the output is content."""

    def feed(self, text: str) -> tuple[str, str | None]:
        if self._held is None:
            return text, None
        self._held += text
        fits = [_fit(way, self._held, self._names) for way in self._ways]
        if _Fit.WHOLE in fits:
            calls, self._held = self._held, ""
            return "", calls
        return ("", None) if _Fit.PARTIAL in fits else (self.rest(), None)

    def rest(self) -> str:
        held, self._held = self._held, None
        return held or ""


class _Fit(enum.Enum):
    NOT = 0
    PARTIAL = 1
    WHOLE = 2


def _fit(pattern: patterns.CallPattern, text: str, names: Sequence[str]) -> _Fit:
    for index, part in enumerate(pattern):
        if part is patterns.PatternSlot.NAME:
            rest = pattern[index + 1 :]
            any_name = _NAME.match(text)
            possible = names or (any_name[0] if any_name else "?",)
            found = [_fit((name, *rest), text, ()) for name in possible]
            return max(found, key=lambda fit: fit.value)
        if isinstance(part, patterns.PatternSlot):
            text = text.lstrip()
        elif not text.startswith(part):
            return _Fit.PARTIAL if part.startswith(text) else _Fit.NOT
        else:
            text = text.removeprefix(part)
    return _Fit.WHOLE


_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class ToolReader:
    """Independent of how the text was cut."""

    def __init__(self, gate: MarkerGate | HeadGate, scanner: patterns.CallScanner) -> None:
        self._gate = gate
        self._scanner = scanner
        self.has_calls = False

    @property
    def is_cut(self) -> bool:
        return self.has_calls and self._scanner.is_cut

    def feed(self, text: str) -> list[Part]:
        if self.has_calls:
            return [*self._scanner.feed(text)]
        content, calls = self._gate.feed(text)
        parts: list[Part] = [Content(content)] if content else []
        if calls is not None:
            self.has_calls = True
            parts += self._scanner.feed(calls)
        return parts

    def finish(self) -> list[Part]:
        rest = self._gate.rest()
        return [Content(rest)] if rest else []


RawNames = Mapping[str, Mapping[str, frozenset[str]]]
"""Raw parameters, each with its other types, by function. {} allows any function."""


class Parameter(msgspec.Struct, frozen=True):
    name: str
    is_required: bool
    rule: str
    is_text: bool = False
    """True for any string, or one of `choices`, which may be written raw."""
    choices: tuple[str, ...] = ()
    others: frozenset[str] = frozenset()
    """Types of JSON Schema that the value may have in place of a string."""
    is_ruled: bool = False


class Callee(msgspec.Struct, frozen=True):
    name: str
    rule: str
    """Grammar of its arguments as one JSON object."""
    parameters: tuple[Parameter, ...] = ()
    in_any_order: bool = False


class WrittenCall(msgspec.Struct, frozen=True):
    name: str
    arguments: Mapping[str, object]


INPUT = "input"
_BLANK = patterns.PatternSlot.BLANK
OBJECT_HEAD: patterns.CallPattern = ("{", _BLANK, f'"{INPUT}"', _BLANK, ":", _BLANK)
OBJECT_TAIL: patterns.CallPattern = (_BLANK, "}")
_HEAD = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_WHOLE = re.compile(
    r"(?:[^\"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*"
)
"""Characters of a JSON string whose escapes are complete."""


class TextCallReader:
    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._waiting: str | None = None
        """Unread JSON, or None outside of such calls."""
        self._has_head = False

    def read(self, parts: Sequence[Part]) -> list[Part]:
        return [found for part in parts for found in self._read(part)] if self._names else list(parts)

    def _read(self, part: Part) -> list[Part]:
        if isinstance(part, patterns.CallBegin):
            is_custom = part.name in self._names
            self._waiting, self._has_head = ("" if is_custom else None), False
            return [patterns.CallBegin(part.name, takes_text=True)] if is_custom else [part]
        if not isinstance(part, patterns.CallArguments) or self._waiting is None:
            return [part]
        self._waiting += part.text
        if not self._has_head:
            head = _HEAD.match(self._waiting)
            if head is None:
                return []
            self._has_head, self._waiting = True, self._waiting[head.end() :]
        found = _WHOLE.match(self._waiting)
        assert found is not None, "it matches the empty text, too"
        self._waiting = self._waiting[found.end() :]
        text = json.loads(f'"{found[0]}"', strict=False)
        return [CallText(text)] if text else []
