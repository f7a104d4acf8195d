"""Grammar of objects: properties in order, any subset of the optional ones, then other names.

`a?, b?, c` is a chain of rules, not nested optionals. Where properties are counted or may stand in any order,
each state is a rule.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Expr,
    alt,
    any_of,
    both,
    negate,
    repeat,
    seq,
)
from openai_cpu_server.structured.logic.goals import Conjunction, Goal, Goals, join, limits_of
from openai_cpu_server.structured.options import PropertyOrder
from openai_cpu_server.structured.schema import nodes
from openai_cpu_server.structured.schema.nodes import TRUE
from openai_cpu_server.structured.values.scalars import ScalarLexemes, StringLanguages
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.notations import Punctuation, plain_text


class Member(msgspec.Struct, frozen=True):
    name: str
    value: Goal
    is_required: bool


class Others(msgspec.Struct, frozen=True):
    names: Expr
    value: Goal
    is_declared: bool = True
    """False if no schema declares the names, and one that declares others does not mention them."""


class ObjectShape(msgspec.Struct, frozen=True):
    members: tuple[Member, ...]
    excluded: tuple[str, ...]
    others: tuple[Others, ...]
    low: int
    high: int | None
    is_order_meant: bool
    """False if a program has sorted the members by name."""
    required: tuple[str, ...]
    witness: tuple[Others, ...] = ()
    """Kinds of which one more property must be present, or ()."""

    def without_undeclared(self) -> ObjectShape:
        """Leave out undeclared properties, unless the least number of properties needs them."""
        declared = tuple(each for each in self.others if each.is_declared)
        is_enough = self.low <= len(self.members) + bool(declared)
        return msgspec.structs.replace(self, others=declared) if is_enough else self


_Class = tuple[Expr, frozenset[str]]
"""Language of names, and the patterns that all of them match."""


class ObjectShapes:
    def __init__(self, goals: Goals, strings: StringLanguages) -> None:
        self._goals = goals
        self._strings = strings
        self.shapes = functools.cache(self._found)
        """Shapes of a branch: several if one property of many is required, none if no object fits."""

    def _found(self, branch: Conjunction) -> list[ObjectShape]:
        base = self._shape(branch)
        if base is None:
            return []
        shapes = [base]
        for fact in branch:
            if isinstance(fact.node, nodes.SomeProperty):
                shapes = [x for shape in shapes for x in self._with_witness(shape, fact.node, fact.number)]
        return [shape.without_undeclared() for shape in shapes]

    def _shape(self, branch: Conjunction) -> ObjectShape | None:
        every = [f.node for f in branch]
        facts = [x for x in every if isinstance(x, nodes.Properties)]
        named = [dict(x.named) for x in facts]
        required = dict.fromkeys(n for x in every if isinstance(x, nodes.Required) for n in x.names)
        order = list(dict.fromkeys(n for values in named for n in values))
        patterns = (plain_text(self._strings.pattern(p)) for x in facts for p, _ in x.patterns)
        exact_names = [text for text in patterns if text is not None]  # such as `^a$`
        names = list(dict.fromkeys([*order, *required, *exact_names]))
        goals = [((x.name, True),) for x in every if isinstance(x, nodes.PropertyNames)]
        language = both(*map(self._strings.of_goal, goals)) if goals else ALL
        lists = [found for goal in goals if (found := self._strings.listed_of(goal)) is not None]
        listed = min(lists, key=len, default=None)
        names = list(dict.fromkeys([*names, *(listed or ())]))
        values = {n: join(*map(functools.partial(self._value_in, n), facts, named)) for n in names}
        members = [Member(n, value, n in required) for n, value in values.items()]
        possible = [
            m
            for m in members
            if (language == ALL or self._strings.matches(language, m.name))
            and self._goals.satisfiable(m.value)
        ]
        if any(m.is_required for m in members if m not in possible):
            return None
        others = self._others(facts, names, language) if listed is None else []
        return self._counted(branch, possible, names, others, order, tuple(required))

    def _counted(
        self,
        branch: Conjunction,
        members: list[Member],
        names: list[str],
        others: list[Others],
        order: list[str],
        required: tuple[str, ...],
    ) -> ObjectShape | None:
        low, high = limits_of(branch)
        fewest = sum(m.is_required for m in members)
        if high is not None and (high < low or high < fewest):
            return None
        if low > len(members) and not others:
            return None
        present = {m.name for m in members}
        order = [n for n in order if n in present]
        places = [order.index(n) for n in required if n in order]
        is_meant = order != sorted(order) or places == sorted(places)
        return ObjectShape(tuple(members), tuple(names), tuple(others), low, high, is_meant, required)

    def _value_in(self, name: str, fact: nodes.Properties, values: dict[str, int]) -> Goal:
        named = ((values[name], True),) if name in values else ()
        matches, pattern = self._strings.matches, self._strings.pattern
        matched = tuple((v, True) for p, v in fact.patterns if matches(pattern(p), name))
        return named + matched or ((fact.rest, True),)

    # Names that are not listed

    def _others(self, facts: list[nodes.Properties], names: list[str], language: Expr) -> list[Others]:
        choices = {fact.writes_rest for fact in facts}
        is_closed = False in choices and True not in choices
        # A pattern that allows what is allowed anyway does not separate names.
        telling = (p for f in facts for p, v in f.patterns if is_closed or not v == f.rest == TRUE)
        patterns = [p for p in dict.fromkeys(telling) if plain_text(self._strings.pattern(p)) is None]
        classes: list[_Class] = [(language, frozenset())]
        for pattern in patterns:
            classes = [part for each in classes for part in self._split(*each, pattern, names)]
        found: dict[tuple[Goal, bool], list[Expr]] = {}
        for own_names, matched in classes:
            values = [tuple((v, True) for p, v in fact.patterns if p in matched) for fact in facts]
            goal = join(*(own or ((fact.rest, True),) for own, fact in zip(values, facts, strict=True)))
            if self._goals.satisfiable(goal):
                is_declared = not is_closed or bool(matched)
                found.setdefault((goal, is_declared), []).append(own_names)
        return [
            Others(ALL if ALL in languages else alt(*languages), goal, is_declared)
            for (goal, is_declared), languages in found.items()
        ]

    def _split(
        self, language: Expr, matched: frozenset[str], pattern: str, listed: list[str]
    ) -> list[_Class]:
        inner = self._strings.pattern(pattern)
        inside, outside = both(language, inner), both(language, negate(inner))
        classes = [(inside, matched | {pattern}), (outside, matched)]
        return [each for each in classes if self._has_names(each[0], listed)]

    def _has_names(self, language: Expr, listed: list[str]) -> bool:
        beside = both(language, negate(any_of(listed))) if 0 < len(listed) < 8 else language
        return not self._strings.plain.is_empty(beside)

    # Properties of which one must be there

    def _with_witness(self, shape: ObjectShape, node: nodes.SomeProperty, number: int) -> list[ObjectShape]:
        if shape.witness:
            self._goals.refuse([number], "asks for several properties of unknown names")
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

    def _witness_names(self, node: nodes.SomeProperty) -> Expr:
        if node.pattern is not None:
            return self._strings.pattern(node.pattern)
        names, patterns = node.beside
        languages = [any_of(names)] if names else []
        languages += [self._strings.pattern(p) for p in patterns]
        return both(*(negate(k) for k in languages))


_FREELY_ORDERED = 5
"""Most properties in any order, because each subset of them is a rule."""


@dataclass(frozen=True, eq=False)
class ObjectRules:
    grammar: GrammarBuilder
    marks: Punctuation
    value: Callable[[Goal, str], Expr]
    names: ScalarLexemes
    order: PropertyOrder

    def expr(self, shape: ObjectShape, hint: str) -> Expr:
        bodies = [_Body(self, shape, hint, members) for members in self._orders(shape)]
        is_free = self.order is PropertyOrder.ANY and 1 < len(shape.members) <= _FREELY_ORDERED
        content = bodies[0].in_any_order() if is_free else alt(*(body.expr() for body in bodies))
        return seq(self.marks.open_object, content, self.marks.close_object)

    def _orders(self, shape: ObjectShape) -> list[tuple[Member, ...]]:
        if self.order is PropertyOrder.SCHEMA and shape.is_order_meant:
            return [shape.members]
        place = {name: i for i, name in enumerate(shape.required)}
        by_need = sorted(shape.members, key=lambda m: place.get(m.name, len(place)))
        return list(dict.fromkeys([shape.members, tuple(by_need)]))

    def member(self, member: Member) -> Expr:
        return self.marks.member(self.names.text.exactly(member.name), self.value(member.value, member.name))

    def other(self, kinds: tuple[Others, ...], excluded: tuple[str, ...], hint: str) -> Expr:
        parts = []
        for kind in kinds:
            name = self.names.name(kind.names, excluded)
            if name != NOTHING:
                parts.append(self.marks.member(name, self.value(kind.value, f"{hint}-other")))
        return alt(*parts)

    def rule(self, hint: str, expr: Expr) -> Expr:
        return expr if expr in (EMPTY, NOTHING) else self.grammar.define(hint, expr)


class _Body:
    def __init__(
        self, objects: ObjectRules, shape: ObjectShape, hint: str, members: tuple[Member, ...]
    ) -> None:
        self._objects = objects
        self._shape = shape
        self._hint = hint
        self._members = [(m, objects.member(m)) for m in members]
        self._other = objects.other(shape.others, shape.excluded, hint)
        self._witness = objects.other(shape.witness, shape.excluded, hint) if shape.witness else None
        fewest = sum(m.is_required for m in members)
        self._low = shape.low if shape.low > fewest else 0
        self._cap = max(self._low, 1) if shape.high is None else max(self._low, shape.high, 1)

    def expr(self) -> Expr:
        if self._cap > 1 or self._shape.high is not None:
            # Make a rule for each member and number of properties so far.
            row = {c: self._tail(c) for c in range(min(self._cap, len(self._members)) + 1)}
            for place, (member, text) in reversed(list(enumerate(self._members))):
                row = {c: self._state(member, text, c, row) for c in range(min(self._cap, place) + 1)}
            return row[0]
        starts = self._starts()
        if self._others_anywhere and self._members:
            following = self._objects.rule(f"{self._hint}-rest", seq(*self._written(0), self._tail(1)))
            starts = alt(starts, seq(self._other, self._more(0, None), following))
        return starts

    @property
    def _others_anywhere(self) -> bool:
        is_counted = self._cap > 1 or self._shape.high is not None
        may_be_anywhere = self._objects.order is PropertyOrder.ANY and self._witness is None
        return may_be_anywhere and self._other is not NOTHING and not is_counted

    # In order, not counted

    def _starts(self) -> Expr:
        optional = [not m.is_required for m, _ in self._members]
        num_leading = optional.index(False) if False in optional else len(optional)
        ways = min(num_leading + 1, len(self._members))
        rest = seq(*self._written(ways), self._tail(1))
        options = []
        for i in range(ways - 1, -1, -1):
            if ways > 1:
                rest = self._objects.rule(f"{self._hint}-rest", rest)
            options.append(seq(self._members[i][1], rest))
            rest = seq(*self._written(i, i + 1), rest)
        empty = [self._tail(0)] if num_leading == len(self._members) else []
        return alt(*reversed(options), *empty)

    def _written(self, start: int, stop: int | None = None) -> list[Expr]:
        found = []
        for member, text in self._members[start:stop]:
            written = seq(self._objects.marks.comma, text)
            found.append(written if member.is_required else repeat(written, 0, 1))
            if self._others_anywhere:
                found.append(self._more(0, None))
        return found

    # In order, counted

    def _state(self, member: Member, text: Expr, count: int, after: dict[int, Expr]) -> Expr:
        options = []
        if self._has_room(count):
            lead = self._objects.marks.comma if count else EMPTY
            options.append(seq(lead, text, after[min(count + 1, self._cap)]))
        if not member.is_required:
            options.append(after[count])
        return self._objects.rule(f"{self._hint}-rest", alt(*options))

    def _has_room(self, count: int) -> bool:
        return self._shape.high is None or count < self._shape.high

    # After the members

    def _tail(self, count: int) -> Expr:
        missing = max(self._low - count, 0)
        room = None if self._shape.high is None else self._shape.high - count
        if self._witness is not None:
            return self._with_witness(count, missing, room)
        if missing > 1 or (room is not None and room < missing):
            return NOTHING
        if self._other == NOTHING or room == 0:
            return EMPTY if missing == 0 else NOTHING
        if count:
            return self._more(missing, room)
        first = seq(self._other, self._more(0, None if room is None else room - 1))
        return first if missing else alt(EMPTY, first)

    def _more(self, low: int, high: int | None) -> Expr:
        others = seq(self._objects.marks.comma, self._other)
        return EMPTY if self._other == NOTHING else repeat(others, low, high)

    def _with_witness(self, count: int, missing: int, room: int | None) -> Expr:
        """The witness is last, because the last of equal names counts."""
        assert self._witness is not None
        if missing > 1 or room == 0:
            return NOTHING
        spare = None if room is None else room - 1
        last = seq(self._objects.marks.comma, self._witness)
        if count:
            return seq(self._more(0, spare), last)
        if spare == 0 or self._other == NOTHING:
            return self._witness
        rest = self._more(0, None if spare is None else spare - 1)
        return alt(self._witness, seq(self._other, rest, last))

    # In any order

    def in_any_order(self) -> Expr:
        texts = [text for _, text in self._members] + [self._other]
        later = [self._objects.rule(f"{self._hint}-next", seq(self._objects.marks.comma, t)) for t in texts]

        def moves(state: tuple[int, int]) -> Iterator[tuple[Expr, tuple[int, int] | None]]:
            used, others = state
            size = used.bit_count() + others
            yield self._end(used, others), None
            if not self._has_room(size):
                return
            parts = later if size else texts
            for i in range(len(self._members)):
                if not used >> i & 1:
                    yield parts[i], (used | 1 << i, others)
            if self._others_anywhere:
                yield parts[-1], (used, 1)

        return self._objects.grammar.by_moves(f"{self._hint}-any", (0, 0), moves)

    def _end(self, used: int, others: int) -> Expr:
        if any(m.is_required and not used >> i & 1 for i, (m, _) in enumerate(self._members)):
            return NOTHING
        count = used.bit_count() + others
        if self._others_anywhere:
            return EMPTY if count >= self._low else NOTHING
        return self._tail(min(count, self._cap))
