"""Formats in which calls follow a marker."""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Mapping, Sequence

import msgspec

from openai_cpu_server.contract.grammar import JSON_VALUES, ValueSpelling
from openai_cpu_server.prompt.template import to_json
from openai_cpu_server.prompt.tool_formats import patterns
from openai_cpu_server.prompt.tool_formats.literals import NO_SCHEMAS, ParameterSchema
from openai_cpu_server.prompt.tool_formats.parameters import Parameters, ParameterScanner
from openai_cpu_server.prompt.tool_formats.reader import (
    Callee,
    HeadGate,
    MarkerGate,
    OutputReader,
    RawNames,
    ToolReader,
    WrittenCall,
)

_OWN_ID = re.compile(r"[A-Za-z0-9]{9}")
_JSON_HEAD = patterns.read_pattern('{$BLANK"name"$BLANK:$SPACE"$NAME"$BLANK,$SPACE"arguments"$BLANK:$SPACE')


class CallIds(enum.Enum):
    OWN = "as they are"
    SHORT = "nine letters and digits"
    NAMED = "the function's name and the call's number in its message"


class ToolFormat(msgspec.Struct, frozen=True):
    """`marker`, `opening`, calls with `between` between them, `closing`. A call is `head`, arguments, `tail`.

    Grammars are GBNF: the root's expression, then lines of rules.
    """

    name: str
    """Value of `--tool-format`."""
    head: patterns.CallPattern = _JSON_HEAD
    """JSON object together with `tail` by default."""
    tail: patterns.CallPattern = (patterns.PatternSlot.BLANK, "}")
    marker: str = ""
    """"" if an output that begins with a call consists of calls."""
    opening: patterns.CallPattern = ()
    between: patterns.CallPattern = ()
    closing: patterns.CallPattern = ()
    prelude: str = ""
    """Control token without meaning before calls without a marker."""
    parameters: Parameters | None = None
    """Form of single parameters, or None if the arguments are one JSON object."""
    signs: tuple[str, ...] = ()
    """Regular expressions that match in a template of this format."""
    others: tuple[str, ...] = ()
    """Regular expressions of formats that look alike, none of which may match."""
    ids: CallIds = CallIds.OWN
    is_single: bool = False
    replaces_template: bool = False
    """Tools and calls are described in words, even if the template could show them."""

    @property
    def text_end(self) -> str:
        """Mark that ends raw text in a call, or "" for JSON strings."""
        form = self.parameters
        return "" if form is None or form.is_python or form.wrapping[0] else form.raw_end

    @property
    def splits_parameters(self) -> bool:
        return self.parameters is not None

    def announces(self, spelling: patterns.Spelling) -> bool:
        return bool(self.marker) and spelling.control_token(self.marker) is not None

    def recognises(self, template: str) -> bool:
        is_taught = bool(self.signs) and all(re.search(sign, template) for sign in self.signs)
        return is_taught and not any(re.search(other, template) for other in self.others)

    # Grammar

    def behind_marker(self, callees: Sequence[Callee], spelling: patterns.Spelling, *, several: bool) -> str:
        calls, rules = self._calls(callees, spelling, several=several)
        return f"{calls}\n{rules}"

    def whole(
        self, callees: Sequence[Callee], spelling: patterns.Spelling, *, several: bool, answer: str | None
    ) -> str:
        """`answer`: rule of other text, "" for any text, or None if there must be calls."""
        calls, rules = self._calls(callees, spelling, several=several)
        begin = spelling.literal(self.marker)
        if self.prelude and spelling.control_token(self.prelude) is not None:
            begin = f"({spelling.literal(self.prelude)})?"
        calls = f"{begin} {calls}".strip()
        if answer is None:
            return f"{calls}\n{rules}"
        if answer:
            return f"{answer} | {calls}\n{rules}"
        # The first character decides; nothing at all is an answer, too.
        first = patterns.pattern_text((self.marker, *self.opening, *self.head))[0].replace("[", r"\[")
        return f"({calls} | free-text)?\nfree-text ::= [^\\x00{first}] [^\\x00]*\n{rules}"

    def _calls(
        self, callees: Sequence[Callee], spelling: patterns.Spelling, *, several: bool
    ) -> tuple[str, str]:
        names = [f"call-{index}" for index in range(len(callees))]
        rules = [f"call ::= {' | '.join(names)}"]
        for index, callee in enumerate(callees):
            rules += self._call(index, callee, spelling)
        rules.append(f"call-end ::= {spelling.gbnf(self.tail) or patterns.quoted('')}")
        between = spelling.gbnf(self.between)
        more = f"({between} call)*" if several and not self.is_single else ""
        if self.parameters is not None:
            rules.append(patterns.NEVER_RULE)
            if not self.parameters.is_python:
                rules.append(f"raw-text ::= {self.parameters.raw_text(spelling)}")
        parts = (spelling.gbnf(self.opening), "call", more, spelling.gbnf(self.closing))
        return " ".join(filter(None, parts)), "\n".join(rules) + "\n"

    def _call(self, index: int, callee: Callee, spelling: patterns.Spelling) -> list[str]:
        head = f"head-{index} ::= {spelling.gbnf(self.head, callee.name)}"
        if self.parameters is None:
            return [f"call-{index} ::= head-{index} {callee.rule} call-end", head]
        arguments, rules = self.parameters.gbnf(
            callee.parameters, spelling, f"p-{index}", in_any_order=callee.in_any_order
        )
        return [" ".join(f"call-{index} ::= head-{index} {arguments} call-end".split()), head, *rules]

    def names_parameter(self, name: str) -> bool:
        return self.parameters is None or self.parameters.names(name)

    def value_spelling(self, spelling: patterns.Spelling) -> ValueSpelling:
        return JSON_VALUES if self.parameters is None else self.parameters.value_spelling(spelling)

    def raw_parameters(self, callee: Callee) -> Mapping[str, frozenset[str]]:
        if self.parameters is None:
            return {}
        return {x.name: x.others for x in callee.parameters if self.parameters.is_raw(x)}

    # Text

    def written(self, calls: Sequence[WrittenCall]) -> str:
        texts = []
        for index, call in enumerate(calls):
            write = to_json if self.parameters is None else self.parameters.text
            texts.append(
                patterns.pattern_text(self.head, call.name, index)
                + write(call.arguments)
                + patterns.pattern_text(self.tail)
            )
        inner = patterns.pattern_text(self.between).join(texts)
        return self.marker + patterns.pattern_text(self.opening) + inner + patterns.pattern_text(self.closing)

    def history_id(self, call_id: str, name: str, index: int) -> str:
        if self.ids is CallIds.NAMED:
            return f"functions.{name}:{index}"
        if self.ids is CallIds.OWN or _OWN_ID.fullmatch(call_id):
            return call_id
        return hashlib.sha256(call_id.encode(errors="surrogatepass")).hexdigest()[:9]

    # Reading

    def reader(
        self,
        functions: RawNames,
        *,
        at_start: bool = False,
        schemas: Mapping[str, ParameterSchema] = NO_SCHEMAS,
    ) -> OutputReader:
        """`at_start`: the output begins with calls or has none.

        `schemas`: parameters by function, for values whose text does not show their types.
        """
        if self.marker:
            gate = HeadGate(((self.marker,),), ()) if at_start else MarkerGate(self.marker)
            return ToolReader(gate, self._scanner(functions, schemas))
        begin = (*self.opening, *self.head)
        ways = (begin, (self.prelude, *begin)) if self.prelude else (begin,)
        return ToolReader(HeadGate(ways, tuple(functions)), self._scanner(functions, schemas))

    def _scanner(self, functions: RawNames, schemas: Mapping[str, ParameterSchema]) -> patterns.CallScanner:
        if self.parameters is None:
            return patterns.JsonCallScanner(re.compile(patterns.regex_of(self.head) + r"(?=\{)"))
        return ParameterScanner(re.compile(patterns.regex_of(self.head)), self.parameters, functions, schemas)
