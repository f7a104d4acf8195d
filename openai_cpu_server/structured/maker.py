"""The one place where what clients ask for becomes a grammar, and Lark that is known to compile."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Union

import msgspec

from openai_cpu_server.contract.grammar import (
    BYTES_AND_END,
    GrammarOrder,
    GrammarSource,
    MadeGrammar,
    RefusedGrammar,
)
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import CompiledGrammar, compile_schema
from openai_cpu_server.structured.errors import InvalidSchema, SchemaTooLarge, UnsupportedSchema
from openai_cpu_server.structured.gbnf.parser import names_tokens, parse_gbnf
from openai_cpu_server.structured.languages.automaton import build, to_expr
from openai_cpu_server.structured.languages.expr import NOTHING, Chars, Rules, Text, alt
from openai_cpu_server.structured.lark.translation import Translation, numbered_from
from openai_cpu_server.structured.options import Budget, Limits, Options, Whitespace
from openai_cpu_server.structured.scalars.regex import full_language
from openai_cpu_server.structured.schema.document import Json
from openai_cpu_server.structured.values.strings import by_states
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.parts import composed, packed, unpacked

_SURROGATE = re.compile("[\ud800-\udfff]")
ANY_OBJECT: dict[str, Json] = {"type": "object"}
"""`response_format: {"type": "json_object"}`."""


def grammar_maker(
    check: Callable[[str], object],
) -> Callable[[GrammarOrder], Union[MadeGrammar, RefusedGrammar]]:
    """The contract's `GrammarMaker`. `check` raises InvalidRequest for Lark that cannot be executed. Control
    tokens have other numbers there: they come behind `BYTES_AND_END`."""

    def make(order: GrammarOrder) -> Union[MadeGrammar, RefusedGrammar]:
        try:
            compiled = _compiled(order)
            num_read = len(order.text) if order.source is GrammarSource.GBNF else 0
            translation = Translation(compiled.rules, num_read=num_read)
            check(translation.text(numbered_from(BYTES_AND_END)))
        except InvalidRequest as error:
            path = error.path if isinstance(error, (UnsupportedSchema, SchemaTooLarge)) else None
            return RefusedGrammar(str(error), error.code, path)
        return MadeGrammar(
            lark=translation.text(),
            rules=packed(compiled.rules),
            unenforced=tuple((each.path, each.keyword) for each in compiled.unenforced),
            share=compiled.share,
        )

    return make


def _compiled(order: GrammarOrder) -> CompiledGrammar:
    whitespace = Whitespace.FLEXIBLE if order.is_flexible else Whitespace.COMPACT
    options = Options(whitespace=whitespace, strict=order.is_strict)
    match order.source:
        case GrammarSource.SCHEMA:
            return compile_schema(json.loads(order.text), options)
        case GrammarSource.ANY_OBJECT:
            return msgspec.structs.replace(compile_schema(ANY_OBJECT, options), share=0.0)
        case GrammarSource.REGEX:
            return CompiledGrammar(regex_rules(order.text))
        case GrammarSource.CHOICES:
            return CompiledGrammar(choice_rules(json.loads(order.text)))
        case GrammarSource.GBNF:
            return CompiledGrammar(_of_client(order.text))
        case GrammarSource.PARTS:
            parts = {rule: unpacked(part) for rule, part in order.parts.items()}
            return CompiledGrammar(composed(order.text, parts))


def _of_client(gbnf: str) -> Rules:
    rules = parse_gbnf(gbnf)
    if names_tokens(rules):
        raise InvalidRequest("Control tokens (<[...]>) cannot be named: write characters.")
    return rules


def regex_rules(pattern: str, limits: Limits | None = None) -> Rules:
    """The grammar of texts that match the pattern as a whole, anchors or not.
    Raises InvalidPattern, SchemaTooLarge."""
    budget = Budget(limits or Limits())
    grammar = GrammarBuilder(budget)
    language = full_language(pattern, budget.limits)
    automaton = build(language, budget) if language.is_extended else None
    if language is NOTHING or (automaton is not None and automaton.is_empty):
        raise InvalidSchema("", f"nothing matches the pattern {pattern[:80]!r}")
    simple = language if automaton is None else to_expr(automaton)
    if simple is not None:
        return grammar.finish(grammar.define("text", simple))
    assert automaton is not None
    return grammar.finish(by_states(automaton, grammar, "text", Chars))


def choice_rules(choices: list[str], limits: Limits | None = None) -> Rules:
    """The grammar of these texts, word for word. Raises InvalidSchema if there are none, SchemaTooLarge."""
    if not choices:
        raise InvalidSchema("", "there must be at least one choice")
    budget = Budget(limits or Limits())
    budget.check("values", len(choices))
    budget.spend("text", sum(map(len, choices)))
    if (wrong := _SURROGATE.search("".join(choices))) is not None:
        raise InvalidSchema("", f"there is no character {ord(wrong[0]):#x}")
    grammar = GrammarBuilder(budget)
    return grammar.finish(grammar.define("choice", alt(*(Text(c) for c in dict.fromkeys(choices)))))
