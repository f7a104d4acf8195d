"""Translates GBNF into Lark text with exactly the same language, which llguidance runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from openai_cpu_server.structured.errors import InvalidGrammar
from openai_cpu_server.structured.gbnf.conflicts import conflicting
from openai_cpu_server.structured.gbnf.lark import lark_text
from openai_cpu_server.structured.gbnf.nullable import every_expression
from openai_cpu_server.structured.gbnf.parser import ROOT, parse_gbnf
from openai_cpu_server.structured.gbnf.plan import Plan, is_character
from openai_cpu_server.structured.gbnf.regular import Regular
from openai_cpu_server.structured.gbnf.work import Share, Work
from openai_cpu_server.structured.languages.expr import Expr
from openai_cpu_server.structured.languages.order import CURE, described, order

_GENTLE_ROUNDS = 2
_ROUNDS = 3
_MOST_TO_CONFIRM = 6_000
"""The most steps for finding what is read where; beyond that all lexemes count as read everywhere."""
_CHARACTERS_PER_STEP = 6
"""One step of the work parses so many characters of the text."""


def _same(number: int) -> int:
    return number


def gbnf_to_lark(gbnf: str, renumbered: Callable[[int], int] = _same) -> str:
    """Translate a grammar. `renumbered`: control tokens in the vocabulary of the reader.
    Raises InvalidGrammar."""
    work = Work()
    work.spend(len(gbnf) // _CHARACTERS_PER_STEP)
    plan = _plan(parse_gbnf(gbnf).rules, work)
    return lark_text(plan, renumbered, _first(plan))


def _first(plan: Plan) -> tuple[str, ...]:
    """The rules that llguidance must compile before the others. Raises InvalidGrammar if its stack ends
    then, too."""
    found = order(plan.rules, ROOT)
    if found.deepest:
        raise InvalidGrammar(1, 1, f"{described(found.deepest)}; {CURE}")
    return found.first


def _plan(rules: dict[str, Expr], work: Work) -> Plan:
    """Plan lexemes as large as they can be read.
    Those that conflict are broken, at last into single characters."""
    regular, share = Regular(rules, work), Share(work, _MOST_TO_CONFIRM)
    broken: set[Expr] = set()
    for number in range(_ROUNDS):
        plan = Plan(rules, regular, lambda language: language not in broken, work)
        found = [plan.lexemes[name] for name in conflicting(plan, work, share)]
        if not found:
            return plan
        broken.update(found if number < _GENTLE_ROUNDS else _all_parts(found))
    return Plan(rules, regular, is_character, work)


def _all_parts(found: Iterable[Expr]) -> list[Expr]:
    return [expr for expr in every_expression(found) if not is_character(expr)]
