"""Which values satisfy several schemas at once, and fail others: schemas -> alternatives of plain facts.

A goal is a conjunction of signed nodes. For one type of value it unfolds into branches (a disjunction), each
a list of facts: constraints of that type, in the order in which the schema states them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from openai_cpu_server.structured.errors import InvalidSchema
from openai_cpu_server.structured.marks import Marked, Marks
from openai_cpu_server.structured.negation import STAYS_NEGATED, complement, none_of_all
from openai_cpu_server.structured.nodes import (
    FALSE,
    KIND_OF,
    TRUE,
    All,
    AnyOf,
    Constant,
    Integer,
    Kind,
    Negation,
    Node,
    OneOf,
    Properties,
    Reference,
    Required,
    Scalars,
    Table,
    Types,
)
from openai_cpu_server.structured.options import Budget
from openai_cpu_server.structured.report import Report

Signed = tuple[int, bool]
Goal = tuple[Signed, ...]
Order = tuple[int, ...]
_DEEP = 24
_MOST_COMPARED = 60


@dataclass(frozen=True)
class Fact:
    """One constraint on values of one type; `number` is its node's."""

    node: Node = field(compare=False)
    is_true: bool
    number: int


Branch = tuple[Fact, ...]


@dataclass(frozen=True)
class _Item:
    """A signed node that is still to be unfolded, and the references that led to it."""

    order: Order
    number: int
    is_true: bool
    trail: frozenset[int] = frozenset()

    def child(self, index: int, number: int, is_true: bool) -> _Item:
        return _Item((*self.order, index), number, is_true, self.trail)


@dataclass
class _State:
    """A branch while it grows: facts so far, and choices that are still to be made."""

    facts: list[tuple[Order, Fact]] = field(default_factory=list)
    choices: list[list[list[_Item]]] = field(default_factory=list)
    stated: set[Signed] = field(default_factory=set)
    """Everything that has been unfolded in it."""
    marked: Marked = field(default_factory=Marked)

    def copy(self) -> _State:
        return _State(list(self.facts), list(self.choices), set(self.stated), self.marked.copy())

    def next_choice(self, marks: Marks) -> list[list[_Item]] | None:
        """The next one that is still open, without the options that contradict what is stated."""
        while self.choices:
            choice = self.choices.pop(0)
            if not any(all(self._holds(x, marks) for x in option) for option in choice):
                return [o for o in choice if not any((x.number, not x.is_true) in self.stated for x in o)]
        return None

    def _holds(self, item: _Item, marks: Marks) -> bool:
        """Whether it holds already, as far as one can see."""
        is_stated = (item.number, item.is_true) in self.stated
        return is_stated or (item.is_true and marks.imply(self.marked, item.number))


def join(*goals: Goal) -> Goal:
    """All of them at once."""
    return tuple(dict.fromkeys(x for goal in goals for x in goal if x != (TRUE, True)))


