"""Finds what may follow each lexeme: the first bytes, over all places where the lexeme stands."""

from __future__ import annotations

from collections import deque

from openai_cpu_server.structured.gbnf.leads import Leads
from openai_cpu_server.structured.gbnf.left_recursion import leftmost
from openai_cpu_server.structured.gbnf.nullable import Nullables
from openai_cpu_server.structured.gbnf.plan import Plan, is_lexeme
from openai_cpu_server.structured.gbnf.work import Work
from openai_cpu_server.structured.languages.expr import Alt, Expr, Ref, Repeat, Seq


def following(plan: Plan, work: Work) -> dict[str, int]:
    """The bytes that may follow each lexeme, by its name. Raises InvalidGrammar."""
    return _Following(plan, work).result()


class _Following:
    def __init__(self, plan: Plan, work: Work) -> None:
        self._plan = plan
        self._work = work
        work.spend(10 * len(plan.lexemes) + 2 * len(plan.rules))
        self._nullable = Nullables(plan.rules | plan.lexemes)
        leads = Leads()
        self._first: dict[Expr, int] = {Ref(n): leads.mask(expr) for n, expr in plan.lexemes.items()}
        self._follow: dict[str, int] = dict.fromkeys([*plan.rules, *plan.lexemes], 0)
        self._lasts: dict[str, list[str]] = {}
        """For each rule the names with which it may end."""
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
        for name, expr in self._plan.rules.items():
            lasts: list[str] = []
            self._spread(expr, 0, lasts)
            self._lasts[name] = list(dict.fromkeys(lasts))
        self._inherit()
        return {name: self._follow[name] for name in self._plan.lexemes}

    def _spread(self, expr: Expr, after: int, lasts: list[str] | None) -> None:
        """Tell the parts what follows them within the rule. `lasts` collects the names with which the rule
        may end; None: something else comes behind this expression."""
        self._work.spend(1)
        if isinstance(expr, Ref):
            self._follow[expr.name] |= after
            if lasts is not None:
                lasts.append(expr.name)
            return
        for part in reversed(expr.parts):
            again = self._first_of(part) if isinstance(expr, Repeat) and expr.high != 1 else 0
            self._spread(part, after | again, lasts)
            if isinstance(expr, Seq):
                is_empty = part in self._nullable
                after, lasts = self._first_of(part) | (after if is_empty else 0), lasts if is_empty else None
            else:
                assert isinstance(expr, (Alt, Repeat)), expr

    def _inherit(self) -> None:
        """What follows a rule follows all with which the rule may end, until nothing changes."""
        queue, waiting = deque(self._plan.rules), set(self._plan.rules)
        while queue:
            name = queue.popleft()
            waiting.discard(name)
            after = self._follow[name]
            self._work.spend(1 + len(self._lasts[name]) // 8)
            for last in self._lasts[name]:
                if after & ~self._follow[last]:
                    self._follow[last] |= after
                    if last in self._lasts and last not in waiting:
                        waiting.add(last)
                        queue.append(last)
