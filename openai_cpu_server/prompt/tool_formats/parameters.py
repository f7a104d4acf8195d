"""Calls whose parameters are written one by one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from openai_cpu_server.contract.request import overlap
from openai_cpu_server.prompt.template import to_json
from openai_cpu_server.prompt.tool_formats.patterns import (
    NEVER,
    CallArguments,
    CallBegin,
    CallPart,
    Pattern,
    PatternSlot,
    Spelling,
    has_mark,
    merged_parts,
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
    wrapping: tuple[str, str] = ("", "")
    """Marks around raw text that has marks of XML or line breaks, or ""."""
    behind: Pattern = ()
    between: Pattern = ()
    close: str = ""
    is_python: bool = False
    """True for Python's strings in single quotes, True and False."""
    nesting: str = ""
    """Mark before tags of nested values as in XML, or "" for JSON alone."""
    kinds: Mapping[str, str] = {}
    """Words for JSON's types in `begin`, of which that for strings distinguishes raw text; {} for none."""

    def is_raw(self, parameter: Parameter) -> bool:
        """Return True if the value is raw text, and no choice resembles its end."""
        if not parameter.is_text:
            return False
        forbidden: tuple[str, ...] = (self.raw_end, self.raw_end.strip())
        if self.is_python:
            forbidden = ("'", "\\", "\n", '"')
        elif self.wrapping[0]:
            forbidden = ("<", "&", "\n")
        return not any(mark in choice for choice in parameter.choices for mark in forbidden)

    def names(self, name: str) -> bool:
        """Return True if a name is read as written."""
        found = self.next_part.search(pattern_text(self._begin("string"), name))
        is_read = found is not None and found.start() == 0 and found["name"] == name
        return is_read and name.isprintable() and not has_mark(name)

    # Grammar

    def gbnf(
        self, parameters: Sequence[Parameter], spelling: Spelling, stem: str, *, in_any_order: bool = False
    ) -> tuple[str, list[str]]:
        """Return the expression of all parameters, and rules whose names begin with `stem`."""
        rules = []
        for i, each in enumerate(parameters):
            begins = dict.fromkeys(spelling.gbnf(begin, each.name) for begin in self._begins(each))
            rules.append(f"{stem}-key-{i} ::= {' | '.join(begins)}")
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

    def _begins(self, parameter: Parameter) -> list[Pattern]:
        if not self.kinds:
            return [self.begin]
        if self.is_raw(parameter):
            return [self._begin("string")]
        return [self._begin(kind) for kind in self.kinds if kind != "string"]

    def _begin(self, kind: str) -> Pattern:
        word = self.kinds.get(kind, "")
        return tuple(word if part is PatternSlot.KIND else part for part in self.begin)

    def _one(self, parameter: Parameter, spelling: Spelling, key: str) -> str:
        begin = f"({key} | {NEVER})"
        behind = spelling.gbnf(self.behind, parameter.name)
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

    def raw_text(self, spelling: Spelling) -> str:
        """Return the grammar of any raw text with its end."""
        begin, end = self.wrapping
        if not begin:
            return spelling.until(self.raw_end)
        assert end == "]]>", "other ends of wrapped texts have no grammar"
        wrapped = r'([^\x00\]] | "]" [^\x00\]] | "]]" "]"* [^\x00\]>])* "]]" "]"* ">"'
        return f"(([^\\x00<&\\n])* | {quoted(begin)} {wrapped}) {spelling.literal(self.raw_end)}"

    @property
    def _json_end(self) -> str:
        return "" if self.raw_begin else self.raw_end

    # Text

    def text(self, arguments: Mapping[str, object]) -> str:
        return pattern_text(self.between).join(self._written(*item) for item in arguments.items())

    def _written(self, name: str, value: object) -> str:
        begin = pattern_text(self._begin(_json_type(value)), name)
        if self.is_python:
            return begin + _python_text(value)
        if isinstance(value, str):
            before, after = self.wrapping if re.search("[<&\n]", value) else ("", "")
            shown = f"{self.raw_begin}{before}{value}{after}{self.raw_end}"
        else:
            shown = to_json(value) + self._json_end
        return begin + shown + pattern_text(self.behind, name)

    @property
    def next_part(self) -> re.Pattern[str]:
        """Match the next parameter's name, or the end of the call. Text that is neither is read once: a name
        without a tag begins the text and has no separator, because other places would be tried for each
        character."""
        close = f"(?P<close>{re.escape(self.close)})"
        if isinstance(self.begin[0], str):
            name = f"(?P<name>[^{re.escape(self.close[0])}]+?)"
            return re.compile(f"{close}|{regex_of(self.begin, name)}")
        sign, others = re.escape(str(self.begin[1])), re.escape(self.close)
        name = rf"(?P<name>[^\s,{others}{sign}][^{others}{sign}]*)"
        return re.compile(rf"\A[\s,]*(?:{close}|{name}{sign})")


