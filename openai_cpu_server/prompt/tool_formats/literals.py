"""JSON, Python's literals, Gemma's notation and MiniMax M3's elements, read piece by piece into JSON, and
written."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping, Sequence

from openai_cpu_server.contract.grammar import Notation
from openai_cpu_server.contract.request import overlap
from openai_cpu_server.prompt.template import to_json

ParameterSchema = Mapping[str, object]
NO_SCHEMAS: Mapping[str, ParameterSchema] = {}

Read = tuple[str, str, bool]
"""Certain JSON text, the rest of the text, and True if the value has ended."""


class RawTextReader:
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


_LONGEST_SCALAR = 64


class TextOrScalarReader:
    """Raw text, or another scalar of these types if the whole text is one."""

    def __init__(self, end: str, types: frozenset[str]) -> None:
        self._end = end
        self._types = types
        self._text = RawTextReader(end)
        self._is_text = False

    def read(self, text: str) -> Read:
        if not self._is_text:
            content, found, rest = text.partition(self._end)
            if not found and len(text) <= _LONGEST_SCALAR + len(self._end):
                return "", text, False
            if len(content) <= _LONGEST_SCALAR and (scalar := _scalar_of(content, self._types)) is not None:
                return scalar, rest, True
            self._is_text = True
        return self._text.read(text)


def _scalar_of(text: str, types: frozenset[str]) -> str | None:
    word = _WORDS.get(text, text)
    if not _JSON_SCALAR.fullmatch(word):
        return None
    is_integer = "integer" in types and word.lstrip("-").isdecimal()
    return word if is_integer or _type_of(word) in types else None


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


class LiteralReader:
    def __init__(self, marks: tuple[str, str], end: str) -> None:
        """`marks` enclose raw texts, if not "". `end`: mark of the whole value's end, or ""."""
        self._marks = marks
        self._end = end
        self._closers: list[str] = []
        self._quote = ""
        self._is_key = False
        self._comma = ""
        """Comma before the next item, because Python allows one behind the last."""

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


ALL_TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
_MOST_SCHEMAS = 64
"""Schemas looked at for one value, because references may lead in circles."""


class ValueSchema:
    def __init__(self, root: ParameterSchema, schemas: Sequence[object]) -> None:
        """`schemas`: several that may hold, or () if none is known."""
        self._root = root
        self._schemas = schemas

    @property
    def types(self) -> frozenset[str]:
        return frozenset().union(*(self._types(each, set()) for each in self._schemas)) or ALL_TYPES

    def inner(self, name: str) -> ValueSchema:
        """`name`: a property, or `item` for the items of an array."""
        found: list[object] = []
        queue = list(self._schemas)
        for schema in queue:
            if isinstance(schema, Mapping) and len(queue) < _MOST_SCHEMAS:
                found += _own_parts(schema, name)
                queue += [*self._ways(schema), *_listed(schema, "allOf"), *self._referred(schema)]
        return ValueSchema(self._root, found)

    def _types(self, schema: object, seen: set[int]) -> frozenset[str]:
        if not isinstance(schema, Mapping) or id(schema) in seen or len(seen) == _MOST_SCHEMAS:
            return ALL_TYPES
        seen.add(id(schema))
        found = ALL_TYPES
        if isinstance(named := schema.get("type"), (str, list)):
            names = [named] if isinstance(named, str) else named
            found &= {"number" if name == "integer" else name for name in names if isinstance(name, str)}
        values = [schema["const"]] if "const" in schema else _listed(schema, "enum")
        if values:
            found &= {json_type(value) for value in values}
        if ways := self._ways(schema):
            found &= frozenset().union(*(self._types(each, seen) for each in ways))
        for each in (*_listed(schema, "allOf"), *self._referred(schema)):
            found &= self._types(each, seen)
        return found

    def _ways(self, schema: ParameterSchema) -> list[object]:
        return [*_listed(schema, "anyOf"), *_listed(schema, "oneOf")]

    def _referred(self, schema: ParameterSchema) -> list[object]:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return []
        found: object = self._root
        for part in urllib.parse.unquote(reference).split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return [found]


def _listed(schema: ParameterSchema, keyword: str) -> list[object]:
    found = schema.get(keyword)
    return found if isinstance(found, list) else []


def _own_parts(schema: ParameterSchema, name: str) -> list[object]:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return [properties[name]]
    found = [schema["additionalProperties"]] if "additionalProperties" in schema else []
    if name == "item":
        found += [*_listed(schema, "prefixItems"), *([schema["items"]] if "items" in schema else [])]
    return [each for each in found if isinstance(each, Mapping)]


