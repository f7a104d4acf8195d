"""What a format of tool calls is, and how a model's output is read by it while it comes: first content, then
calls."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Protocol, Union

import msgspec

from openai_cpu_server.prompt.tool_formats.patterns import (
    CallArguments,
    CallBegin,
    CallScanner,
    OutputPiece,
    Pattern,
    PatternSlot,
    Spelling,
    overlap,
)


class Content(OutputPiece, frozen=True):
    """A piece of the answer."""


class ThinkingText(OutputPiece, frozen=True):
    """A piece of what the model thinks before it answers."""


class CallText(OutputPiece, frozen=True):
    """A piece of the text that a custom tool is called with."""


Part = Union[ThinkingText, Content, CallBegin, CallArguments, CallText]


class OutputReader(Protocol):
    """Reads one output as it comes."""

    @property
    def is_cut(self) -> bool:
        """Whether the output, if it ended here, would end within a call."""

    @property
    def has_calls(self) -> bool: ...

    def feed(self, text: str) -> list[Part]: ...

    def finish(self) -> list[Part]:
        """What was held back, once the output has ended."""


class TextReader:
    """Reads an output without marks: all of it is content."""

    is_cut = False
    has_calls = False

    def feed(self, text: str) -> list[Part]:
        return [Content(text)] if text else []

    def finish(self) -> list[Part]:
        return []


class Gate(Protocol):
    """Watches for the beginning of the calls."""

    def feed(self, text: str) -> tuple[str, str | None]:
        """The text that is surely content; and the text behind it once calls have begun, else None."""

    def rest(self) -> str:
        """The text that was held back, once the output has ended without calls."""


class MarkerGate:
    """Waits for a marker behind which calls begin. White space before the marker is dropped."""

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
    """Looks at the beginning only. An output that begins with a call of one of the functions consists of
    calls, any other of content."""

    def __init__(self, ways: Sequence[Pattern], names: Sequence[str]) -> None:
        """`ways`: how calls may begin, up to the first one's arguments or the marker. `names`: (): any
        function."""
        self._ways = ways
        self._names = names
        self._held: str | None = ""
        """The text held back while it may be a call; None: the output is content."""

    def feed(self, text: str) -> tuple[str, str | None]:
        if self._held is None:
            return text, None
        self._held += text
        fits = [_fit(way, self._held, self._names) for way in self._ways]
        if _Fit.WHOLE in fits:
            calls, self._held = self._held, ""
            return "", calls
        return ("", None) if _Fit.BEGUN in fits else (self.rest(), None)

    def rest(self) -> str:
        held, self._held = self._held, None
        return held or ""


class _Fit(enum.Enum):
    """How much of a pattern a text has."""

    NOT = 0
    BEGUN = 1
    WHOLE = 2


def _fit(pattern: Pattern, text: str, names: Sequence[str]) -> _Fit:
    """How much of the pattern the text begins with."""
    for index, part in enumerate(pattern):
        if part is PatternSlot.NAME:
            rest = pattern[index + 1 :]
            found = [_fit((name, *rest), text, ()) for name in names or (_name(text),)]
            return max(found, key=lambda fit: fit.value)
        if isinstance(part, PatternSlot):
            text = text.lstrip()
        elif not text.startswith(part):
            return _Fit.BEGUN if part.startswith(text) else _Fit.NOT
        else:
            text = text.removeprefix(part)
    return _Fit.WHOLE


def _name(text: str) -> str:
    """The name at the text's beginning, whatever it is."""
    found = _NAME.match(text)
    return found[0] if found else "?"


_NAME = re.compile(r"[A-Za-z0-9_.-]+")


class ToolReader:
    """Gives the same content and calls however the text was cut into pieces."""

    def __init__(self, gate: Gate, scanner: CallScanner) -> None:
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


RawNames = Mapping[str, frozenset[str]]
"""For each function that may be called: its parameters that are written as raw text. {}: any function."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter of a function, for formats that write each by itself."""

    name: str
    is_required: bool
    rule: str
    """The grammar's rule for its value as JSON."""
    is_text: bool = False
    """It is any string, or one of `choices`: it may be written raw."""
    choices: tuple[str, ...] = ()
    is_boolean: bool = False
    """It is true or false."""
    is_ruled: bool = False
    """`rule` is that of the raw text, where not any text may stand."""


class Callee(msgspec.Struct, frozen=True):
    """A function in the grammar of calls."""

    name: str
    rule: str
    """The grammar's rule, or its expression, for its arguments as one JSON object."""
    parameters: tuple[Parameter, ...] = ()
    in_any_order: bool = False
    """They may be written in any order; else in theirs."""


class WrittenCall(msgspec.Struct, frozen=True):
    name: str
    arguments: Mapping[str, object]


class ToolFormat(Protocol):
    """How a family of models writes calls. Grammars are GBNF: the root's expression, then lines of rules."""

    @property
    def name(self) -> str:
        """The name in `--tool-format`."""

    @property
    def marker(self) -> str:
        """The text (a control token by its name) behind which calls begin in free text; "": there is none,
        the whole output has a grammar."""

    @property
    def text_end(self) -> str:
        """The mark that ends raw text in a call; "": texts are JSON strings there."""

    @property
    def splits_parameters(self) -> bool:
        """Whether each parameter is written by itself; else the arguments are one JSON object."""

    def announces(self, spelling: Spelling) -> bool:
        """Whether a control token tells calls from any text in this model's outputs."""

    @property
    def replaces_template(self) -> bool:
        """Whether tools and calls are told in words, whatever the template would show."""

    def recognises(self, template: str) -> bool:
        """Whether the source of a chat template teaches this format."""

    def behind_marker(self, callees: Sequence[Callee], spelling: Spelling, *, several: bool) -> str:
        """The grammar of everything behind the marker, up to the output's end."""

    def whole(
        self, callees: Sequence[Callee], spelling: Spelling, *, several: bool, answer: str | None
    ) -> str:
        """The grammar of a whole output. `answer`: the rule for text that is no call; "": any text;
        None: there must be calls."""

    def names_parameter(self, name: str) -> bool:
        """Whether a parameter of this name can be written, and read again."""

    def raw_parameters(self, callee: Callee) -> frozenset[str]:
        """The parameters whose values stand in the output as raw text."""

    def written(self, calls: Sequence[WrittenCall]) -> str:
        """Calls as the model would have written them."""

    def history_id(self, call_id: str, name: str, index: int) -> str:
        """The id of an earlier call of this function, the `index`-th of its message, in the shape that the
        family's templates want."""

    def reader(self, functions: RawNames, *, at_start: bool = False) -> OutputReader:
        """A reader for one output. With `at_start` the output begins with calls or has none."""
