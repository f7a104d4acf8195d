"""Finds the expressions that may match the empty text."""

from __future__ import annotations

from collections.abc import Container, Iterable

from openai_cpu_server.structured.languages.expr import EMPTY, Expr, Ref, Repeat, Seq, Text

_NO_TEXT = Text("")


def nullable_expressions(rules: dict[str, Expr]) -> set[Expr]:
    """All such expressions in the rules, at any depth.
    The work is linear: each is looked at once per place."""
    parents = _parents(rules)
    missing = {x: len(x.items) for x in parents if isinstance(x, Seq)}
    named: dict[Expr, list[Expr]] = {}
    for name, expr in rules.items():
        named.setdefault(expr, []).append(Ref(name))
    queue = [x for x in parents if _is_plainly(x)]
    found = set(queue)
    for expr in queue:
        for parent in [*parents[expr], *named.get(expr, ())]:
            if isinstance(parent, Seq):
                missing[parent] -= 1
            if parent not in found and not missing.get(parent):
                found.add(parent)
                queue.append(parent)
    return found


def _parents(rules: dict[str, Expr]) -> dict[Expr, list[Expr]]:
    """Every expression with those that contain it, twice if they do so twice."""
    parents: dict[Expr, list[Expr]] = {}
    queue: list[Expr] = list(every_expression(rules.values()))
    for expr in queue:
        parents.setdefault(expr, [])
        for part in expr.parts:
            parents.setdefault(part, []).append(expr)
    for name in rules:
        parents.setdefault(Ref(name), [])
    return parents


def every_expression(roots: Iterable[Expr]) -> dict[Expr, None]:
    """The roots and all their parts, once each."""
    found = dict.fromkeys(roots)
    queue = list(found)
    for expr in queue:
        for part in expr.parts:
            if part not in found:
                found[part] = None
                queue.append(part)
    return found


def parts_first(roots: list[Expr], known: Container[Expr] = ()) -> list[Expr]:
    """The roots and all their parts, without the known ones; parts come first."""
    found: dict[Expr, None] = {}
    stack = [(root, False) for root in reversed(roots)]
    while stack:
        expr, is_done = stack.pop()
        if is_done:
            found[expr] = None
        elif expr not in found and expr not in known:
            stack.append((expr, True))
            stack += [(x, False) for x in expr.parts if x not in found]
    return list(found)


def _is_plainly(expr: Expr) -> bool:
    if isinstance(expr, Repeat):
        return expr.low == 0
    return expr is EMPTY or expr is _NO_TEXT
