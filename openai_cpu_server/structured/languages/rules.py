"""Compile order, nullable expressions and left recursion of rules.

llguidance compiles a rule within the rule that first names it, and an overflow of the stack kills the
process. Long chains are compiled from their end, in pieces; long cycles are rejected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from openai_cpu_server.structured.languages.expr import (
    Alt,
    And,
    Chars,
    Expr,
    GrammarRules,
    Ref,
    Repeat,
    Seq,
    Text,
    inner_first,
    parts_first,
)

MOST_LEVELS = 3_000
"""A rule counts two, and each expression around the next rule's name one.

A level takes about 1 KiB of stack on x86-64; `tests/structured/test_chains.py` runs the deepest on 8 MiB.
"""
_PIECE = 600
"""Levels up to which a chain is compiled without cuts."""
_OF_RULE = 2

_SHOWN = 4


def order(
    rules: dict[str, Expr], root: str, most_levels: int = MOST_LEVELS
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rules to compile before the root, and nested rules that overflow the stack,
    outermost first."""
    found = _Visit(rules, most_levels)
    found.all_from(root)
    first = tuple(found.ends_of_pieces)
    if first:
        found = _Visit(rules, most_levels)
        for name in (*first, root):
            found.all_from(name)
    return first, found.deepest


def too_deep(deepest: Sequence[str]) -> str:
    path = " -> ".join([*deepest[:_SHOWN], "...", deepest[-1]])
    advice = "make the circle of rules that refer to one another shorter"
    return f"{len(deepest)} rules lie within one another ({path}), which is too many; {advice}"


class _OpenRule(msgspec.Struct):
    name: str
    names: Iterator[tuple[str, int]]
    levels: int
    height: int = 0


class _Visit:
    """Depth first, like llguidance."""

    def __init__(self, rules: dict[str, Expr], most_levels: int) -> None:
        self._rules = rules
        self._most_levels = most_levels
        self._met: set[str] = set()
        self.ends_of_pieces: list[str] = []
        self.deepest: tuple[str, ...] = ()

    def all_from(self, start: str) -> None:
        if start in self._met:
            return
        stack = [self._opened(start, 0)]
        while stack:
            here = stack[-1]
            inner = next(((n, x) for n, x in here.names if n in self._rules and n not in self._met), None)
            if inner is not None:
                stack.append(self._opened(inner[0], here.levels + inner[1]))
                if stack[-1].levels > self._most_levels and not self.deepest:
                    self.deepest = tuple(rule.name for rule in stack)
                continue
            stack.pop()
            height = here.height
            if height >= _PIECE:
                self.ends_of_pieces.append(here.name)
                height = 0
            if stack:
                outer = stack[-1]
                outer.height = max(outer.height, height + here.levels - outer.levels)

    def _opened(self, name: str, levels: int) -> _OpenRule:
        self._met.add(name)
        return _OpenRule(name, _named(self._rules[name], _OF_RULE), levels)


def _named(expr: Expr, level: int) -> Iterator[tuple[str, int]]:
    if isinstance(expr, Ref):
        yield expr.name, level
    elif expr.references:
        for part in expr.parts:
            yield from _named(part, level + 1)


def takes_long_texts(rules: GrammarRules, most: int) -> bool:
    """Return True if some part matches only texts of more than `most` characters.

    A recursive reference counts as length 0, which can only hide a part.
    """
    least: dict[Expr, float] = {}
    lengths: dict[str, float] = {}
    # Control tokens count as names, too.
    for name in inner_first(rules, lambda name: sorted(rules[name].references & rules.keys())):
        for expr in parts_first([rules[name]], least):
            least[expr] = length = _least_length(expr, least, lengths)
            if most < length < math.inf:
                return True
        lengths[name] = least[rules[name]]
    return False


def _least_length(expr: Expr, least: Mapping[Expr, float], lengths: Mapping[str, float]) -> float:
    match expr:
        case Chars(chars):
            return 1 if chars else math.inf
        case Text(text):
            return len(text)
        case Ref(name):
            return lengths.get(name, 0)
        case Alt(items):
            return min((least[each] for each in items), default=math.inf)
        case Seq(items):
            return sum(least[each] for each in items)
        case And(items):
            return max(least[each] for each in items)
        case Repeat(item, low):
            return low * least[item] if low else 0
    return 0


def users(rules: GrammarRules) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, expr in rules.items():
        for used in expr.references:
            found.setdefault(used, []).append(name)
    return found


class Nullables:
    """Rules are visited only where the answer depends on them."""

    def __init__(self, rules: GrammarRules) -> None:
        self._named: dict[Expr, list[Expr]] = {}
        for name, expr in rules.items():
            self._named.setdefault(expr, []).append(Ref(name))
        self._found: set[Expr] = set()
        self._parents, self._missing = _dependent(rules.values())
        self._spread([Ref(name) for name, expr in rules.items() if expr.is_nullable])

    def __contains__(self, expr: Expr) -> bool:
        return expr.is_nullable or expr in self._found

    def _spread(self, queue: list[Expr]) -> None:
        self._found.update(queue)
        for expr in queue:
            for parent in [*self._parents.get(expr, ()), *self._named.get(expr, ())]:
                if isinstance(parent, Seq):
                    self._missing[parent] -= 1
                if parent not in self._found and not self._missing.get(parent):
                    self._found.add(parent)
                    queue.append(parent)


def _dependent(roots: Iterable[Expr]) -> tuple[dict[Expr, list[Expr]], dict[Expr, int]]:
    """Parents of each open expression, twice if it occurs twice, and the number of open items of each
    sequence."""
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
    if expr.is_nullable or not expr.references:
        return False
    return not isinstance(expr, Seq) or all(x.is_nullable or x.references for x in expr.items)


def find_left_recursion(rules: GrammarRules) -> list[str] | None:
    """Return the names along a cycle, or None."""
    nullable = Nullables(rules)
    done: set[str] = set()
    for start in rules:
        cycle = _cycle_from(start, rules, nullable, done)
        if cycle:
            return cycle
    return None


def _cycle_from(start: str, rules: GrammarRules, nullable: Nullables, done: set[str]) -> list[str] | None:
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
    """Yield each rule once. Expressions share parts, so that paths double where parts do not."""
    found, stack = set[Expr](), [expr]
    while stack:
        expr = stack.pop()
        if expr in found:
            continue
        found.add(expr)
        if isinstance(expr, Ref):
            yield expr.name
        elif isinstance(expr, Seq):
            end = next((at for at, item in enumerate(expr.items) if item not in nullable), len(expr.items))
            stack += reversed(expr.items[: end + 1])
        elif isinstance(expr, (Alt, Repeat)):
            stack += reversed(expr.parts)