class Goals:
    """Unfolds goals. `look_up` gives the node at a pointer; `is_possible` tells if a branch has values."""

    def __init__(self, table: Table, look_up: Callable[[str], int], budget: Budget, report: Report) -> None:
        self.table = table
        self._look_up = look_up
        self._budget = budget
        self._report = report
        self._marks = Marks(table, look_up)
        self._branches: dict[tuple[Goal, Kind], tuple[Branch, ...]] = {}
        self._truths: dict[tuple[Signed, Kind], bool | None] = {}
        self._possible: dict[tuple[Goal, Kind], bool] = {}
        self._depth = 0
        self.is_possible: Callable[[Branch, Kind], bool] = lambda branch, kind: True

    def branches(self, goal: Goal, kind: Kind) -> tuple[Branch, ...]:
        key = (goal, kind)
        if key not in self._branches:
            items = [_Item((i,), number, is_true) for i, (number, is_true) in enumerate(goal)]
            found = dict.fromkeys(self._unfold(_State(), items, kind))
            self._branches[key] = _without_special_cases(list(found))
        return self._branches[key]

    def satisfiable(self, goal: Goal, kind: Kind | None = None) -> bool:
        """False only if surely no value of the type (of any type) fits. Deep recursion counts as possible."""
        if goal == ANYTHING:
            return True
        if kind is None:
            return any(self.satisfiable(goal, k) for k in Kind)
        key = (goal, kind)
        if key not in self._possible:
            if self._depth > _DEEP:
                return True
            self._possible[key] = True
            self._depth += 1
            try:
                self._possible[key] = any(self.is_possible(b, kind) for b in self.branches(goal, kind))
            finally:
                self._depth -= 1
        return self._possible[key]

    # Unfolding

    def _unfold(self, state: _State, items: list[_Item], kind: Kind) -> Iterable[Branch]:
        if not self._settle(state, items, kind):
            return
        choice = state.next_choice(self._marks)
        if choice is None:
            self._budget.spend("branches")
            yield _branch(state.facts)
            return
        for option in choice:
            yield from self._unfold(state.copy(), option, kind)

    def _settle(self, state: _State, items: list[_Item], kind: Kind) -> bool:
        """Everything that needs no choice; False on a contradiction."""
        queue = list(items)
        while queue:
            item = queue.pop(0)
            if (item.number, item.is_true) in state.stated and not item.trail:
                continue
            state.stated.add((item.number, item.is_true))
            if self._step(item, state, queue, kind) is False:
                return False
        return True

    def _step(self, item: _Item, state: _State, queue: list[_Item], kind: Kind) -> bool | None:
        self._budget.spend("unfolded")
        node = self.table[item.number]
        if isinstance(node, Constant):
            return node.value == item.is_true
        if isinstance(node, Negation):
            queue.append(_Item(item.order, node.item, not item.is_true, item.trail))
            return None
        if isinstance(node, Reference):
            queue.append(self._followed(item, node))
            return None
        if isinstance(node, (All, AnyOf)):
            return self._combined(item, node, state, queue, kind)
        if isinstance(node, OneOf):
            options = self._one_of(item, node, kind)
            return self._choose(options, state, queue, kind)
        return self._fact(item, node, state, queue, kind)

    def _followed(self, item: _Item, node: Reference) -> _Item:
        if item.number in item.trail:
            path, _ = self.table.place(item.number)
            raise InvalidSchema(path, f"'$ref' to '{node.pointer or '#'}' leads back to itself")
        target = self._look_up(node.pointer)
        return _Item(item.order, target, item.is_true, item.trail | {item.number})

    def _combined(
        self, item: _Item, node: All | AnyOf, state: _State, queue: list[_Item], kind: Kind
    ) -> bool | None:
        if isinstance(node, All) == item.is_true:
            queue += [item.child(i, x, item.is_true) for i, x in enumerate(node.items)]
            return None
        signed = [(x, True) for x in node.items] if item.is_true else none_of_all(node.items, self.table)
        options = [[item.child(i, number, sign)] for i, (number, sign) in enumerate(signed)]
        return self._choose(options, state, queue, kind)

    def _choose(
        self, options: list[list[_Item]], state: _State, queue: list[_Item], kind: Kind
    ) -> bool | None:
        """Leave out what cannot be. Nothing is to be chosen where an option holds anyway, or is alone."""
        open_options = []
        for option in options:
            truths = [self.truth((x.number, x.is_true), kind) for x in option]
            if all(t is True for t in truths):
                return None
            if not any(t is False for t in truths):
                open_options.append(option)
        if not open_options:
            return False
        if len(open_options) == 1:
            queue += open_options[0]
        else:
            state.choices.append(open_options)
        return None

    def _one_of(self, item: _Item, node: OneOf, kind: Kind) -> list[list[_Item]]:
        """Exactly one: each with the negations of those that it overlaps. Not one: none, or two at least."""
        if not item.is_true:
            none = [item.child(i, x, False) for i, x in enumerate(node.items)]
            pairs = itertools.combinations(enumerate(node.items), 2)
            return [none, *([item.child(i, x, True) for i, x in pair] for pair in pairs)]
        options = []
        possible = [(i, x) for i, x in enumerate(node.items) if self.truth((x, True), kind) is not False]
        for i, each in possible:
            others = [
                item.child(j, x, False)
                for j, x in possible
                if j != i and (x == each or self._overlap(each, x, kind))
            ]
            options.append([item.child(i, each, True), *others])
        return options

    def _overlap(self, one: int, other: int, kind: Kind) -> bool:
        pair = (min(one, other), max(one, other))
        if kind is Kind.OBJECT and self._marks.tell_apart(*pair):
            return False
        return self.satisfiable(((pair[0], True), (pair[1], True)), kind)

    def _fact(self, item: _Item, node: Node, state: _State, queue: list[_Item], kind: Kind) -> bool | None:
        known = self._atom_truth(node, item.is_true, kind)
        if known is not None:
            return known
        if isinstance(node, Types):
            state.facts.append((item.order, Fact(Integer(), item.is_true, item.number)))
            return None
        if not item.is_true and not isinstance(node, STAYS_NEGATED):
            queue.append(_Item(item.order, self._complement(item.number, node), True, item.trail))
            return None
        state.facts.append((item.order, Fact(node, item.is_true, item.number)))
        return None if self._fits_marks(node, state.marked) else False

    def _fits_marks(self, node: Node, marked: Marked) -> bool:
        if isinstance(node, Required):
            return marked.require(node.names)
        if isinstance(node, Properties):
            return all(marked.add(mark) for mark in self._marks.said_by(node))
        return True

    def _complement(self, number: int, node: Node) -> int:
        path, keyword = self.table.place(number)
        found = complement(node, self.table)
        if found is None:
            self._report.refuse(path, keyword, "cannot be negated by a grammar")
            return TRUE
        return self.table.add(self.table[found], path, keyword)

    # What is known at a glance

    def truth(self, signed: Signed, kind: Kind) -> bool | None:
        """Whether the node holds for all values of a type (True), for none (False), or it depends."""
        key = (signed, kind)
        if key not in self._truths:
            self._truths[key] = None
            self._truths[key] = self._truth(signed, kind)
        return self._truths[key]

    def _truth(self, signed: Signed, kind: Kind) -> bool | None:
        number, is_true = signed
        node = self.table[number]
        if isinstance(node, Constant):
            return node.value == is_true
        if isinstance(node, Negation):
            return self.truth((node.item, not is_true), kind)
        if isinstance(node, Reference):
            return self.truth((self._look_up(node.pointer), is_true), kind)
        if isinstance(node, (All, AnyOf)):
            return self._truth_of_parts(node, is_true, kind)
        return None if isinstance(node, OneOf) else self._atom_truth(node, is_true, kind)

    def _truth_of_parts(self, node: All | AnyOf, is_true: bool, kind: Kind) -> bool | None:
        decisive = isinstance(node, AnyOf) == is_true
        truths = [self.truth((x, is_true), kind) for x in node.items]
        if decisive in truths:
            return decisive
        return (not decisive) if all(t is (not decisive) for t in truths) else None

    def _atom_truth(self, node: Node, is_true: bool, kind: Kind) -> bool | None:
        if isinstance(node, Types):
            if kind is Kind.NUMBER and "integer" in node.names and "number" not in node.names:
                return None
            return (kind.value in node.names) == is_true
        if isinstance(node, Scalars):
            return _scalars_truth(node, is_true, kind)
        return None if KIND_OF[type(node)] is kind else is_true


def _scalars_truth(node: Scalars, is_true: bool, kind: Kind) -> bool | None:
    listed: dict[Kind, bool] = {
        Kind.NULL: node.null,
        Kind.BOOLEAN: bool(node.booleans),
        Kind.NUMBER: bool(node.numbers),
        Kind.STRING: bool(node.strings),
    }
    if kind is Kind.NULL or not listed.get(kind, False):
        return listed.get(kind, False) == is_true
    return None


def _branch(facts: list[tuple[Order, Fact]]) -> Branch:
    return tuple(dict.fromkeys(fact for _, fact in sorted(facts, key=lambda x: x[0])))


def _without_special_cases(branches: list[Branch]) -> tuple[Branch, ...]:
    """A branch with all facts of another one, and more, adds nothing to it."""
    if len(branches) > _MOST_COMPARED:
        return tuple(branches)
    sets = [frozenset(b) for b in branches]
    return tuple(b for b, s in zip(branches, sets, strict=True) if not any(other < s for other in sets))


ANYTHING: Goal = ()
NOTHING: Goal = ((FALSE, True),)
