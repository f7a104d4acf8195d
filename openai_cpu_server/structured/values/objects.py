"""Grammar of objects: properties in order, any subset of the optional ones, then other names. `a?, b?, c`
is a chain of rules, not nested optionals. Where properties are counted or may stand in any order, each
state is a rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from openai_cpu_server.structured.languages.expr import EMPTY, NOTHING, Expr, Ref, alt, repeat, seq
from openai_cpu_server.structured.logic.goals import Goal
from openai_cpu_server.structured.options import PropertyOrder
from openai_cpu_server.structured.values.object_shape import Member, ObjectShape, Others
from openai_cpu_server.structured.values.strings import NameKeys
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.json_text import Punctuation

_FREELY_ORDERED = 5
"""Most properties in any order, because each subset of them is a rule."""


@dataclass(frozen=True, eq=False)
class ObjectRules:
    grammar: GrammarBuilder
    marks: Punctuation
    value: Callable[[Goal, str], Expr]
    names: NameKeys
    order: PropertyOrder

    def expr(self, shape: ObjectShape, hint: str) -> Expr:
        bodies = [_Body(self, shape, hint, members) for members in self._orders(shape)]
        is_free = self.order is PropertyOrder.ANY and 1 < len(shape.members) <= _FREELY_ORDERED
        content = bodies[0].in_any_order() if is_free else alt(*(body.expr() for body in bodies))
        return seq(self.marks.open_object, content, self.marks.close_object)

    def _orders(self, shape: ObjectShape) -> list[tuple[Member, ...]]:
        """Add the order of `required` if an author did not choose the order of the schema, or any order is
        allowed."""
        if self.order is PropertyOrder.SCHEMA and shape.is_order_meant:
            return [shape.members]
        place = {name: i for i, name in enumerate(shape.required)}
        by_need = sorted(shape.members, key=lambda m: place.get(m.name, len(place)))
        return list(dict.fromkeys([shape.members, tuple(by_need)]))

    def member(self, member: Member) -> Expr:
        key = self.marks.key(self.names.exactly(member.name))
        return seq(key, self.value(member.value, member.name))

    def other(self, kinds: tuple[Others, ...], excluded: tuple[str, ...], hint: str) -> Expr:
        parts = []
        for kind in kinds:
            name = self.names.key(kind.names, excluded)
            if name != NOTHING:
                parts.append(seq(self.marks.key(name), self.value(kind.value, f"{hint}-other")))
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
        is_asked = self._objects.order is PropertyOrder.ANY and self._witness is None
        return is_asked and self._other is not NOTHING and not is_counted

    # In order, not counted

    def _starts(self) -> Expr:
        num_leading = self._num_leading
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

    @property
    def _num_leading(self) -> int:
        optional = [not m.is_required for m, _ in self._members]
        return optional.index(False) if False in optional else len(optional)

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
        return (
            repeat(seq(self._objects.marks.comma, self._other), low, high)
            if self._other != NOTHING
            else EMPTY
        )

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
        """Make a rule for each set of members written so far."""
        rules = {(0, 0): self._objects.grammar.reserve(f"{self._hint}-any")}
        queue = [(0, 0)]
        texts = [text for _, text in self._members] + [self._other]
        later = [self._objects.rule(f"{self._hint}-next", seq(self._objects.marks.comma, t)) for t in texts]
        for used, others in queue:
            size = used.bit_count() + others
            moves = {i: (used | 1 << i, others) for i in range(len(self._members)) if not used >> i & 1}
            if self._others_anywhere:
                moves[len(self._members)] = (used, 1)
            for state in moves.values():
                if state not in rules:
                    rules[state] = self._objects.grammar.reserve(f"{self._hint}-any")
                    queue.append(state)
            options = [seq((later if size else texts)[i], Ref(rules[to])) for i, to in moves.items()]
            found = alt(self._end(used, others), *(options if self._has_room(size) else []))
            self._objects.grammar.set(rules[used, others], found)
        return Ref(rules[0, 0])

    def _end(self, used: int, others: int) -> Expr:
        if any(m.is_required and not used >> i & 1 for i, (m, _) in enumerate(self._members)):
            return NOTHING
        count = used.bit_count() + others
        if self._others_anywhere:
            return EMPTY if count >= self._low else NOTHING
        return self._tail(min(count, self._cap))
