"""`openai-cpu-server grammar`: prints a schema's grammar, or checks texts against it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.contract.grammar import BYTES_AND_END
from openai_cpu_server.errors import InvalidRequest, StartupError
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.languages.expr import GrammarRules
from openai_cpu_server.structured.lark.translation import Translation, numbered_from
from openai_cpu_server.structured.options import (
    Additional,
    InvalidGrammar,
    Options,
    PropertyOrder,
    Whitespace,
)
from openai_cpu_server.structured.schema.document import Json

_STDIN = "-"
_DOES_NOT_FIT = 1
_REST = 60


def grammar(arguments: Sequence[str]) -> None:
    """Exit with 1 if an instance does not fit."""
    parser = CommandParser(
        "grammar",
        description="Print the grammar (llguidance's Lark) that a JSON Schema becomes, or check texts "
        "against it.",
        epilog="Exit status: 0 success; 1 a text does not match; 2 the schema, the grammar or the use of "
        "this command is wrong.",
    )
    parser.add_argument("schema", metavar="SCHEMA.json", help="or a grammar, NAME.gbnf; - is standard input")
    parser.add_argument(
        "--check",
        nargs="+",
        default=[],
        metavar="INSTANCE",
        help="report whether these texts match, and where they stop matching; - is standard input",
    )
    parser.add_argument(
        "--json-whitespace",
        choices=[w.value for w in Whitespace],
        help="between JSON tokens (default: compact, as in the server; flexible with --check)",
    )
    parser.add_argument(
        "--json-additional",
        choices=[a.value for a in Additional],
        help="properties that a schema does not declare (default: closed, as in the server; open with "
        "--check)",
    )
    parser.add_argument(
        "--order",
        choices=[o.value for o in PropertyOrder],
        default=Options().order.value,
        help="order of the properties of objects (default: schema, as in the server)",
    )
    options = parser.parse_args(arguments)
    if [options.schema, *options.check].count(_STDIN) > 1:
        raise StartupError("only one of the files can be '-', standard input")
    source = _Source(
        options.schema,
        Options(
            whitespace=Whitespace(options.json_whitespace or ("flexible" if options.check else "compact")),
            order=PropertyOrder(options.order),
            additional=Additional(options.json_additional or ("open" if options.check else "closed")),
        ),
    )
    if not options.check:
        print(source.shown(), end="")
        return
    check = source.check(source.options)
    misfits = [_misfit(check, _read(name)) for name in options.check]
    for name, misfit in zip(options.check, misfits, strict=True):
        print(f"{name}: fits" if misfit is None else f"{name}:{misfit}{_hint(source, name)}")
    if any(misfits):
        sys.exit(_DOES_NOT_FIT)


class _Source:
    """Named schema or grammar, whose errors become StartupErrors that name the file."""

    def __init__(self, name: str, options: Options) -> None:
        self._name = name
        self.options = options
        self._text = _read(name).decode(errors="replace")
        self.is_schema = not name.endswith(".gbnf")

    def shown(self) -> str:
        if self.is_schema:
            with self._named():
                return Translation(self._rules(self.options)).text()
        self.check(self.options)
        num_rules = sum("." not in name for name in self._rules(self.options))
        return f"{self._name}: a grammar of {num_rules} rules\n"

    def check(self, options: Options) -> GrammarCheck:
        num_read = 0 if self.is_schema else len(self._text)
        with self._named():
            translation = Translation(self._rules(options), num_read=num_read)
            return GrammarCheck(translation.text(numbered_from(BYTES_AND_END)))

    def _rules(self, options: Options) -> GrammarRules:
        if not self.is_schema:
            return parse_gbnf(self._text)
        try:
            schema: Json = json.loads(self._text)
        except (ValueError, RecursionError) as error:
            raise StartupError(f"{self._name}: not JSON: {error}") from error
        if not isinstance(schema, (dict, bool)):
            raise StartupError(f"{self._name}: a schema is an object or a boolean")
        return compile_schema(schema, options).rules

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except InvalidGrammar as error:
            raise StartupError(f"{self._name}:{error.line}:{error.column}: {error.reason}") from error
        except InvalidRequest as error:
            raise StartupError(f"{self._name}: {error}") from error


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == _STDIN else Path(name).read_bytes()
    except OSError as error:
        raise StartupError(f"{name}: {error.strerror}") from error


def _hint(source: _Source, name: str) -> str:
    is_ordered = source.is_schema and source.options.order is PropertyOrder.SCHEMA
    if not is_ordered or name == _STDIN:
        return ""
    freely = source.check(msgspec.structs.replace(source.options, order=PropertyOrder.ANY))
    fits = _misfit(freely, _read(name)) is None
    return "\n  it fits with its properties in another order (--order any)" if fits else ""


def _misfit(check: GrammarCheck, text: bytes) -> str | None:
    """Return `line:column: ...`, or None if the text fits, with or without its final line end."""
    trimmed = text.removesuffix(b"\n").removesuffix(b"\r")
    if check.check(text).fits:
        return None
    fit = check.check(trimmed)
    if fit.fits:
        return None
    accepted = trimmed[: fit.accepted]
    before = accepted.decode(errors="ignore")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    rest = trimmed[len(before.encode()) :].decode(errors="replace").splitlines()
    found = repr(rest[0][:_REST]) if rest else "the end"
    following = check.after(accepted)
    if following.forced:
        expected = repr(following.forced.decode(errors="replace"))
    else:
        ways = [_spans(following.allowed)] if following.allowed else []
        expected = " or ".join([*ways, *(["the end"] if following.is_end else [])]) or "nothing"
    return f"{line}:{column}: stops fitting at byte {fit.accepted}: {found}\n  expected {expected}"


def _spans(allowed: bytes) -> str:
    """Describe bytes beyond ASCII as beginnings of other characters."""
    spans: list[list[int]] = []
    for byte in allowed:
        if byte < 0x80 and spans and spans[-1][1] == byte - 1:
            spans[-1][1] = byte
        elif byte < 0x80:
            spans.append([byte, byte])
    shown = [_byte(low) if low == high else f"{_byte(low)}-{_byte(high)}" for low, high in spans]
    others = ["characters beyond ASCII"] if allowed[-1] >= 0x80 else []
    return "one of " + " ".join([*shown, *others])


def _byte(code: int) -> str:
    return chr(code) if 0x20 < code < 0x7F else f"\\x{code:02x}"
