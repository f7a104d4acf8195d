"""Unfolding of schemas that hold or fail together.

A goal is a conjunction of signed nodes. For one type of value it unfolds into branches (a disjunction), each
a list of facts in the order of the schema.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from openai_cpu_server.structured.logic import truths
from openai_cpu_server.structured.options import Budget, InvalidSchema, UnenforcedReport
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.nodes import TRUE, JsonKind, Node, NodeTable

Goal = tuple[truths.Signed, ...]
_Order = tuple[int, ...]
_DEEP = 24
_MOST_COMPARED = 60
_COPIED_PER_STEP = 32


@dataclass(frozen=True)
class Fact:
    node: Node = field(compare=False)
    is_true: bool
    number: int


Conjunction = tuple[Fact, ...]


class _Item(msgspec.Struct, frozen=True):
    order: _Order
    number: int
    is_true: bool
    trail: frozenset[int] = frozenset()

    def child(self, index: int, number: int, is_true: bool) -> _Item:
        return _Item((*self.order, index), number, is_true, self.trail)


class _Choice(msgspec.Struct, frozen=True):
    options: list[list[_Item]]
    is_exclusive: bool = False
    """True if only one option can hold, which its first item decides."""


class _State(msgspec.Struct):
    kind: JsonKind
    meaning: Callable[[int], int]
    queue: list[_Item] = msgspec.field(default_factory=list)
    facts: list[tuple[_Order, Fact]] = msgspec.field(default_factory=list)
    choices: list[_Choice] = msgspec.field(default_factory=list)
    visits: set[truths.Signed] = msgspec.field(default_factory=set)
    stated: set[truths.Signed] = msgspec.field(default_factory=set)
    """Nodes read, by meaning: the same set where all equal nodes are one."""
    marked: truths.MarkedObject = msgspec.field(default_factory=truths.MarkedObject)

    def followed_by(self, items: list[_Item]) -> _State:
        facts, choices = list(self.facts), list(self.choices)
        visits, marked = set(self.visits), self.marked.copy()
        stated = visits if self.stated is self.visits else set(self.stated)
        return _State(self.kind, self.meaning, list(items), facts, choices, visits, stated, marked)

    def is_stated(self, number: int, is_true: bool) -> bool:
        return (self.meaning(number), is_true) in self.stated

    def next_choice(self, marks: truths.MarkReader) -> list[list[_Item]] | None:
        while self.choices:
            choice = self.choices.pop(0)
            options = choice.options
            if choice.is_exclusive:
                options = [o for o in options if self.is_stated(o[0].number, o[0].is_true)] or options
            if not any(all(self._holds(x, marks) for x in option) for option in options):
                return [o for o in options if not any(self.is_stated(x.number, not x.is_true) for x in o)]
        return None

    def _holds(self, item: _Item, marks: truths.MarkReader) -> bool:
        is_stated = self.is_stated(item.number, item.is_true)
        return is_stated or (item.is_true and marks.imply(self.marked, item.number))


def limits_of(branch: Conjunction) -> tuple[int, int | None]:
    found = [f.node for f in branch if isinstance(f.node, nodes.Size)]
    highs = [x.high for x in found if x.high is not None]
    return max((x.low for x in found), default=0), min(highs, default=None)


def join(*goals: Goal) -> Goal:
    return tuple(dict.fromkeys(x for goal in goals for x in goal if x != (TRUE, True)))


class Goals:
    """`look_up` returns the node of a reference, `expand` rewrites an `Unevaluated` with other nodes."""

    def __init__(
        self,
        table: NodeTable,
        look_up: Callable[[nodes.Reference], int],
        budget: Budget,
        report: UnenforcedReport,
    ) -> None:
        self.table = table
        self._look_up = look_up
        self._budget = budget
        self._report = report
        self._marks = truths.MarkReader(table, look_up)
        self._truths = truths.PlainTruths(table, look_up)
        self.branches = functools.cache(self._find_branches)
        self._possible: dict[tuple[Goal, JsonKind], bool] = {}
        self._possible_anywhere: dict[Goal, bool] = {}
        self._depth = 0
        self.is_possible: Callable[[Conjunction, JsonKind], bool] = lambda branch, kind: True
        self.expand: Callable[[nodes.Unevaluated], int] = lambda node: TRUE

    def _find_branches(self, goal: Goal, kind: JsonKind) -> tuple[Conjunction, ...]:
        items = [_Item((i,), number, is_true) for i, (number, is_true) in enumerate(goal)]
        with self._budget.looking_at(self.path(goal)):
            found = dict.fromkeys(self._unfold(items, kind))
        return self._without_special_cases(list(found))

    def satisfiable(self, goal: Goal, kind: JsonKind | None = None) -> bool:
        """Return False only if surely no value fits; deep recursion counts as satisfiable. `kind`: None for
        any type."""
        if goal == ANYTHING:
            return True
        if kind is None:
            if (is_possible := self._possible_anywhere.get(goal)) is not None:
                return is_possible
            found = any(self.satisfiable(goal, k) for k in JsonKind)
            if self._depth == 0:  # else it may depend on what is still assumed
                self._possible_anywhere[goal] = found
            return found
        key = (goal, kind)
        if key not in self._possible:
            if self._depth > _DEEP:
                return True
            self._possible[key] = True
            self._depth += 1
            try:
                with self._budget.looking_at(self.path(goal)):
                    self._possible[key] = any(self.is_possible(b, kind) for b in self.branches(goal, kind))
            finally:
                self._depth -= 1
        return self._possible[key]

    def path(self, goal: Goal) -> str:
        return self.table.place(goal[0][0])[0] if goal else ""

    def refuse(self, numbers: Iterable[int], reason: str) -> None:
        for number in numbers:
            self._report.refuse(*self.table.place(number), reason)

    def _without_special_cases(self, branches: list[Conjunction]) -> tuple[Conjunction, ...]:
        """Branches with all facts of another branch add no values, unless they declare more properties."""
        if len(branches) > _MOST_COMPARED:
            return tuple(branches)
        meanings = [{(self.table.meaning(f.number), f.is_true): f for f in b} for b in branches]
        found = []
        for branch, facts in zip(branches, meanings, strict=True):
            general = (
                other
                for other in meanings
                if other.keys() < facts.keys()
                and not any(_restricts_rest(facts[key]) for key in facts.keys() - other.keys())
            )
            if (cover := next(general, None)) is None:
                found.append(branch)
                continue
            for key, fact in cover.items():
                self.table.join_places(fact.number, facts[key].number)
        return tuple(found)

    # Unfolding

    def _unfold(self, items: list[_Item], kind: JsonKind) -> Iterable[Conjunction]:
        first = _State(kind, self.table.meaning)
        if not self.table.is_precise:
            first.stated = first.visits
        waiting = [(first, items)]
        while waiting:
            before, items = waiting.pop()
            state = before.followed_by(items)
            self._budget.spend("unfolded", len(state.stated) // _COPIED_PER_STEP)
            if not self._settle(state):
                continue
            choice = state.next_choice(self._marks)
            if choice is None:
                self._budget.spend("branches")
                yield tuple(dict.fromkeys(fact for _, fact in sorted(state.facts, key=lambda x: x[0])))
            else:
                waiting += [(state, option) for option in reversed(choice)]

    def _settle(self, state: _State) -> bool:
        while state.queue:
            item = state.queue.pop(0)
            if (item.number, item.is_true) in state.visits and not item.trail:
                continue
            state.visits.add((item.number, item.is_true))
            state.stated.add((state.meaning(item.number), item.is_true))
            if self._step(item, state) is False:
                return False
        return True

    def _step(self, item: _Item, state: _State) -> bool | None:
        self._budget.spend("unfolded")
        node = self.table[item.number]
        if isinstance(node, nodes.Constant):
            return node.value == item.is_true
        if isinstance(node, nodes.Negation):
            state.queue.append(_Item(item.order, node.item, not item.is_true, item.trail))
            return None
        if isinstance(node, nodes.Reference):
            state.queue.append(self._followed(item, node))
            return None
        if isinstance(node, (nodes.AllOf, nodes.AnyOf)):
            return self._combined(item, node, state)
        if isinstance(node, nodes.OneOf):
            return self._choose(self._one_of(item, node, state.kind), state, is_exclusive=item.is_true)
        if isinstance(node, nodes.Unevaluated):
            # Expand at once, because its choices settle those of the schemas beside it.
            if node.kind is not state.kind:
                return item.is_true
            expanded = _Item(item.order, self.expand(node), item.is_true, item.trail)
            return self._step(expanded, state)
        return self._fact(item, node, state)

    def _followed(self, item: _Item, node: nodes.Reference) -> _Item:
        """A chain of mere references counts as one."""
        path, _ = self.table.place(item.number)
        self._budget.check("references", len(item.trail) + 1, path)
        met, target = {*item.trail, item.number}, self._look_up(node)
        while isinstance(found := self.table[target], nodes.Reference) and target not in met:
            met.add(target)
            target = self._look_up(found)
        if target in met or item.number in item.trail:
            raise InvalidSchema(path, f"'$ref' to '{node.pointer or '#'}' leads back to itself")
        return _Item(item.order, target, item.is_true, item.trail | {item.number})

    def _combined(self, item: _Item, node: nodes.AllOf | nodes.AnyOf, state: _State) -> bool | None:
        if isinstance(node, nodes.AllOf) == item.is_true:
            state.queue += [item.child(i, x, item.is_true) for i, x in enumerate(node.items)]
            return None
        with self.table.standing_for(item.number):
            signed = [(x, True) for x in node.items]
            if not item.is_true:
                signed = truths.none_of_all(node.items, self.table)
        options = [[item.child(i, number, sign)] for i, (number, sign) in enumerate(signed)]
        return self._choose(options, state)

    def _choose(self, options: list[list[_Item]], state: _State, is_exclusive: bool = False) -> bool | None:
        open_options = []
        for option in options:
            found = [self._truths.of((x.number, x.is_true), state.kind) for x in option]
            if all(t is True for t in found):
                return None
            if not any(t is False for t in found):
                open_options.append(option)
        if not open_options:
            return False
        if len(open_options) == 1:
            state.queue += open_options[0]
        else:
            state.choices.append(_Choice(open_options, is_exclusive))
        return None

    def _one_of(self, item: _Item, node: nodes.OneOf, kind: JsonKind) -> list[list[_Item]]:
        """Options, with the negations of those they overlap. Negated, none holds or two do."""
        if not item.is_true:
            none = [item.child(i, x, False) for i, x in enumerate(node.items)]
            pairs = itertools.combinations(enumerate(node.items), 2)
            return [none, *([item.child(i, x, True) for i, x in pair] for pair in pairs)]
        options = []
        possible = [(i, x) for i, x in enumerate(node.items) if self._truths.of((x, True), kind) is not False]
        for i, each in possible:
            others = [
                item.child(j, x, False)
                for j, x in possible
                if j != i and (x == each or self._overlap(each, x, kind))
            ]
            options.append([item.child(i, each, True), *others])
        return options

    def may_meet(self, one: int, other: int, kind: JsonKind) -> bool:
        if any(self._truths.of((x, True), kind) is False for x in (one, other)):
            return False
        return kind is not JsonKind.OBJECT or not self._marks.exclude_each_other(one, other)

    def _overlap(self, one: int, other: int, kind: JsonKind) -> bool:
        pair = (min(one, other), max(one, other))
        return self.may_meet(*pair, kind) and self.satisfiable(((pair[0], True), (pair[1], True)), kind)

    def _fact(self, item: _Item, node: Node, state: _State) -> bool | None:
        truth = self._truths.of_atom(node, item.is_true, state.kind)
        if truth is not None:
            return truth
        if isinstance(node, nodes.LeftOut):
            return False if state.is_stated(item.number, not item.is_true) else None
        if isinstance(node, nodes.Types):
            state.facts.append((item.order, Fact(nodes.Integer(), item.is_true, item.number)))
            return None
        if not item.is_true and not isinstance(node, truths.STAYS_NEGATED):
            state.queue.append(_Item(item.order, self._complement(item.number, node), True, item.trail))
            return None
        state.facts.append((item.order, Fact(node, item.is_true, item.number)))
        fits = True
        if isinstance(node, nodes.Required):
            fits = state.marked.require(node.names)
        elif isinstance(node, nodes.Properties):
            fits = all(state.marked.add(mark) for mark in self._marks.marks_of(node))
        return None if fits else False

    def _complement(self, number: int, node: Node) -> int:
        with self.table.standing_for(number):
            found = truths.complement(node, self.table)
        if found is None:
            self.refuse([number], "cannot be negated by a grammar")
            return TRUE
        return found


def _restricts_rest(fact: Fact) -> bool:
    return isinstance(fact.node, nodes.Properties) and fact.node.writes_rest is not None


ANYTHING: Goal = ()
