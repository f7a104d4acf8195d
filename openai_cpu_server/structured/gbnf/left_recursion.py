"""Finds rules that begin with themselves.
Recursion here goes only as deep as one expression, which is little."""

from __future__ import annotations

from collections.abc import Iterator

from openai_cpu_server.structured.gbnf.nullable import Nullables
from openai_cpu_server.structured.languages.expr import Alt, Expr, Ref, Repeat, Rules, Seq


def find_left_recursion(rules: Rules) -> list[str] | None:
    """The names along one such cycle; None if there is none. Names of no rule in them are ignored."""
    nullable = Nullables(rules)
    done: set[str] = set()
    for start in rules:
        cycle = _cycle_from(start, rules, nullable, done)
        if cycle:
            return cycle
    return None


def _cycle_from(start: str, rules: Rules, nullable: Nullables, done: set[str]) -> list[str] | None:
    """Search depth first; `path` holds the rules that are open."""
    if start in done:
        return None
    path = {start: leftmost(rules[start], nullable)}
    while path:
        name = next(reversed(path))
        for first in path[name]:
            if first not in rules:
                continue
            if first in path:
                return list(path)[list(path).index(first) :]
            if first not in done:
                path[first] = leftmost(rules[first], nullable)
                break
        else:
            done.add(name)
            del path[name]
    return None


def leftmost(expr: Expr, nullable: Nullables) -> Iterator[str]:
    """The rules that the expression may begin with."""
    if isinstance(expr, Ref):
        yield expr.name
    elif isinstance(expr, Alt):
        for item in expr.items:
            yield from leftmost(item, nullable)
    elif isinstance(expr, Repeat):
        yield from leftmost(expr.item, nullable)
    elif isinstance(expr, Seq):
        for item in expr.items:
            yield from leftmost(item, nullable)
            if item not in nullable:
                return
