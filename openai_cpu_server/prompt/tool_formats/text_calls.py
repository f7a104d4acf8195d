"""Calls of custom tools, which models write as calls of a function with one parameter."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence

from openai_cpu_server.prompt.tool_formats.patterns import CallArguments, CallBegin, Pattern, PatternSlot
from openai_cpu_server.prompt.tool_formats.reader import CallText, Part

INPUT = "input"
_BLANK = PatternSlot.BLANK
OBJECT_HEAD: Pattern = ("{", _BLANK, f'"{INPUT}"', _BLANK, ":", _BLANK)
OBJECT_TAIL: Pattern = (_BLANK, "}")
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
        self._is_begun = False

    def read(self, parts: Sequence[Part]) -> list[Part]:
        return [found for part in parts for found in self._read(part)] if self._names else list(parts)

    def _read(self, part: Part) -> list[Part]:
        if isinstance(part, CallBegin):
            is_custom = part.name in self._names
            self._waiting, self._is_begun = ("" if is_custom else None), False
            return [CallBegin(part.name, takes_text=True)] if is_custom else [part]
        if not isinstance(part, CallArguments) or self._waiting is None:
            return [part]
        self._waiting += part.text
        if not self._is_begun:
            head = _HEAD.match(self._waiting)
            if head is None:
                return []
            self._is_begun, self._waiting = True, self._waiting[head.end() :]
        return self._more()

    def _more(self) -> list[Part]:
        assert self._waiting is not None
        found = _WHOLE.match(self._waiting)
        assert found is not None, "it matches the empty text, too"
        self._waiting = self._waiting[found.end() :]
        text = json.loads(f'"{found[0]}"', strict=False)
        return [CallText(text)] if text else []