_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}


def _json_type(value: object) -> str:
    return "null" if value is None else _TYPES.get(type(value), "object")


def _python_text(value: object) -> str:
    """Write nested values as JSON, as the grammar demands."""
    if isinstance(value, str):
        return f"'{value}'" if value.isprintable() and not set(value) & {"'", "\\"} else to_json(value)
    return repr(value) if value is None or isinstance(value, bool) else to_json(value)


class ParameterScanner:
    def __init__(self, head: re.Pattern[str], layout: Parameters, raw: RawNames) -> None:
        """`head` matches what stands before the parameters, with the function's name."""
        self._head = head
        self._next = layout.next_part
        self._layout = layout
        self._raw = raw
        self._waiting = ""
        self._call: str | None = None
        self._value: _RawText | _Literal | _Elements | None = None
        self._key: re.Match[str] | None = None
        """Beginning of a parameter whose value has not begun."""
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
        if found["close"] is not None:
            self._call = None
            return [CallArguments("}")]
        self._key = found
        comma = "," if self._num_parameters else ""
        self._num_parameters += 1
        return [CallArguments(f"{comma}{to_json(found['name'])}:")]

    def _begin_value(self, key: re.Match[str]) -> list[CallPart] | None:
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
            self._value = _Literal(marks, "")
        elif self._is_raw(key, self._raw.get(self._call, frozenset())):
            self._value = _RawText(end)
        elif layout.nesting:
            self._value = _Elements(layout.nesting)
        else:
            self._value = _Literal(("", ""), end)
        return []

    def _is_raw(self, key: re.Match[str], raw: frozenset[str]) -> bool:
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


Read = tuple[str, str, bool]
"""Certain JSON text, the rest of the text, and True if the value has ended."""


class _RawText:
    def __init__(self, end: str) -> None:
        self._end = end
        self._open = '"'

    def read(self, text: str) -> Read:
        content, found, rest = text.partition(self._end)
        if not found:
            sure = len(text) - overlap(text, self._end)
            content, rest = text[:sure], text[sure:]
        begin, self._open = self._open, ""
        return begin + _escaped(content) + ('"' if found else ""), rest, bool(found)


