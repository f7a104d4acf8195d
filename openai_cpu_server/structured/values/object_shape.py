"""Shapes of objects: named properties in order, classes of other names, counts."""

from __future__ import annotations

import functools

import msgspec

from openai_cpu_server.structured.languages.expr import ALL, Expr, alt, any_of, both, negate
from openai_cpu_server.structured.logic.goals import Branch, Goal, Goals, join, limits_of
from openai_cpu_server.structured.options import UnenforcedReport
from openai_cpu_server.structured.schema.nodes import (
    TRUE,
    Properties,
    PropertyCount,
    PropertyNames,
    Required,
    SomeProperty,
)
from openai_cpu_server.structured.values.strings import StringLanguages
from openai_cpu_server.structured.writing.json_text import plain_text


class Member(msgspec.Struct, frozen=True):
    name: str
    value: Goal
    is_required: bool


class Others(msgspec.Struct, frozen=True):
    """Properties whose names are in a language without the named ones."""

    names: Expr
    value: Goal


class ObjectShape(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]
    excluded: tuple[str, ...]
    """Members, and properties that must be absent."""
    others: tuple[Others, ...]
    low: int
    high: int | None
    is_order_meant: bool
    """False if a program has sorted the members: by name, while `required` has another order."""
    required: tuple[str, ...]
    witness: tuple[Others, ...] = ()
    """Kinds of which one more property must be present, or ()."""

    def without_low(self) -> ObjectShape:
        return msgspec.structs.replace(self, low=0)


class _Known(msgspec.Struct, frozen=True):
    fact: Properties
    named: dict[str, int]


class _Class(msgspec.Struct, frozen=True):
    names: Expr
    matched: frozenset[str]


