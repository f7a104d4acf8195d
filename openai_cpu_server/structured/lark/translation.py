"""Translates rules into Lark text with exactly the same language, which llguidance runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable

from openai_cpu_server.structured.errors import InvalidGrammar
from openai_cpu_server.structured.gbnf.conflicts import conflicting
from openai_cpu_server.structured.gbnf.lark import lark_text
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.gbnf.plan import Plan, is_character
from openai_cpu_server.structured.gbnf.regular import Regular
from openai_cpu_server.structured.gbnf.work import Share, Work
from openai_cpu_server.structured.languages.expr import ROOT, Expr, Rules, every_expression
from openai_cpu_server.structured.languages.order import CURE, described, order

_GENTLE_ROUNDS = 2
_ROUNDS = 3
_MOST_TO_CONFIRM = 6_000
"""The most steps for finding what is read where; beyond that all lexemes count as read everywhere."""
_CHARACTERS_PER_STEP = 6
"""One step of the work parses so many characters of the text."""


class Translation:
    """A grammar that is planned, and can be written for any vocabulary."""

    def __init__(self, rules: Rules, *, num_read: int = 0, work: Work | None = None) -> None:
        """Plan it. No rule may begin with itself. `num_read`: characters of text that were read for it; they
        are work, too. Raises InvalidGrammar."""
        work = work or Work()
        work.spend(num_read // _CHARACTERS_PER_STEP)
        self._plan = _plan(rules, work)
        self._first = _first(self._plan)

    def text(self, renumbered: Callable[[int], int] = lambda token: token) -> str:
        """`renumbered`: control tokens in the vocabulary of the reader."""
        return lark_text(self._plan, renumbered, self._first)


def gbnf_to_lark(
    gbnf: str, renumbered: Callable[[int], int] = lambda token: token, *, work: Work | None = None
) -> str:
    """A user's own grammar, translated. Raises InvalidGrammar."""
    return Translation(parse_gbnf(gbnf), num_read=len(gbnf), work=work).text(renumbered)


def numbered_from(first: int) -> Callable[[int], int]:
    """New numbers for control tokens, in the order in which they are met."""
    fresh = itertools.count(first)
    known: dict[int, int] = {}

    def renumbered(token: int) -> int:
        if token not in known:
            known[token] = next(fresh)
        return known[token]

    return renumbered


def _first(plan: Plan) -> tuple[str, ...]:
    """The rules that llguidance must compile before the others. Raises InvalidGrammar if its stack ends
    then, too."""
    found = order(plan.rules, ROOT)
    if found.deepest:
        raise InvalidGrammar(1, 1, f"{described(found.deepest)}; {CURE}")
    return found.first


def _plan(rules: Rules, work: Work) -> Plan:
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