_WORDS = {"True": "true", "False": "false", "None": "null"}
_JSON_SCALAR = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_OTHER_NUMBER = re.compile(r"[+-]?(?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_WORD = re.compile(r"""[^\s,:{}\[\]()'"<]+(?=[^\w.+-])""")
_PLAIN = re.compile(r"""[^'"\\\x00-\x1f]+""")
_CLOSERS = {"{": "}", "[": "]", "(": "]"}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}
_PYTHON_ESCAPES = {"'": "'", "\n": "", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000"}
_Step = tuple[str, int, bool]
"""JSON text, the position behind what was read, and True at the value's end."""


class _Literal:
    """Converter of a value in JSON, Python's literals or Gemma's notation, in pieces, to JSON."""

    def __init__(self, marks: tuple[str, str], end: str) -> None:
        """`marks` enclose raw texts, if not "". `end`: mark of the whole value's end, or ""."""
        self._marks = marks
        self._end = end
        self._closers: list[str] = []
        self._quote = ""
        """End of the open string, or ""."""
        self._is_key = False
        self._comma = ""
        """Comma that is written before the next item, because Python allows one behind the last."""

    def read(self, text: str) -> Read:
        found, at = "", 0
        while at < len(text):
            step = self._in_string(text, at) if self._quote else self._outside(text, at)
            if step is None:
                break
            piece, at, is_done = step
            found += piece
            if is_done:
                return found, text[at:], True
        return found, text[at:], False

    def _in_string(self, text: str, at: int) -> _Step | None:
        if self._quote == self._marks[1]:
            end = text.find(self._quote, at)
            safe = end if end >= 0 else len(text) - overlap(text[at:], self._quote)
            if end >= 0:
                self._quote = ""
                return _escaped(text[at:safe]) + '"', end + len(self._marks[1]), not self._closers
            return (_escaped(text[at:safe]), safe, False) if safe > at else None
        plain = _PLAIN.match(text, at)
        if plain is not None:
            return plain[0], plain.end(), False
        if text[at] == "\\":
            return _escape(text, at)
        if text[at] != self._quote:
            return _escaped(text[at]), at + 1, False
        self._quote = ""
        return '"', at + 1, not self._closers

    def _outside(self, text: str, at: int) -> _Step | None:
        char, (mark, mark_end) = text[at], self._marks
        if char.isspace():
            return "", at + 1, False
        if mark and mark.startswith(text[at : at + len(mark)]):
            is_whole = text.startswith(mark, at)
            self._quote = mark_end if is_whole else ""
            return (self._item('"'), at + len(mark), False) if is_whole else None
        if char in "'\"":
            self._quote = char
            return self._item('"'), at + 1, False
        if char in _CLOSERS:
            opening = self._item("[" if char == "(" else char)
            self._closers.append(_CLOSERS[char])
            self._is_key = char == "{"
            return opening, at + 1, False
        if not self._closers and self._end:
            text, end, _ = text[at:].partition(self._end)
            return (_scalar(text.strip()), at + len(text), True) if end else None
        if char in ",:" and self._closers:
            self._is_key = char == "," and self._closers[-1] == "}"
            self._comma = "," if char == "," else ""
            return char.replace(",", ""), at + 1, False
        if char in "}])":
            self._comma, is_open = "", bool(self._closers)
            closer = self._closers.pop() if is_open else ""
            return closer, at + is_open, not self._closers
        word = _WORD.match(text, at)
        if word is None:
            return None if len(text) - at < _LONGEST_WORD else ("null", len(text), not self._closers)
        shown = to_json(word[0]) if self._is_key else _scalar(word[0])
        return self._item(shown), word.end(), not self._closers

    def _item(self, text: str) -> str:
        comma, self._comma = self._comma, ""
        return comma + text


class _Elements:
    """Value as MiniMax M3 writes it, a text or nested tags, which becomes JSON as a whole."""

    def __init__(self, mark: str) -> None:
        self._tag = re.compile(rf"{re.escape(mark)}<(/?)([^>]*)>")
        self._at = self._depth = 0

    def read(self, text: str) -> Read:
        for tag in self._tag.finditer(text, self._at):
            self._at = tag.end()
            self._depth += -1 if tag[1] else 1
            if self._depth < 0:
                return self._json(text[: tag.start()]), text[tag.end() :], True
        return "", text, False

    def _json(self, text: str) -> str:
        stack: list[tuple[str, list[tuple[str, str]]]] = [("", [])]
        behind = 0
        for tag in self._tag.finditer(text):
            inner, behind = text[behind : tag.start()], tag.end()
            if not tag[1]:
                stack.append((tag[2], []))
            elif len(stack) > 1:
                name, items = stack.pop()
                stack[-1][1].append((name, _joined(items, inner)))
        return _joined(stack[0][1], text[behind:])


def _joined(items: Sequence[tuple[str, str]], text: str) -> str:
    if not items:
        literal, _, is_done = _Literal(("", ""), "\0").read(text.strip() + "\0")
        return literal if is_done and text.strip() else '""'
    if all(name == "item" for name, _ in items):
        return f"[{','.join(value for _, value in items)}]"
    return f"{{{','.join(f'{to_json(name)}:{value}' for name, value in items)}}}"


_LONGEST_WORD = 4096


def _escape(text: str, at: int) -> _Step | None:
    kind = text[at + 1 : at + 2]
    end = at + 2 + _HEX_DIGITS.get(kind, 0)
    if not kind or end > len(text):
        return None
    digits = text[at + 2 : end]
    if digits and re.fullmatch("[0-9a-fA-F]+", digits) and int(digits, 16) < 0x110000:
        return (f"\\u{digits:0>4}" if kind != "U" else _escaped(chr(int(digits, 16)))), end, False
    if kind in '"\\/bfnrt':
        return text[at:end], end, False
    return _PYTHON_ESCAPES.get(kind, "\\\\" + _escaped(kind)), at + 2, False


def _scalar(word: str) -> str:
    """Return the word as JSON: a name or number of Python's is translated, and others become strings."""
    word = _WORDS.get(word, word)
    if _JSON_SCALAR.fullmatch(word):
        return word
    if _OTHER_NUMBER.fullmatch(word) and len(word) < _LONGEST_WORD:
        number = float(word.replace("_", ""))
        return to_json(int(number) if number.is_integer() and "." not in word else number)
    return to_json(word)


def _escaped(text: str) -> str:
    return to_json(text)[1:-1]
