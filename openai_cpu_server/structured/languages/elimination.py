"""Automaton -> expression by eliminating states, the cheapest first and the later of equals first."""

from __future__ import annotations

import heapq

from openai_cpu_server.structured.languages.automaton import Automaton
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Expr,
    Repeat,
    Seq,
    alt,
    seq,
    star,
)

_START, _END = -1, -2
_LARGEST = 4_000
"""The most parts that an expression may have to be worth writing down."""
_MOST_WRITTEN = 15_000
"""The most parts that all intermediate expressions may have together."""

_DEEPEST = 90


class _TooLong(Exception):
    """The expression is too long to be worth writing down."""


class _Graph:
    """A graph of the automaton's states, a start and an end. Its edges are labelled with expressions."""

    def __init__(self, automaton: Automaton) -> None:
        self._out: dict[int, dict[int, Expr]] = {_START: {0: EMPTY}, _END: {}}
        self._into: dict[int, set[int]] = {_START: set(), _END: set()}
        self._sizes: dict[Expr, int] = {}
        self._num_written = 0
        for state, edges in enumerate(automaton.edges):
            self._out[state] = {target: Chars(chars) for chars, target in edges}
            if state in automaton.accepting:
                self._out[state][_END] = EMPTY
        for state in self._out:
            self._into.setdefault(state, set())
        for state, targets in self._out.items():
            for target in targets:
                self._into[target].add(state)
        self._queue = [(self._cost(s), -s) for s in range(len(automaton.edges))]
        heapq.heapify(self._queue)

    def eliminate_all(self) -> Expr:
        """The expression from start to end. Raises _TooLong."""
        while self._queue:
            cost, negated = heapq.heappop(self._queue)
            if -negated not in self._out:
                continue
            fresh = self._cost(-negated)
            if fresh > cost:
                heapq.heappush(self._queue, (fresh, negated))
            else:
                self._eliminate(-negated)
        return self._out[_START].get(_END, NOTHING)

    def _cost(self, state: int) -> int:
        """About how many parts must be written once more if this state is eliminated."""
        out, into = self._out[state], self._into[state]
        ways_in, ways_out = len(into - {state}), len(out) - (state in out)
        weight = sum(self._size(e) for e in out.values())
        incoming = sum(self._size(self._out[s][state]) for s in into)
        return max(ways_in - 1, 0) * weight + max(ways_out - 1, 0) * incoming

    def _size(self, expr: Expr) -> int:
        """The number of parts of an expression, itself included: what it costs to write."""
        known = self._sizes.get(expr)
        if known is None:
            if isinstance(expr, (Seq, Alt)):
                known = 1 + sum(self._size(x) for x in expr.items)
            else:
                known = 1 + (self._size(expr.item) if isinstance(expr, Repeat) else 0)
            self._sizes[expr] = known
        return known

    def _eliminate(self, state: int) -> None:
        out = self._out.pop(state)
        loop = star(out.pop(state)) if state in out else EMPTY
        sources = self._into.pop(state) - {state}
        for source in sorted(sources):
            before = self._out[source].pop(state)
            for target, after in out.items():
                self._add(source, target, seq(before, loop, after))
        for target in out:
            self._into[target].discard(state)
        for changed in sorted((sources | set(out)) - {_START, _END}):
            heapq.heappush(self._queue, (self._cost(changed), -changed))

    def _add(self, source: int, target: int, expr: Expr) -> None:
        known = self._out[source].get(target)
        whole = expr if known is None else alt(known, expr)
        size = self._size(whole)
        self._num_written += size
        if size > _LARGEST or whole.depth > _DEEPEST or self._num_written > _MOST_WRITTEN:
            raise _TooLong
        self._out[source][target] = whole
        self._into[target].add(source)


def to_expr(automaton: Automaton) -> Expr | None:
    """An expression of the same language, or None if that would be too long to write down."""
    if automaton.is_empty:
        return NOTHING
    try:
        return _Graph(automaton).eliminate_all()
    except _TooLong:
        return None
