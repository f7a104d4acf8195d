"""A grammar under construction: named rules, equal ones shared; pruned, merged and shaped.

Readers cut a text into lexemes: a rule made of nothing but characters becomes one lexeme, read
greedily, and two lexemes that begin alike must end alike. So strings, numbers and keys are rules of their
own, and whatever holds punctuation refers to a rule that is recursive (`never`, which matches nothing) and so
stays a rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from openai_cpu_server.structured.errors import InvalidSchema, SchemaTooLarge
from openai_cpu_server.structured.gbnf.printer import Shaper, text_length
from openai_cpu_server.structured.languages.charset import ANY
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Alt,
    Chars,
    Expr,
    Ref,
    Repeat,
    Rules,
    Seq,
    Text,
    alt,
    repeat,
    seq,
)
from openai_cpu_server.structured.languages.rules import order
from openai_cpu_server.structured.options import Budget

NEVER = "never"
_RESERVED = (ROOT, NEVER, "start")


class GrammarBuilder:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._rules: Rules = {}
        self._shared: dict[Expr, Ref] = {}
        self._made: dict[str, Expr] = {}
        self._counts: dict[str, int] = dict.fromkeys(_RESERVED, 1)

    def reserve(self, hint: str) -> str:
        """A new name for a rule. Names are lower case, because readers give case a meaning."""
        stem = re.sub(r"[^a-z0-9]+", "-", hint.lower())[:24].strip("-")
        stem = stem if stem[:1].isalpha() else f"r{stem}"
        count = self._counts[stem] = self._counts.get(stem, 0) + 1
        return stem if count == 1 else self._numbered(stem, count)

    def _numbered(self, stem: str, count: int) -> str:
        while f"{stem}-{count}" in self._counts:
            count += 1
        self._counts[stem] = count
        self._counts[f"{stem}-{count}"] = 1
        return f"{stem}-{count}"

    def set(self, name: str, expr: Expr) -> None:
        self._budget.spend("rules")
        self._rules[name] = expr

    def define(self, hint: str, expr: Expr) -> Expr:
        """A reference to a rule for the expression, an older one if possible.
        Short expressions need no rule."""
        if isinstance(expr, (Ref, Text)):
            return expr
        if expr not in self._shared:
            name = self.reserve(hint)
            self._shared[expr] = Ref(name)
            self.set(name, expr)
        return self._shared[expr]

    def once(self, name: str, make: Callable[[], Expr]) -> Expr:
        """A rule that is made when it is first asked for."""
        if name not in self._made:
            self._made[name] = self.define(name, make())
        return self._made[name]

    def structural(self, hint: str, lexeme: Expr) -> Expr:
        """A rule for punctuation that is not read as one lexeme: `lexeme | never`."""
        if NEVER not in self._rules:
            self.set(NEVER, seq(Chars(~ANY), Ref(NEVER)))
        return self.define(hint, alt(lexeme, Ref(NEVER)))

    def finish(self, root: Expr, path_of: Callable[[str], str | None] = lambda rule: None) -> Rules:
        """The grammar, from its root on. `path_of` tells where in the schema a rule comes from.
        Raises SchemaTooLarge; InvalidSchema if nothing at all matches."""
        self._rules[ROOT] = root
        rules = _productive(self._rules)
        if ROOT not in rules:
            raise InvalidSchema("", "no value can satisfy this schema")
        rules = _reachable(_merged(rules))
        self._check_levels(rules, path_of)
        shaped = Shaper(self._budget).shaped(rules)
        self._budget.spend("grammar", text_length(shaped))
        return shaped

    def _check_levels(self, rules: Rules, path_of: Callable[[str], str | None]) -> None:
        most = self._budget.limits.levels
        paths = [path for rule in order(rules, ROOT, most).deepest if (path := path_of(rule)) is not None]
        if paths:
            raise SchemaTooLarge("levels", most, paths[-1])


def _productive(rules: Rules) -> Rules:
    """The rules without alternatives that can never end. `never` itself stays: that is its purpose."""
    good: set[str] = {NEVER}
    users: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in expr.references:
            users.setdefault(used, []).append(name)
    queue = list(rules)
    for name in queue:
        if name not in good and _ends(rules[name], good):
            good.add(name)
            queue += users.get(name, ())
    if len(good) == len(rules):
        return rules
    return {name: _restricted(expr, good) for name, expr in rules.items() if name in good}


def _ends(expr: Expr, good: set[str]) -> bool:
    if isinstance(expr, Ref):
        return expr.name in good and expr.name != NEVER
    if isinstance(expr, Seq):
        return all(_ends(x, good) for x in expr.items)
    if isinstance(expr, Alt):
        return any(_ends(x, good) for x in expr.items)
    if isinstance(expr, Repeat):
        return expr.low == 0 or _ends(expr.item, good)
    return not isinstance(expr, Chars) or bool(expr.set)


def _restricted(expr: Expr, good: set[str]) -> Expr:
    """The expression without references to rules that are gone."""
    if isinstance(expr, Ref):
        return expr if expr.name in good else Alt(())
    if isinstance(expr, Seq):
        return seq(*(_restricted(x, good) for x in expr.items))
    if isinstance(expr, Alt):
        return alt(*(kept for x in expr.items if (kept := _restricted(x, good)) != Alt(())))
    if isinstance(expr, Repeat):
        return repeat(_restricted(expr.item, good), expr.low, expr.high)
    return expr


def renamed(expr: Expr, names: Mapping[str, str]) -> Expr:
    """The expression with new names for some of the rules that it refers to."""
    if expr.references.isdisjoint(names):
        return expr
    if isinstance(expr, Ref):
        return Ref(names[expr.name])
    if isinstance(expr, Seq):
        return Seq(tuple(renamed(x, names) for x in expr.items))
    if isinstance(expr, Alt):
        return alt(*(renamed(x, names) for x in expr.items))
    assert isinstance(expr, Repeat), expr
    return Repeat(renamed(expr.item, names), expr.low, expr.high)


def _merged(rules: Rules) -> Rules:
    """Merge equal rules until nothing changes, and remove rules that only name another one."""
    while True:
        first: dict[Expr, str] = {}
        names: dict[str, str] = {}
        for name, expr in rules.items():
            if isinstance(expr, Ref) and name != ROOT and expr.name not in (name, *names):
                names[name] = expr.name
            elif name != ROOT and first.setdefault(expr, name) != name:
                names[name] = first[expr]
        names = {name: _last(name, names) for name in names}
        if not names:
            return rules
        rules = {n: renamed(e, names) for n, e in rules.items() if n not in names}


def _last(name: str, names: dict[str, str]) -> str:
    while name in names:
        name = names[name]
    return name


def _reachable(rules: Rules) -> Rules:
    """The rules that the root leads to, in the order in which they are met."""
    order = {ROOT: rules[ROOT]}
    queue = [ROOT]
    for name in queue:
        for found in sorted(rules[name].references):
            if found not in order:
                order[found] = rules[found]
                queue.append(found)
    return order
