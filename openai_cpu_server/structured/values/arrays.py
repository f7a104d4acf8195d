"""Grammar of arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from openai_cpu_server.structured.languages.expr import EMPTY, NOTHING, Expr, alt, repeat, seq
from openai_cpu_server.structured.logic.goals import ANYTHING, Conjunction, Goal, Goals, join, limits_of
from openai_cpu_server.structured.schema.nodes import Contains, Items, Unique
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.notations import Punctuation


class Need(msgspec.Struct, frozen=True):
    """Number of items that must fit `item`. `high` None means no limit."""

    item: Goal
    without: Goal
    low: int
    high: int | None
    number: int


class ArrayShape(msgspec.Struct, frozen=True):
    prefix: tuple[Goal, ...]
    rest: Goal
    low: int
    high: int | None
    needs: tuple[Need, ...]
    unique: tuple[int, ...]

    def item(self, index: int) -> Goal:
        return self.prefix[index] if index < len(self.prefix) else self.rest


def array_shape(branch: Conjunction, goals: Goals) -> ArrayShape | None:
    """Return None if no array fits."""
    needs = [
        Need(((f.node.item, True),), ((f.node.item, False),), f.node.low, f.node.high, f.number)
        for f in branch
        if isinstance(f.node, Contains)
    ]
    if any(n.high is not None and n.high < n.low for n in needs):
        return None
    banned = [n.without for n in needs if n.high == 0]
    prefix, rest = _items([f.node for f in branch if isinstance(f.node, Items)], join(*banned))
    low, high = limits_of(branch)
    ends = [i for i, goal in enumerate((*prefix, rest)) if not goals.satisfiable(goal)]
    ends += [] if high is None else [high]
    high = min(ends, default=None)
    needs = [n for n in needs if n.high != 0 and (n.low or n.high is not None)]
    low = max([low, *(n.low for n in needs)])
    if high is not None and low > high:
        return None
    prefix = prefix[:high]
    places = [*prefix, rest] if high is None or high > len(prefix) else [*prefix]
    needed = [n.item for n in needs if n.low]
    if not all(any(goals.satisfiable(join(place, item)) for place in places) for item in needed):
        return None
    unique = tuple(f.number for f in branch if isinstance(f.node, Unique))
    return ArrayShape(prefix, rest, low, high, tuple(needs), unique if high is None or high > 1 else ())


def _items(facts: list[Items], banned: Goal) -> tuple[tuple[Goal, ...], Goal]:
    longest = max((len(f.prefix) for f in facts), default=0)
    prefix = []
    for i in range(longest):
        parts = [((f.prefix[i] if i < len(f.prefix) else f.rest, True),) for f in facts]
        prefix.append(join(*parts, banned))
    rest = join(*(((f.rest, True),) for f in facts), banned) if facts or banned else ANYTHING
    return tuple(prefix), rest


_MOST_SUBSETS = 260
"""Values of more subsets keep the order of the list."""
_MOST_NEEDS = 3
_MOST_PLACES = 8
_NOT_UNIQUE = (
    "cannot be enforced beside 'prefixItems' or 'contains', on items that may be numbers or other values, on "
    "large multiples, nor on numbers with flexible white space: list up to 400 values with 'enum', or allow "
    "one item ('maxItems': 1)"
)


@dataclass(frozen=True, eq=False)
class ArrayRules:
    grammar: GrammarBuilder
    marks: Punctuation
    value: Callable[[Goal, str], Expr]
    values: Callable[[Goal], list[Expr] | None]
    """Function that returns None if they are many."""
    distinct: Callable[[Goal, str], Expr | None]
    """Function that returns None if the engine cannot compare the values."""
    goals: Goals

    def expr(self, shape: ArrayShape, hint: str) -> Expr:
        return seq(self.marks.open_array, self._content(shape, hint), self.marks.close_array)

    def _content(self, shape: ArrayShape, hint: str) -> Expr:
        if shape.unique:
            content = self._set(shape, hint) or self._distinct(shape, hint)
            if content is not None:
                return content
            self.goals.refuse(shape.unique, _NOT_UNIQUE)
        if len(shape.needs) > _MOST_NEEDS:
            reason = f"beside more than {_MOST_NEEDS - 1} others needs too many rules"
            self.goals.refuse([need.number for need in shape.needs], reason)
        elif shape.needs:
            return self._counted(shape, hint)
        return self._plain(shape, hint)

    def _item(self, goal: Goal, hint: str) -> Expr:
        return self.marks.item(self.value(goal, hint))

    def _plain(self, shape: ArrayShape, hint: str) -> Expr:
        if shape.high == 0:
            return EMPTY
        size = len(shape.prefix)
        tail = self._tail(shape, max(size, 1), hint)
        for i in range(size - 1, 0, -1):
            item = seq(self.marks.comma, self._item(shape.prefix[i], hint), tail)
            # Optional tails are rules, because they must not nest.
            tail = item if i < shape.low else self.grammar.define(f"{hint}-tail", alt(EMPTY, item))
        first = seq(self._item(shape.item(0), hint), tail)
        return first if shape.low > 0 else alt(EMPTY, first)

    def _tail(self, shape: ArrayShape, start: int, hint: str) -> Expr:
        high = None if shape.high is None else shape.high - start
        if high is not None and high <= 0:
            return EMPTY
        item = seq(self.marks.comma, self._item(shape.rest, hint))
        return repeat(item, max(shape.low - start, 0), high)

    # Items that must be there

    def _counted(self, shape: ArrayShape, hint: str) -> Expr:
        """Counting stops where it no longer matters."""
        cap = max(len(shape.prefix), shape.low, 1) if shape.high is None else shape.high
        needed = (shape.low, *(need.low for need in shape.needs))

        def moves(state: tuple[int, ...]) -> Iterator[tuple[Expr, tuple[int, ...] | None]]:
            if all(n >= low for n, low in zip(state, needed, strict=True)):
                yield EMPTY, None
            lead = EMPTY if state[0] == 0 else self.marks.comma
            for goal, following in self._moves(shape, state, cap):
                yield seq(lead, self._item(goal, hint)), following

        return self.grammar.by_moves(f"{hint}-items", (0, *(0 for _ in shape.needs)), moves)

    def _moves(
        self, shape: ArrayShape, state: tuple[int, ...], cap: int
    ) -> list[tuple[Goal, tuple[int, ...]]]:
        if shape.high is not None and state[0] >= shape.high:
            return []
        moves = []
        for hits in itertools.product((False, True), repeat=len(shape.needs)):
            steps = [_step(n, need, hit) for n, need, hit in zip(state[1:], shape.needs, hits, strict=True)]
            counts = [count for _, count in steps if count is not None]
            if len(counts) == len(steps):
                goal = join(shape.item(state[0]), *(part for part, _ in steps))
                moves.append((goal, (min(state[0] + 1, cap), *counts)))
        return list(dict.fromkeys(moves))

    # Items that must differ

    def _set(self, shape: ArrayShape, hint: str) -> Expr | None:
        if not shape.needs and self._differ(shape):
            return self._plain(shape, hint)
        values = self.values(shape.rest) if not shape.prefix and not shape.needs else None
        if values is None:
            return None
        values = [self.marks.item(value) for value in values]
        most = len(values) if shape.high is None else min(shape.high, len(values))
        if most < shape.low:
            return NOTHING
        if sum(math.comb(len(values), n) for n in range(most + 1)) > _MOST_SUBSETS:
            return self._in_their_order(values, shape.low, most, hint)
        return self._in_any_order(values, shape.low, most, hint)

    def _distinct(self, shape: ArrayShape, hint: str) -> Expr | None:
        """The engine compares items by the names of their rules."""
        item = None if shape.prefix or shape.needs else self.distinct(shape.rest, hint)
        if item is None:
            return None
        first, other = self.grammar.list_items(hint, item)
        high = None if shape.high is None else shape.high - 1
        some = seq(first, repeat(seq(self.marks.comma, other), max(shape.low - 1, 0), high))
        return some if shape.low else alt(EMPTY, some)

    def _differ(self, shape: ArrayShape) -> bool:
        if shape.high is None or not 1 < shape.high <= _MOST_PLACES:
            return False
        pairs = itertools.combinations(range(shape.high), 2)
        return not any(self.goals.satisfiable(join(shape.item(i), shape.item(j))) for i, j in pairs)

    def _in_any_order(self, values: list[Expr], low: int, most: int, hint: str) -> Expr:
        def moves(used: int) -> Iterator[tuple[Expr, int | None]]:
            size = used.bit_count()
            if size >= low:
                yield EMPTY, None
            lead = self.marks.comma if used else EMPTY
            for i, value in enumerate(values if size < most else ()):
                if not used >> i & 1:
                    yield seq(lead, value), used | 1 << i

        return self.grammar.by_moves(f"{hint}-set", 0, moves)

    def _in_their_order(self, values: list[Expr], low: int, most: int, hint: str) -> Expr:
        is_limited = most < len(values)
        cap = most if is_limited else max(low, 1)  # without a limit it stops counting where there are enough
        row = [EMPTY if count >= low else NOTHING for count in range(cap + 1)]
        for value in reversed(values):
            following = [*row[1:], NOTHING if is_limited else row[cap]]
            row = [
                self.grammar.define(f"{hint}-set", alt(seq(lead, value, following[count]), row[count]))
                for count, lead in enumerate([EMPTY] + [self.marks.comma] * cap)
            ]
        return row[0]


def _step(count: int, need: Need, is_hit: bool) -> tuple[Goal, int | None]:
    """New count None: the item may not meet the need. Without an upper limit the count stops once it is high
    enough."""
    if is_hit:
        most = need.low if need.high is None else need.high
        return need.item, count + 1 if count < most else None
    return (() if need.high is None else need.without), count
