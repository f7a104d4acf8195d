"""Finds what may follow each lexeme: the first bytes, over all places where the lexeme stands."""

from __future__ import annotations

from collections import deque

from openai_cpu_server.structured.gbnf.leads import ALL_BYTES, Leads
from openai_cpu_server.structured.gbnf.left_recursion import leftmost
from openai_cpu_server.structured.gbnf.nullable import nullable_expressions
from openai_cpu_server.structured.gbnf.plan import Plan, is_lexeme
from openai_cpu_server.structured.gbnf.work import Work
from openai_cpu_server.structured.languages.expr import Alt, Expr, Ref, Repeat, Seq

_MOST_STEPS = 20_000
"""Beyond so many steps everything may follow everything: that is never wrong, but makes masks slower."""


def following(plan: Plan, work: Work) -> dict[str, int]:
    """The bytes that may follow each lexeme, by its name. Raises InvalidGrammar."""
    return _Following(plan, work).result()


class _Following:
    def __init__(self, plan: Plan, work: Work) -> None:
        self._plan = plan
        self._work = work
        work.spend(10 * len(plan.lexemes) + 2 * len(plan.rules))
        self._nullable = nullable_expressions(plan.rules | plan.lexemes)
        leads = Leads()
        self._first: dict[Expr, int] = {Ref(n): leads.mask(expr) for n, expr in plan.lexemes.items()}
        self._follow: dict[str, int] = dict.fromkeys([*plan.rules, *plan.lexemes], 0)
        self._num_steps = 0
        for name in self._leftmost_last():
            self._first[Ref(name)] = self._first_of(plan.rules[name])

    def _leftmost_last(self) -> list[str]:
        """The rules, each after those that it may begin with. (There is no left recursion.)"""
        needs = {
            name: {x for x in leftmost(expr, self._nullable) if not is_lexeme(x)}
            for name, expr in self._plan.rules.items()
        }
        order: dict[str, None] = {}
        for start in needs:
            stack = [start]
            while stack:
                missing = [x for x in needs[stack[-1]] if x not in order]
                if missing:
                    stack.append(missing[0])
                else:
                    order[stack.pop()] = None
        return list(order)

    def _first_of(self, expr: Expr) -> int:
        found = self._first.get(expr)
        if found is None:
            found = self._first[expr] = self._union(expr)
        return found

    def _union(self, expr: Expr) -> int:
        mask = 0
        for part in expr.parts:
            mask |= self._first_of(part)
            if isinstance(expr, Seq) and part not in self._nullable:
                break
        return mask

    def result(self) -> dict[str, int]:
        queue, waiting = deque(self._plan.rules), set(self._plan.rules)
        while queue:
            name = queue.popleft()
            waiting.discard(name)
            for grown in self._spread(self._plan.rules[name], self._follow[name]):
                if grown in self._plan.rules and grown not in waiting:
                    waiting.add(grown)
                    queue.append(grown)
            if self._num_steps > _MOST_STEPS:
                return dict.fromkeys(self._plan.lexemes, ALL_BYTES)
        return {name: self._follow[name] for name in self._plan.lexemes}

    def _spread(self, expr: Expr, after: int) -> list[str]:
        """Tell the parts what follows them. Returns the names that learn something new."""
        self._num_steps += 1
        self._work.spend(1)
        if isinstance(expr, Ref):
            is_news = after & ~self._follow[expr.name]
            self._follow[expr.name] |= after
            return [expr.name] if is_news else []
        news: list[str] = []
        for part in reversed(expr.parts):
            again = self._first_of(part) if isinstance(expr, Repeat) and expr.high != 1 else 0
            news += self._spread(part, after | again)
            if isinstance(expr, Seq):
                after = self._first_of(part) | (after if part in self._nullable else 0)
            else:
                assert isinstance(expr, (Alt, Repeat)), expr
        return news
