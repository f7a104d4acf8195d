"""Calls whose parameters are written one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from openai_cpu_server.contract.grammar import Notation, ValueSpelling
from openai_cpu_server.prompt.template import to_json
from openai_cpu_server.prompt.tool_formats import patterns
from openai_cpu_server.prompt.tool_formats.literals import (
    ElementsReader,
    LiteralReader,
    ParameterSchema,
    RawTextReader,
    TextOrScalarReader,
    ValueSchema,
    json_type,
    notated,
)
from openai_cpu_server.prompt.tool_formats.reader import Parameter, RawNames

_WORDS = {"null": ("null", "None"), "boolean": ("true", "false", "True", "False")}
_PYTHON_STRING = r"""([^'\\\x00-\x1f] | "\\" ['"\\/bfnrt])* "'" """


class Parameters(msgspec.Struct, frozen=True):
    """Strings are raw text where possible, other values JSON."""

    begin: patterns.CallPattern
    raw_begin: str = ""
    """Stands before raw text; "" if only the name distinguishes raw text from JSON."""
    raw_end: str = ""
    """Ends raw text, and JSON too if `raw_begin` is ""."""
    wrapping: tuple[str, str] = ("", "")
    """Marks around raw text that has marks of XML or line breaks, or ""."""
    behind: patterns.CallPattern = ()
    between: patterns.CallPattern = ()
    close: str = ""
    is_python: bool = False
    """Strings in single quotes, True and False."""
    has_literals: bool = False
    """Templates show Python's literals where models were taught JSON."""
    nesting: str = ""
    """Mark before tags of nested values as in XML, or ""."""
    kinds: Mapping[str, str] = {}
    """Words for JSON's types in `begin`, of which that for strings distinguishes raw text; {} for none."""

    def is_raw(self, parameter: Parameter) -> bool:
        """Return True if the value is raw text, and no choice resembles its end."""
        if not parameter.is_text or (parameter.others and self.raw_begin):
            return False
        forbidden: tuple[str, ...] = (self.raw_end, self.raw_end.strip())
        if self.is_python:
            forbidden = ("'", "\\", "\n", '"')
        elif self.wrapping[0]:
            forbidden = ("<", "&", "\n")
        return not any(mark in choice for choice in parameter.choices for mark in forbidden)

    def names(self, name: str) -> bool:
        found = self.next_part.search(patterns.pattern_text(self._begin("string"), name))
        is_read = found is not None and found.start() == 0 and found["name"] == name
        return is_read and name.isprintable() and not patterns.has_mark(name)

    @property
    def notation(self) -> Notation:
        if self.is_python or self.has_literals:
            return Notation.PYTHON
        if self.nesting:
            return Notation.ELEMENTS
        return Notation.MARKED if self.raw_begin else Notation.JSON

    @property
    def _marks(self) -> tuple[str, str]:
        return (self.nesting, "") if self.nesting else (self.raw_begin, self.raw_end)

    # Grammar

    def value_spelling(self, spelling: patterns.Spelling) -> ValueSpelling:
        mark = self._marks[0] if self.notation in (Notation.MARKED, Notation.ELEMENTS) else ""
        return ValueSpelling(self.notation, mark, spelling.control_token(mark) if mark else None)

    def gbnf(
        self,
        parameters: Sequence[Parameter],
        spelling: patterns.Spelling,
        stem: str,
        *,
        in_any_order: bool = False,
    ) -> tuple[str, list[str]]:
        """`stem`: beginning of the rules' names."""
        rules = []
        for i, each in enumerate(parameters):
            ways = []
            for way, one in enumerate(self._ways(each)):
                key = f"{stem}-key-{i}-{way}"
                begins = dict.fromkeys(spelling.gbnf(begin, each.name) for begin in self._begins(one))
                rules.append(f"{key} ::= {' | '.join(begins)}")
                ways.append(self._one(one, spelling, key))
            rules.append(f"{stem}-{i} ::= {' | '.join(ways)}")
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

    def _ways(self, parameter: Parameter) -> list[Parameter]:
        if not (self.kinds and parameter.others and self.is_raw(parameter)):
            return [parameter]
        return [replace(parameter, others=frozenset()), replace(parameter, is_text=False)]

    def _begins(self, parameter: Parameter) -> list[patterns.CallPattern]:
        if not self.kinds:
            return [self.begin]
        if self.is_raw(parameter):
            return [self._begin("string")]
        kinds = {"number" if kind == "integer" else kind for kind in parameter.others} or self.kinds
        return [self._begin(kind) for kind in self.kinds if kind != "string" and kind in kinds]

    def _begin(self, kind: str) -> patterns.CallPattern:
        word = self.kinds.get(kind, "")
        return tuple(word if part is patterns.PatternSlot.KIND else part for part in self.begin)

    def _one(self, parameter: Parameter, spelling: patterns.Spelling, key: str) -> str:
        begin = f"({key} | {patterns.NEVER})"
        behind = spelling.gbnf(self.behind, parameter.name)
        plain = f"{parameter.rule} {spelling.literal(self._json_end)}".strip()
        if not self.is_raw(parameter):
            return f"{begin} {plain} {behind}".strip()
        if parameter.choices:
            words = [word for kind in parameter.others for word in _WORDS[kind]]
            choices = " | ".join(map(patterns.quoted, dict.fromkeys((*parameter.choices, *words))))
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

    def raw_text(self, spelling: patterns.Spelling) -> str:
        begin, end = self.wrapping
        if not begin:
            return spelling.until(self.raw_end)
        assert end == "]]>", "other ends of wrapped texts have no grammar"
        wrapped = r'([^\x00\]] | "]" [^\x00\]] | "]]" "]"* [^\x00\]>])* "]]" "]"* ">"'
        return f"(([^\\x00<&\\n])* | {patterns.quoted(begin)} {wrapped}) {spelling.literal(self.raw_end)}"

    @property
    def _json_end(self) -> str:
        return "" if self.raw_begin else self.raw_end

    # Text

    def text(self, arguments: Mapping[str, object]) -> str:
        return patterns.pattern_text(self.between).join(self._written(*item) for item in arguments.items())

    def _written(self, name: str, value: object) -> str:
        begin = patterns.pattern_text(self._begin(json_type(value)), name)
        if self.is_python:
            return begin + notated(value, self.notation, self._marks)
        if isinstance(value, str):
            before, after = self.wrapping if re.search("[<&\n]", value) else ("", "")
            shown = f"{self.raw_begin}{before}{value}{after}{self.raw_end}"
        else:
            shown = notated(value, self.notation, self._marks) + self._json_end
        return begin + shown + patterns.pattern_text(self.behind, name)

    @property
    def next_part(self) -> re.Pattern[str]:
        """Match the next parameter's name, or the end of the call, else read the text once.

        A name without a tag has no separator, because other places would be tried for each character.
        """
        close = f"(?P<close>{re.escape(self.close)})"
        if isinstance(self.begin[0], str):
            name = f"(?P<name>[^{re.escape(self.close[0])}]+?)"
            return re.compile(f"{close}|{patterns.regex_of(self.begin, name)}")
        sign, others = re.escape(str(self.begin[1])), re.escape(self.close)
        name = rf"(?P<name>[^\s,{others}{sign}][^{others}{sign}]*)"
        return re.compile(rf"\A[\s,]*(?:{close}|{name}{sign})")


class ParameterScanner:
    def __init__(
        self, head: re.Pattern[str], layout: Parameters, raw: RawNames, schemas: Mapping[str, ParameterSchema]
    ) -> None:
        self._head = head
        self._next = layout.next_part
        self._layout = layout
        self._raw = raw
        self._schemas = schemas
        self._waiting = ""
        self._call: str | None = None
        self._value: RawTextReader | TextOrScalarReader | LiteralReader | ElementsReader | None = None
        self._key: re.Match[str] | None = None
        self._num_parameters = 0
        self._num_started = 0

    @property
    def is_cut(self) -> bool:
        return self._call is not None or self._num_started == 0

    def feed(self, text: str) -> list[patterns.CallPart]:
        self._waiting += text
        parts: list[patterns.CallPart] = []
        while (found := self._step()) is not None:
            parts += found
        return patterns.merged_parts(parts)

    def _step(self) -> list[patterns.CallPart] | None:
        if self._value is not None:
            found, self._waiting, is_done = self._value.read(self._waiting)
            if is_done:
                self._value = None
            return [patterns.CallArguments(found)] if found else [] if is_done else None
        if self._key is not None:
            return self._begin_value(self._key)
        return self._between_calls() if self._call is None else self._between_parameters()

    def _between_calls(self) -> list[patterns.CallPart] | None:
        head = self._head.search(self._waiting)
        if head is None:
            return None
        self._waiting = self._waiting[head.end() :]
        self._call, self._num_parameters = head[1], 0
        self._num_started += 1
        return [patterns.CallBegin(head[1]), patterns.CallArguments("{")]

    def _between_parameters(self) -> list[patterns.CallPart] | None:
        found = self._next.search(self._waiting)
        if found is None:
            return None
        self._waiting = self._waiting[found.end() :]
        if found["close"] is not None:
            self._call = None
            return [patterns.CallArguments("}")]
        self._key = found
        comma = "," if self._num_parameters else ""
        self._num_parameters += 1
        return [patterns.CallArguments(f"{comma}{to_json(found['name'])}:")]

    def _begin_value(self, key: re.Match[str]) -> list[patterns.CallPart] | None:
        assert self._call is not None
        layout = self._layout
        begin, end = layout.wrapping
        if len(self._waiting) < len(begin) and begin.startswith(self._waiting):
            return None
        is_wrapped = bool(begin) and self._waiting.startswith(begin)
        self._waiting = self._waiting.removeprefix(begin) if is_wrapped else self._waiting
        end = (end if is_wrapped else "") + layout.raw_end
        self._key = None
        if layout.raw_begin:
            marks = ("", "") if layout.is_python else (layout.raw_begin, layout.raw_end)
            self._value = LiteralReader(marks, "")
        elif self._is_raw(key, raw := self._raw.get(self._call, {})):
            types = frozenset() if layout.kinds or is_wrapped else raw[key["name"]]
            self._value = TextOrScalarReader(end, types) if types else RawTextReader(end)
        elif layout.nesting:
            root = self._schemas.get(self._call, {})
            self._value = ElementsReader(layout.nesting, ValueSchema(root, [root]).inner(key["name"]))
        else:
            self._value = LiteralReader(("", ""), end)
        return []

    def _is_raw(self, key: re.Match[str], raw: Mapping[str, frozenset[str]]) -> bool:
        kinds = self._layout.kinds
        return key["kind"] == kinds["string"] if kinds else key["name"] in raw


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
