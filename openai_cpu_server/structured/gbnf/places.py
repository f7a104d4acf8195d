"""Finds which lexemes a reader can meet at one place.

It takes a rule that ends to go on behind any place that names it. So the sets of lexemes that are met
together are never too small. (Lexemes that match the same text are all read.)
"""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.structured.gbnf.leads import Leads
from openai_cpu_server.structured.gbnf.nullable import Nullables
from openai_cpu_server.structured.gbnf.plan import Plan, is_lexeme
from openai_cpu_server.structured.gbnf.work import Work
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Alt,
    Expr,
    Ref,
    Repeat,
    Seq,
    Text,
)

Place = dict[str, int]
"""The lexemes of one place by name, with the first bytes of what may follow each there."""


def places(plan: Plan, work: Work) -> list[Place]:
    """All places, once each. Raises what `work` raises."""
    return _Places(plan, work).found()


class _Mentions:
    """The mentions of names in rules, numbered.
    `after` tells which mentions may come next in the same rule."""

    def __init__(self, plan: Plan, work: Work) -> None:
        self._work = work
        self.nullable = Nullables(plan.rules | plan.lexemes)
        self.names: list[str] = []
        self.after: list[set[int]] = []
        self.firsts: dict[str, list[int]] = {}
        self.callers: dict[str, list[int]] = {name: [] for name in plan.rules}
        self.ended: dict[int, str] = {}
        """For each mention with which a rule may end: the rule."""
        for name, expr in plan.rules.items():
            self.firsts[name], lasts = self._walk(expr)
            self.ended.update(dict.fromkeys(lasts, name))

    def _walk(self, expr: Expr) -> tuple[list[int], list[int]]:
        """The first and the last mentions of an expression."""
        self._work.spend(1)
        if isinstance(expr, Ref):
            return self._mention(expr.name)
        if isinstance(expr, Seq):
            return self._sequence(expr)
        pairs = [self._walk(part) for part in expr.parts]
        firsts, lasts = [p for f, _ in pairs for p in f], [p for _, last in pairs for p in last]
        if isinstance(expr, Repeat) and expr.high != 1:
            self._join(lasts, firsts)
        else:
            assert isinstance(expr, (Alt, Repeat)), expr
        return firsts, lasts

    def _mention(self, name: str) -> tuple[list[int], list[int]]:
        number = len(self.names)
        self.names.append(name)
        self.after.append(set())
        if not is_lexeme(name):
            self.callers[name].append(number)
        return [number], [number]

    def _sequence(self, expr: Seq) -> tuple[list[int], list[int]]:
        firsts: list[int] = []
        lasts: list[int] = []
        may_lead = True
        for part in expr.items:
            first, last = self._walk(part)
            self._join(lasts, first)
            firsts += first if may_lead else []
            may_lead = may_lead and part in self.nullable
            lasts = last + (lasts if part in self.nullable else [])
        return firsts, lasts

    def _join(self, lasts: list[int], firsts: list[int]) -> None:
        self._work.spend(len(lasts) + len(lasts) * len(firsts) // 4)
        for number in lasts:
            self.after[number].update(firsts)


class _Places:
    def __init__(self, plan: Plan, work: Work) -> None:
        self._work = work
        self._mentions = _Mentions(plan, work)
        self._lexemes = plan.lexemes
        leads = Leads()
        self._masks = {name: leads.mask(expr) for name, expr in plan.lexemes.items()}
        self._nexts: dict[int, frozenset[int]] = {}

    def found(self) -> list[Place]:
        start = self._reached(self._mentions.firsts[ROOT], [])
        seen, queue, found = {start}, [start], []
        for state in queue:
            place, targets = self._read(state)
            found.append(place)
            fresh = targets - seen
            seen |= fresh
            queue += fresh
        return list({frozenset(place.items()): place for place in found}.values())

    def _read(self, state: frozenset[int]) -> tuple[Place, set[frozenset[int]]]:
        """The place of this state, and the states behind it."""
        by_name: dict[str, list[int]] = {}
        for number in state:
            by_name.setdefault(self._mentions.names[number], []).append(number)
        place, targets = {}, set()
        for name in by_name:
            numbers = [n for other in self._alike(name, by_name) for n in by_name[other]]
            target = self._behind(numbers)
            place[name] = self._first_bytes(target)
            targets.add(target)
        return place, targets

    def _alike(self, name: str, others: Iterable[str]) -> list[str]:
        """This lexeme, and others that might match the same text."""
        self._work.spend(1)
        if isinstance(self._lexemes[name], Text):
            others = [x for x in others if not isinstance(self._lexemes[x], Text)]
        self._work.spend(len(list(others)) // 4)
        return [name, *(x for x in others if x != name and self._masks[x] & self._masks[name])]

    def _first_bytes(self, state: frozenset[int]) -> int:
        mask = 0
        for number in state:
            mask |= self._masks[self._mentions.names[number]]
        return mask

    def _behind(self, numbers: list[int]) -> frozenset[int]:
        for number in numbers:
            if number not in self._nexts:
                self._nexts[number] = self._reached([], [number])
        found = frozenset[int]().union(*(self._nexts[n] for n in numbers))
        self._work.spend(1 + len(found) // 4)
        return found

    def _reached(self, expected: Iterable[int], read: Iterable[int]) -> frozenset[int]:
        """The lexemes that may come next, if these mentions are expected and those have just been read."""
        mentions = self._mentions
        seen, done, queue = set(expected), set(read), list(expected)
        ends = list(read)
        while queue or ends:
            self._work.spend(1)
            if ends:
                fresh, ended = self._behind_one(ends.pop())
            else:
                fresh, ended = self._within(mentions.names[last := queue.pop()], last)
            queue += [n for n in fresh if n not in seen]
            seen.update(fresh)
            ends += [n for n in ended if n not in done]
            done.update(ended)
        return frozenset(n for n in seen if is_lexeme(mentions.names[n]))

    def _behind_one(self, number: int) -> tuple[Iterable[int], Iterable[int]]:
        """The mentions behind this one;
        and the mentions of its rule, which are read too if the rule ends here."""
        rule = self._mentions.ended.get(number)
        return self._mentions.after[number], () if rule is None else self._mentions.callers[rule]

    def _within(self, name: str, number: int) -> tuple[Iterable[int], Iterable[int]]:
        if is_lexeme(name):
            return (), ()
        return self._mentions.firsts[name], (number,) if Ref(name) in self._mentions.nullable else ()