class ElementsReader:
    """Value as MiniMax M3 writes it, a text or nested tags, which becomes JSON as a whole."""

    def __init__(self, mark: str, schema: ValueSchema) -> None:
        self._tag = re.compile(rf"{re.escape(mark)}<(/?)([^>]*)>")
        self._schema = schema
        self._at = self._depth = 0

    def read(self, text: str) -> Read:
        for tag in self._tag.finditer(text, self._at):
            self._at = tag.end()
            self._depth += -1 if tag[1] else 1
            if self._depth < 0:
                return self._json(text[: tag.start()]), text[tag.end() :], True
        return "", text, False

    def _json(self, text: str) -> str:
        stack: list[_OpenElement] = [("", self._schema, [])]
        behind = 0
        for tag in self._tag.finditer(text):
            inner, behind = text[behind : tag.start()], tag.end()
            if not tag[1]:
                stack.append((tag[2], stack[-1][1].inner(tag[2]), []))
            elif len(stack) > 1:
                name, schema, parts = stack.pop()
                stack[-1][2].append((name, _joined(parts, inner, schema.types)))
        return _joined(stack[0][2], text[behind:], self._schema.types)


_OpenElement = tuple[str, ValueSchema, list[tuple[str, str]]]


def _joined(parts: Sequence[tuple[str, str]], text: str, types: frozenset[str]) -> str:
    if parts:
        if "array" in types and all(name == "item" for name, _ in parts):
            return f"[{','.join(value for _, value in parts)}]"
        return f"{{{','.join(f'{to_json(name)}:{value}' for name, value in parts)}}}"
    literal, rest, is_done = LiteralReader(("", ""), "\0").read(text.strip() + "\0")
    is_whole = is_done and rest == "\0" and text.strip() != ""
    is_value = is_whole and (literal[0] != '"' or text.lstrip()[0] in "'\"")
    if is_value and (types == ALL_TYPES or _type_of(literal) in types):
        return literal
    if "string" in types:
        return to_json(text)
    return "[]" if "array" in types else "{}" if "object" in types else to_json(text)


def _type_of(literal: str) -> str:
    first = {"{": "object", "[": "array", '"': "quoted"}
    words = {"true": "boolean", "false": "boolean", "null": "null"}
    return first.get(literal[0]) or words.get(literal, "number")


_TYPES: dict[type, str] = {str: "string", bool: "boolean", int: "number", float: "number", list: "array"}


def json_type(value: object) -> str:
    return "null" if value is None else _TYPES.get(type(value), "object")


def notated(value: object, notation: Notation, marks: tuple[str, str]) -> str:
    """`marks`: those around a raw text, or the one of elements."""
    if notation is Notation.JSON:
        return to_json(value)
    if isinstance(value, str):
        return _text(value, notation, marks)
    if isinstance(value, Mapping):
        items = {key: notated(each, notation, marks) for key, each in value.items()}
        if notation is Notation.ELEMENTS:
            return "".join(_element(marks[0], key, text) for key, text in items.items())
        if notation is Notation.MARKED:
            names = [key if _BARE_KEY.fullmatch(key) else marks[0] + key + marks[1] for key in items]
            pairs = zip(names, items.values(), strict=True)
            return "{" + ",".join(f"{name}:{text}" for name, text in pairs) + "}"
        return "{" + ", ".join(f"{_text(key, notation, marks)}: {text}" for key, text in items.items()) + "}"
    if isinstance(value, (list, tuple)):
        texts = [notated(each, notation, marks) for each in value]
        if notation is Notation.ELEMENTS:
            return "".join(_element(marks[0], "item", text) for text in texts)
        return f"[{(', ' if notation is Notation.PYTHON else ',').join(texts)}]"
    is_word = notation is Notation.PYTHON and (value is None or isinstance(value, bool))
    return repr(value) if is_word else to_json(value)


def _text(value: str, notation: Notation, marks: tuple[str, str]) -> str:
    if notation is Notation.PYTHON:
        is_plain = value.isprintable() and not set(value) & {"'", "\\"}
        return f"'{value}'" if is_plain else to_json(value)
    return value if notation is Notation.ELEMENTS else marks[0] + value + marks[1]


_BARE_KEY = re.compile(r"""[^\s\x00-\x1f,:{}\[\]()'"<\\]+""")


def _element(mark: str, name: str, text: str) -> str:
    return f"{mark}<{name}>{text}{mark}</{name}>"


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
    """Python's names and numbers are translated, other words become strings."""
    word = _WORDS.get(word, word)
    if _JSON_SCALAR.fullmatch(word):
        return word
    if _OTHER_NUMBER.fullmatch(word) and len(word) < _LONGEST_WORD:
        number = float(word.replace("_", ""))
        return to_json(int(number) if number.is_integer() and "." not in word else number)
    return to_json(word)


def _escaped(text: str) -> str:
    return to_json(text)[1:-1]
