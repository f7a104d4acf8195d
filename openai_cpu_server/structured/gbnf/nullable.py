"""Finds the expressions that may match the empty text."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.structured.languages.expr import Expr, Ref, Rules, Seq


class Nullables:
    """The expressions of a grammar that may match the empty text, at any depth.

    Most show it by themselves. Only where it depends on rules, the rules are looked at, once per place: the
    work is linear.
    """

    def __init__(self, rules: Rules) -> None:
        self._named: dict[Expr, list[Expr]] = {}
        for name, expr in rules.items():
            self._named.setdefault(expr, []).append(Ref(name))
        self._found: set[Expr] = set()
        self._parents, self._missing = _dependent(rules.values())
        self._spread([Ref(name) for name, expr in rules.items() if expr.is_nullable])

    def __contains__(self, expr: Expr) -> bool:
        return expr.is_nullable or expr in self._found

    def _spread(self, queue: list[Expr]) -> None:
        """Note these expressions, and all that may be empty because they may be."""
        self._found.update(queue)
        for expr in queue:
            for parent in [*self._parents.get(expr, ()), *self._named.get(expr, ())]:
                if isinstance(parent, Seq):
                    self._missing[parent] -= 1
                if parent not in self._found and not self._missing.get(parent):
                    self._found.add(parent)
                    queue.append(parent)


def _dependent(roots: Iterable[Expr]) -> tuple[dict[Expr, list[Expr]], dict[Expr, int]]:
    """Expressions on which others depend, with those others, twice if they occur there twice.
    For each sequence: how many of its items depend on rules."""
    parents: dict[Expr, list[Expr]] = {}
    missing: dict[Expr, int] = {}
    queue = [x for x in dict.fromkeys(roots) if _is_open(x)]
    seen = set(queue)
    for expr in queue:
        parts = [x for x in expr.parts if _is_open(x)]
        if isinstance(expr, Seq):
            missing[expr] = len(parts)
        for part in parts:
            parents.setdefault(part, []).append(expr)
        fresh = [x for x in dict.fromkeys(parts) if x not in seen]
        seen.update(fresh)
        queue += fresh
    return parents, missing


def _is_open(expr: Expr) -> bool:
    """Whether it depends on rules if the expression may be empty."""
    if expr.is_nullable or not expr.references:
        return False
    return not isinstance(expr, Seq) or all(x.is_nullable or x.references for x in expr.items)