class ObjectShapes:
    def __init__(self, goals: Goals, strings: StringLanguages, report: UnenforcedReport) -> None:
        self._report = report
        self._goals = goals
        self._strings = strings
        self.shapes = functools.cache(self._found)
        """Shapes of a branch: several if one property of many is required, none if no object fits."""

    def _found(self, branch: Branch) -> list[ObjectShape]:
        base = self._shape(branch)
        if base is None:
            return []
        shapes = [base]
        for fact in branch:
            if isinstance(fact.node, SomeProperty):
                shapes = [x for shape in shapes for x in self._with_witness(shape, fact.node, fact.number)]
        return shapes

    def _shape(self, branch: Branch) -> ObjectShape | None:
        facts = [_Known(f.node, dict(f.node.named)) for f in branch if isinstance(f.node, Properties)]
        required = dict.fromkeys(n for f in branch if isinstance(f.node, Required) for n in f.node.names)
        order = list(dict.fromkeys(n for f in facts for n in f.named))
        names = list(dict.fromkeys([*order, *required, *self._exact_names(facts)]))
        language, listed = self._names(branch), self._listed_names(branch)
        names = list(dict.fromkeys([*names, *(listed or ())]))
        values = {n: join(*(self._value_in(n, fact) for fact in facts)) for n in names}
        members = [Member(n, value, n in required) for n, value in values.items()]
        possible = [m for m in members if self._allowed(m, language)]
        if any(m.is_required for m in members if m not in possible):
            return None
        others = self._others([f.fact for f in facts], names, language) if listed is None else []
        return self._counted(branch, possible, names, others, order, tuple(required))

    def _counted(
        self,
        branch: Branch,
        members: list[Member],
        names: list[str],
        others: list[Others],
        order: list[str],
        required: tuple[str, ...],
    ) -> ObjectShape | None:
        low, high = limits_of(branch, PropertyCount)
        fewest = sum(m.is_required for m in members)
        if high is not None and (high < low or high < fewest):
            return None
        if low > len(members) and not others:
            return None
        present = {m.name for m in members}
        order = [n for n in order if n in present]
        is_meant = order != sorted(order) or not _contradicts(required, order)
        return ObjectShape(tuple(members), tuple(names), tuple(others), low, high, is_meant, required)

    def _names(self, branch: Branch) -> Expr:
        goals = [((f.node.name, True),) for f in branch if isinstance(f.node, PropertyNames)]
        return both(*(self._strings.of_goal(g) for g in goals)) if goals else ALL

    def _listed_names(self, branch: Branch) -> list[str] | None:
        goals = [((f.node.name, True),) for f in branch if isinstance(f.node, PropertyNames)]
        lists = [found for g in goals if (found := self._strings.listed_of(g)) is not None]
        return min(lists, key=len, default=None)

    def _allowed(self, member: Member, language: Expr) -> bool:
        fits = language == ALL or self._strings.matches(language, member.name)
        return fits and self._goals.satisfiable(member.value)

    def _value_in(self, name: str, known: _Known) -> Goal:
        named = ((known.named[name], True),) if name in known.named else ()
        matched = tuple((v, True) for p, v in known.fact.patterns if self._matches(p, name))
        return named + matched or ((known.fact.rest, True),)

    def _matches(self, pattern: str, name: str) -> bool:
        return self._strings.matches(self._strings.pattern(pattern), name)

    def _exact_names(self, facts: list[_Known]) -> list[str]:
        """Names that a pattern spells out, such as `^a$`."""
        texts = [plain_text(self._strings.pattern(p)) for f in facts for p, _ in f.fact.patterns]
        return [t for t in texts if t is not None]

    # Names that nobody listed

    def _others(self, facts: list[Properties], names: list[str], language: Expr) -> list[Others]:
        # A pattern that allows only what is allowed anyway tells no names apart.
        telling = (p for f in facts for p, v in f.patterns if not v == f.rest == TRUE)
        patterns = [p for p in dict.fromkeys(telling) if plain_text(self._strings.pattern(p)) is None]
        classes = [_Class(language, frozenset())]
        for pattern in patterns:
            classes = [part for each in classes for part in self._split(each, pattern, names)]
        found: dict[Goal, list[Expr]] = {}
        for each in classes:
            goal = join(*(_class_value(each, fact) for fact in facts))
            if self._goals.satisfiable(goal):
                found.setdefault(goal, []).append(each.names)
        return [
            Others(ALL if ALL in languages else alt(*languages), goal) for goal, languages in found.items()
        ]

    def _split(self, given: _Class, pattern: str, names: list[str]) -> list[_Class]:
        language = self._strings.pattern(pattern)
        inside = _Class(both(given.names, language), given.matched | {pattern})
        outside = _Class(both(given.names, negate(language)), given.matched)
        return [c for c in (inside, outside) if self._has_names(c.names, names)]

    def _has_names(self, language: Expr, listed: list[str]) -> bool:
        beside = both(language, negate(any_of(listed))) if 0 < len(listed) < 8 else language
        return not self._strings.plain.is_empty(beside)

    # Properties of which one must be there

    def _with_witness(self, shape: ObjectShape, node: SomeProperty, number: int) -> list[ObjectShape]:
        if shape.witness:
            path, keyword = self._goals.table.place(number)
            self._report.refuse(path, keyword, "asks for several properties of unknown names")
            return [shape]
        wrong: Goal = ((node.value, True),)
        language = self._witness_names(node)
        found = []
        for i, member in enumerate(shape.members):
            value = join(member.value, wrong)
            if self._strings.matches(language, member.name) and self._goals.satisfiable(value):
                changed = msgspec.structs.replace(member, value=value, is_required=True)
                members = (*shape.members[:i], changed, *shape.members[i + 1 :])
                found.append(msgspec.structs.replace(shape, members=members))
        kinds = [Others(both(o.names, language), join(o.value, wrong)) for o in shape.others]
        kinds = [k for k in kinds if self._goals.satisfiable(k.value)]
        kinds = [k for k in kinds if self._has_names(k.names, list(shape.excluded))]
        return [*found, msgspec.structs.replace(shape, witness=tuple(kinds))] if kinds else found

    def _witness_names(self, node: SomeProperty) -> Expr:
        if node.pattern is not None:
            return self._strings.pattern(node.pattern)
        names, patterns = node.beside
        known = [any_of(names)] if names else []
        known += [self._strings.pattern(p) for p in patterns]
        return both(*(negate(k) for k in known))


def _contradicts(required: tuple[str, ...], order: list[str]) -> bool:
    places = [order.index(n) for n in required if n in order]
    return places != sorted(places)


def _class_value(given: _Class, fact: Properties) -> Goal:
    matched = tuple((v, True) for p, v in fact.patterns if p in given.matched)
    known = {p for p, _ in fact.patterns}
    if matched or (known & given.matched):
        return matched
    return ((fact.rest, True),)
