"""Other ways to ask for structure: any JSON object, a regular expression, a list of choices."""

from __future__ import annotations

from openai_cpu_server.structured.compiler import schema_to_gbnf
from openai_cpu_server.structured.errors import InvalidSchema
from openai_cpu_server.structured.languages.automaton import build
from openai_cpu_server.structured.languages.elimination import to_expr
from openai_cpu_server.structured.languages.expr import NOTHING, Chars, Text, alt
from openai_cpu_server.structured.options import Budget, Limits, Options
from openai_cpu_server.structured.scalars.regex import full_language
from openai_cpu_server.structured.values.lexemes import by_states
from openai_cpu_server.structured.writing.grammar import Grammar


def json_object_gbnf(options: Options | None = None) -> str:
    """The grammar of any JSON object, for `response_format: {"type": "json_object"}`."""
    return schema_to_gbnf({"type": "object"}, options)


def regex_to_gbnf(pattern: str, limits: Limits | None = None) -> str:
    """The grammar of texts that match the pattern as a whole, anchors or not.
    Raises InvalidPattern, SchemaTooLarge."""
    budget = Budget(limits or Limits())
    grammar = Grammar(budget)
    language = full_language(pattern, budget.limits)
    automaton = build(language, budget) if language.is_extended else None
    if language is NOTHING or (automaton is not None and automaton.is_empty):
        raise InvalidSchema("", f"nothing matches the pattern {pattern[:80]!r}")
    simple = language if automaton is None else to_expr(automaton)
    if simple is not None:
        return grammar.finish(grammar.define("text", simple))
    assert automaton is not None
    return grammar.finish(by_states(automaton, grammar, "text", Chars))


def choice_to_gbnf(choices: list[str], limits: Limits | None = None) -> str:
    """The grammar of these texts, word for word. Raises InvalidSchema if there are none, SchemaTooLarge."""
    if not choices:
        raise InvalidSchema("", "there must be at least one choice")
    budget = Budget(limits or Limits())
    budget.check("values", len(choices))
    budget.spend("text", sum(map(len, choices)))
    grammar = Grammar(budget)
    return grammar.finish(grammar.define("choice", alt(*(Text(c) for c in dict.fromkeys(choices)))))
