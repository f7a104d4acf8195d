"""Ollama's templates, which are Go's (`text/template`), with some functions."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Union

from openai_cpu_server.errors import wrong

_MOST_LENGTH = 65_536
_MOST_STEPS = 50_000
"""Nodes, values, and every `_CHARS_A_STEP` characters of a value."""
_CHARS_A_STEP = 1024
_MOST_DEPTH = 50
_MOST_DIGITS = 20
_MOST_CHARS = 16 * 2**20
"""More than any context has room for."""
_ACTION = re.compile(
    r"""(?P<left>-(?=\s))?(?:(?P<comment>\s?/\*(?:[^*]|\*(?!/))*\*/\s?)
    |(?P<body>(?:"(?:[^"\\\n]|\\.)*"|`[^`]*`|[^"`}-]|}(?!})|-(?!}}))*))(?P<right>-)?}}""",
    re.X,
)
_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)
    |(?P<name>[A-Za-z_]\w*)|(?P<path>\$\w*(?:\.\w+)*|(?:\.\w+)+|\.)|(?P<sign>:=|\)(?:\.\w+)*|[=|(,]))""",
    re.X,
)
_WORDS = {"true": True, "false": False, "nil": None}


class _Token(NamedTuple):
    kind: str
    text: str


class _Path(NamedTuple):
    """`.A.B` or `$x.A`; `variable` "" is the dot."""

    variable: str
    fields: tuple[str, ...]


class _Call(NamedTuple):
    function: str
    arguments: tuple[_Expression, ...]


class _Field(NamedTuple):
    """`(...).A.B`."""

    value: _Expression
    fields: tuple[str, ...]


class _Constant(NamedTuple):
    value: object


_Expression = Union[_Path, _Call, _Field, _Constant]


class _Set(NamedTuple):
    variable: str
    value: _Expression


class _Branch(NamedTuple):
    """`variables` get the value, in a range also its index."""

    word: str
    variables: tuple[str, ...]
    value: _Expression
    body: list[_Node]
    otherwise: list[_Node]


_Node = Union[str, _Set, _Branch, _Expression]
"""An expression is printed."""


class _ResponseIsNext(Exception): ...


class GoTemplate:
    """`path`: parameter named in errors."""

    def __init__(self, source: str, path: str) -> None:
        if len(source) > _MOST_LENGTH:
            raise wrong(f"Invalid template: it is longer than {_MOST_LENGTH} characters.", path)
        self._path = path
        self._nodes = _Parser(source, path).nodes()
        self._uses = set(re.findall(r"\.(Messages|Response|Suffix)\b", source))
        if not self._uses & {"Messages", "Response"}:
            self._nodes.append(_Path("", ("Response",)))

    @property
    def has_suffix(self) -> bool:
        return "Suffix" in self._uses

    def prompt(
        self, messages: Sequence[Mapping[str, str]], suffix: str = "", *, most_chars: int = _MOST_CHARS
    ) -> str:
        """Write the prompt up to the model's answer. Raises InvalidRequest."""
        run = _Run(self._path, min(most_chars, _MOST_CHARS))
        by_role = itertools.groupby(messages, lambda message: message["role"])
        turns = [(role, "\n\n".join(message["content"] for message in same)) for role, same in by_role]
        system = "\n\n".join(text for role, text in turns if role == "system")
        values: dict[str, object] = {
            "System": system,
            "Prompt": "",
            "Suffix": suffix,
            "Response": "",
            "Tools": [],
            "Think": False,
            "ThinkLevel": "",
            "IsThinkSet": False,
            "Messages": [{"Role": role, "Content": text, **_NO_MORE} for role, text in turns],
        }
        if "Messages" in self._uses:
            run.turn(self._nodes, values, ends=False)
            return run.text
        fields = {"System": "", "Prompt": "", "Response": ""}
        for role, text in turns:
            name = _FIELDS.get(role)
            if name is None:
                continue
            if fields["Response"] or (name == "System" and fields["Prompt"]):
                run.turn(self._nodes, values | fields, ends=False)
                fields = dict.fromkeys(fields, "")
            fields[name] = text
        run.turn(self._nodes, values | fields, ends=True)
        return run.text


_FIELDS = {"system": "System", "user": "Prompt", "assistant": "Response"}
"""Variables of templates that write one turn."""
_NO_MORE = {"Thinking": "", "ToolCalls": [], "ToolName": "", "ToolCallID": "", "Images": []}


class _Parser:
    def __init__(self, source: str, path: str) -> None:
        self._path = path
        self._pieces = self._split(source)
        self._depth = 0

    def nodes(self) -> list[_Node]:
        nodes, end = self._block()
        if end:
            raise self._wrong(f"'{end[0].text}' ends nothing")
        return nodes

    def _wrong(self, what: str) -> Exception:
        return wrong(f"Invalid template: {what}.", self._path)

    def _split(self, source: str) -> Iterator[str | list[_Token]]:
        at, is_trimmed = 0, False
        while (opened := source.find("{{", at)) >= 0:
            action = _ACTION.match(source, opened + 2)
            if action is None:
                raise self._wrong("an action is not closed")
            text = source[at:opened]
            text = text.lstrip() if is_trimmed else text
            yield text.rstrip() if action["left"] else text
            if action["comment"] is None:
                yield self._tokens(action["body"].strip())
            at, is_trimmed = action.end(), action["right"] is not None
        yield source[at:].lstrip() if is_trimmed else source[at:]

    def _tokens(self, body: str) -> list[_Token]:
        tokens, at = [], 0
        while at < len(body):
            found = _TOKEN.match(body, at)
            if found is None or found.lastgroup is None:
                raise self._wrong(f"'{body[at : at + 20].strip()}' is not understood")
            tokens.append(_Token(found.lastgroup, found[found.lastgroup]))
            at = found.end()
        if not tokens:
            raise self._wrong("an action is empty")
        return tokens

    def _block(self) -> tuple[list[_Node], list[_Token]]:
        nodes: list[_Node] = []
        for piece in self._pieces:
            if isinstance(piece, str):
                nodes.append(piece)
                continue
            match piece[0].text:
                case "end" | "else":
                    return nodes, piece
                case "if" | "range" | "with" as word:
                    nodes.append(self._branch(word, piece[1:]))
                case "define" | "template" | "block" | "break" | "continue" as word:
                    raise self._wrong(f"'{word}' is not known here")
                case _:
                    variables, rest = _assigned(piece)
                    if len(variables) > 1:
                        raise self._wrong("only 'range' sets two variables")
                    value = self._expression(rest)
                    nodes.append(_Set(variables[0], value) if variables else value)
        return nodes, []

    def _branch(self, word: str, tokens: list[_Token]) -> _Branch:
        self._depth += 1
        if self._depth > _MOST_DEPTH:
            raise self._wrong("its blocks are nested too deep")
        variables, rest = _assigned(tokens)
        value = self._expression(rest)
        body, end = self._block()
        otherwise: list[_Node] = []
        if [token.text for token in end[:1]] == ["else"]:
            if len(end) > 1:
                if end[1].text not in ("if", "with"):
                    raise self._wrong(f"'else {end[1].text}' is not known")
                otherwise, end = [self._branch(end[1].text, end[2:])], [_Token("name", "end")]
            else:
                otherwise, end = self._block()
        if [token.text for token in end] != ["end"]:
            raise self._wrong(f"'{word}' has no 'end'")
        self._depth -= 1
        return _Branch(word, variables, value, body, otherwise)

    def _expression(self, tokens: list[_Token]) -> _Expression:
        rest = list(reversed(tokens))
        value = self._pipeline(rest, 0)
        if rest:
            raise self._wrong(f"'{rest[-1].text}' was not expected")
        return value

    def _pipeline(self, rest: list[_Token], depth: int) -> _Expression:
        """The value before a `|` is the last argument of what stands behind it."""
        if depth > _MOST_DEPTH:
            raise self._wrong("its brackets are nested too deep")
        value: _Expression | None = None
        while True:
            operands: list[_Expression] = []
            function = None
            if rest and rest[-1].kind == "name" and rest[-1].text not in _WORDS:
                function = rest.pop().text
                if function not in _FUNCTIONS:
                    raise self._wrong(f"the function '{function}' is not known here")
            while rest and rest[-1].text[0] not in "|)":
                operands.append(self._operand(rest, depth))
            if value is not None:
                operands.append(value)
            if function is not None:
                value = _Call(function, tuple(operands))
            elif len(operands) == 1:
                value = operands[0]
            else:
                raise self._wrong("a value was expected")
            if not rest or rest[-1].text != "|":
                return value
            rest.pop()

    def _operand(self, rest: list[_Token], depth: int) -> _Expression:
        kind, text = rest.pop()
        if text == "(":
            value = self._pipeline(rest, depth + 1)
            if not rest or rest[-1].text[0] != ")":
                raise self._wrong("a bracket is not closed")
            _, *fields = rest.pop().text.split(".")
            return _Field(value, tuple(fields)) if fields else value
        match kind:
            case "string":
                return _Constant(text[1:-1] if text[0] == "`" else self._unquoted(text))
            case "number":
                if len(text) > _MOST_DIGITS:
                    raise self._wrong("a number is too long")
                return _Constant(float(text) if "." in text else int(text))
            case "path":
                variable, *fields = text.split(".")
                return _Path(variable, tuple(filter(None, fields)))
            case "name" if text in _WORDS:
                return _Constant(_WORDS[text])
            case _:
                raise self._wrong(f"'{text}' was not expected")

    def _unquoted(self, text: str) -> str:
        try:
            unquoted = str(json.loads(text))
            unquoted.encode()  # Go rejects unpaired surrogates too
            return unquoted
        except ValueError:
            raise self._wrong(f"{text} is not a text") from None


def _assigned(tokens: list[_Token]) -> tuple[tuple[str, ...], list[_Token]]:
    at = next((at for at, token in enumerate(tokens) if token.text in (":=", "=")), None)
    if at is None:
        return (), tokens
    return tuple(token.text for token in tokens[:at] if token.text != ","), tokens[at + 1 :]


class _Run:
    def __init__(self, path: str, most_chars: int) -> None:
        self._written: list[str] = []
        self._num_chars = 0
        self._most_chars = most_chars
        self._path = path
        self._ends = False
        self._variables: dict[str, object] = {}
        self._steps = 0

    @property
    def text(self) -> str:
        return "".join(self._written)

    def turn(self, nodes: Sequence[_Node], values: Mapping[str, object], *, ends: bool) -> None:
        self._variables, self._ends = {"$": values}, ends
        with contextlib.suppress(_ResponseIsNext):
            self.nodes(nodes, values)

    def nodes(self, nodes: Sequence[_Node], dot: object) -> None:
        for node in nodes:
            self._step(0)
            match node:
                case str(text):
                    self._write(text)
                case _Set(variable, value):
                    self._variables[variable] = self._value(value, dot)
                case _Branch(value=value):
                    self._branch(node, self._value(value, dot), dot)
                case _:
                    self._write(_printed(self._value(node, dot)))
                    if self._ends and isinstance(node, _Path) and node.fields[-1:] == ("Response",):
                        raise _ResponseIsNext

    def _step(self, num_chars: int) -> None:
        self._steps += 1 + num_chars // _CHARS_A_STEP
        if self._steps > _MOST_STEPS:
            raise wrong("Invalid template: it takes too long.", self._path)
        if num_chars > self._most_chars:
            raise wrong(f"Invalid template: it makes more than {self._most_chars} characters.", self._path)

    def _write(self, text: str) -> None:
        self._num_chars += len(text)
        if self._num_chars > self._most_chars:
            raise wrong(f"Invalid template: it writes more than {self._most_chars} characters.", self._path)
        self._written.append(text)

    def _branch(self, node: _Branch, found: object, dot: object) -> None:
        if not found:
            self.nodes(node.otherwise, dot)
        elif node.word != "range":
            self._variables.update(dict.fromkeys(node.variables, found))
            self.nodes(node.body, found if node.word == "with" else dot)
        elif isinstance(found, list):
            for place, one in enumerate(found):
                self._variables.update(
                    zip(node.variables[-2:], (place, one)[-len(node.variables) :], strict=False)
                )
                self.nodes(node.body, one)
        else:
            raise wrong("Invalid template: 'range' wants a list.", self._path)

    def _value(self, expression: _Expression, dot: object) -> object:
        self._step(0)
        match expression:
            case _Constant(value):
                return value
            case _Path(variable, fields):
                if variable and variable not in self._variables:
                    raise wrong(f"Invalid template: there is no variable '{variable}'.", self._path)
                return self._field(self._variables[variable] if variable else dot, fields)
            case _Field(value, fields):
                return self._field(self._value(value, dot), fields)
            case _Call("and" | "or" as function, arguments):
                found = None
                for argument in arguments:
                    found = self._value(argument, dot)
                    if bool(found) == (function == "or"):
                        break
                return found
            case _Call(function, arguments):
                values = [self._value(argument, dot) for argument in arguments]
                self._step(sum(map(_num_chars, values)))  # before they are put together
                try:
                    return _FUNCTIONS[function](*values)
                except (TypeError, ValueError, LookupError):
                    raise wrong(f"Invalid template: '{function}' takes other values.", self._path) from None

    def _field(self, value: object, names: Sequence[str]) -> object:
        for name in names:
            if not isinstance(value, Mapping) or name not in value:
                raise wrong(f"Invalid template: there is no field '.{name}'.", self._path)
            value = value[name]
        return value


def _num_chars(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_num_chars, value.values()))
    return sum(map(_num_chars, value)) if isinstance(value, list) else 1


def _printed(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def _index(values: Sequence[object], *places: int) -> object:
    found: object = values
    for place in places:
        if place < 0:
            raise LookupError(place)
        found = found[place]  # type: ignore[index]
    return found


def _slice(values: Sequence[object], *ends: int) -> object:
    if len(ends) > 2 or any(not 0 <= end <= len(values) for end in ends):
        raise LookupError(ends)
    return values[slice(*ends)] if len(ends) == 2 else values[(*ends, 0)[0] :]


_FUNCTIONS: dict[str, Callable[..., object]] = {
    # `and` and `or` look at no more of their arguments than they have to.
    "and": lambda *values: values,
    "or": lambda *values: values,
    "not": lambda value: not value,
    "eq": lambda first, *others: any(first == other for other in others),
    "ne": lambda first, other: first != other,
    "lt": lambda first, other: first < other,
    "le": lambda first, other: first <= other,
    "gt": lambda first, other: first > other,
    "ge": lambda first, other: first >= other,
    "len": len,
    "index": _index,
    "slice": _slice,
    "json": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "print": lambda *values: "".join(map(_printed, values)),
}
