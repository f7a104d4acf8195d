"""First bytes of lexemes, and the places where a reader can meet them. A rule that ends is taken to
continue behind any place that names it, so the sets of lexemes met together are never too small."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable

from openai_cpu_server.structured.languages.charset import ANY, CharSet
from openai_cpu_server.structured.languages.expr import (
    ROOT,
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Ref,
    Repeat,
    Seq,
    Text,
)
from openai_cpu_server.structured.languages.rules import Nullables, leftmost
from openai_cpu_server.structured.lark.plan import LexemePlan, Work, is_lexeme

_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))


def union(masks: Iterable[int]) -> int:
    """Sets of bytes are bits of an int."""
    return functools.reduce(int.__or__, masks, 0)


@functools.lru_cache(maxsize=4096)
def lead_bytes(chars: CharSet) -> int:
    return union(_of_range(low, high) for low, high in chars.ranges)


def _of_range(low: int, high: int) -> int:
    stretches = ((max(low, first), min(high, last)) for first, last in _LENGTHS)
    return union((2 << _lead(stop)) - (1 << _lead(start)) for start, stop in stretches if start <= stop)


def _lead(code: int) -> int:
    """A surrogate gets the byte of its neighbours, which adds no byte to a set."""
    return chr(code).encode("utf-8", "surrogatepass")[0]


@functools.lru_cache(maxsize=4096)
def lead_of_char(char: str) -> int:
    return 1 << _lead(ord(char))


class FirstBytes:
    def __init__(self) -> None:
        self._fronts: dict[Expr, frozenset[CharSet]] = {}
        self._masks: dict[Expr, int] = {}

    def fronts(self, expr: Expr) -> frozenset[CharSet]:
        if expr not in self._fronts:
            self._fronts[expr] = self._compute(expr)
        return self._fronts[expr]

    def mask(self, expr: Expr) -> int:
        if expr not in self._masks:
            self._masks[expr] = union(map(lead_bytes, self.fronts(expr)))
        return self._masks[expr]

    def _compute(self, expr: Expr) -> frozenset[CharSet]:
        if isinstance(expr, Chars):
            return frozenset((expr.set,))
        if isinstance(expr, Text):
            return frozenset((CharSet.chars(expr.text[0]),) if expr.text else ())
        if isinstance(expr, Not):
            return frozenset((ANY,))
        if isinstance(expr, And):
            return functools.reduce(_common, map(self.fronts, expr.items))
        found: frozenset[CharSet] = frozenset()
        for part in expr.parts:
            found |= self.fronts(part)
            if isinstance(expr, Seq) and not part.is_nullable:
                break
        return found


def _common(some: frozenset[CharSet], others: frozenset[CharSet]) -> frozenset[CharSet]:
    return frozenset(common for one in some for other in others if (common := one & other))


def following(plan: LexemePlan, work: Work) -> dict[str, int]:
    """Bytes that may follow each lexeme. Raises InvalidGrammar."""
    return _Following(plan, work).result()


class _Following:
    def __init__(self, plan: LexemePlan, work: Work) -> None:
        self._plan = plan
        self._work = work
        work.spend(10 * len(plan.lexemes) + 2 * len(plan.rules))
        self._nullable = Nullables(plan.rules | plan.lexemes)
        leads = FirstBytes()
        self._first: dict[Expr, int] = {Ref(n): leads.mask(expr) for n, expr in plan.lexemes.items()}
        self._follow: dict[str, int] = dict.fromkeys([*plan.rules, *plan.lexemes], 0)
        self._lasts: dict[str, list[str]] = {}
        for name in self._leftmost_last():
            self._first[Ref(name)] = self._first_of(plan.rules[name])

    def _leftmost_last(self) -> list[str]:
        needs = {
            name: {x for x in leftmost(expr, self._nullable) if not is_lexeme(x)}
            for name, expr in self._plan.rules.items()
        }
        order: dict[str, None] = {}
        for start in needs:
            stack = [start]
            while stack:
                missing = [x for x in needs[stack[-1]] if x not in order]
                if missing:
                    stack.append(missing[0])
                else:
                    order[stack.pop()] = None
        return list(order)

    def _first_of(self, expr: Expr) -> int:
        found = self._first.get(expr)
        if found is None:
            found = self._first[expr] = self._union(expr)
        return found

    def _union(self, expr: Expr) -> int:
        mask = 0
        for part in expr.parts:
            mask |= self._first_of(part)
            if isinstance(expr, Seq) and part not in self._nullable:
                break
        return mask

    def result(self) -> dict[str, int]:
        for name, expr in self._plan.rules.items():
            lasts: list[str] = []
            self._spread(expr, 0, lasts)
            self._lasts[name] = list(dict.fromkeys(lasts))
        self._inherit()
        return {name: self._follow[name] for name in self._plan.lexemes}

    def _spread(self, expr: Expr, after: int, lasts: list[str] | None) -> None:
        """`lasts`: names with which the rule may end, or None if something else comes behind."""
        self._work.spend(1)
        if isinstance(expr, Ref):
            self._follow[expr.name] |= after
            if lasts is not None:
                lasts.append(expr.name)
            return
        for part in reversed(expr.parts):
            again = self._first_of(part) if isinstance(expr, Repeat) and expr.high != 1 else 0
            self._spread(part, after | again, lasts)
            if isinstance(expr, Seq):
                is_empty = part in self._nullable
                after, lasts = self._first_of(part) | (after if is_empty else 0), lasts if is_empty else None
            else:
                assert isinstance(expr, (Alt, Repeat)), expr

    def _inherit(self) -> None:
        queue, waiting = deque(self._plan.rules), set(self._plan.rules)
        while queue:
            name = queue.popleft()
            waiting.discard(name)
            after = self._follow[name]
            self._work.spend(1 + len(self._lasts[name]) // 8)
            for last in self._lasts[name]:
                if after & ~self._follow[last]:
                    self._follow[last] |= after
                    if last in self._lasts and last not in waiting:
                        waiting.add(last)
                        queue.append(last)


Place = dict[str, int]
"""Lexemes, with the first bytes of what may follow each there."""


def places(plan: LexemePlan, work: Work) -> list[Place]:
    """Return all places once. Raises InvalidGrammar."""
    return _Places(plan, work).found()


class _Mentions:
    """Numbered mentions of names in rules."""

    def __init__(self, plan: LexemePlan, work: Work) -> None:
        self._work = work
        self.nullable = Nullables(plan.rules | plan.lexemes)
        self.names: list[str] = []
        self.after: list[set[int]] = []
        self.firsts: dict[str, list[int]] = {}
        self.callers: dict[str, list[int]] = {name: [] for name in plan.rules}
        self.ended: dict[int, str] = {}
        for name, expr in plan.rules.items():
            self.firsts[name], lasts = self._walk(expr)
            self.ended.update(dict.fromkeys(lasts, name))

    def _walk(self, expr: Expr) -> tuple[list[int], list[int]]:
        self._work.spend(1)
        if isinstance(expr, Ref):
            name = expr.name
            number = len(self.names)
            self.names.append(name)
            self.after.append(set())
            if not is_lexeme(name):
                self.callers[name].append(number)
            return [number], [number]
        if isinstance(expr, Seq):
            return self._sequence(expr)
        pairs = [self._walk(part) for part in expr.parts]
        firsts, lasts = [p for f, _ in pairs for p in f], [p for _, last in pairs for p in last]
        if isinstance(expr, Repeat) and expr.high != 1:
            self._join(lasts, firsts)
        else:
            assert isinstance(expr, (Alt, Repeat)), expr
        return firsts, lasts

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
    def __init__(self, plan: LexemePlan, work: Work) -> None:
        self._work = work
        self._mentions = _Mentions(plan, work)
        self._lexemes = plan.lexemes
        leads = FirstBytes()
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
        by_name: dict[str, list[int]] = {}
        for number in state:
            by_name.setdefault(self._mentions.names[number], []).append(number)
        place, targets = {}, set()
        for name in by_name:
            numbers = [n for other in self._alike(name, by_name) for n in by_name[other]]
            target = self._behind(numbers)
            place[name] = union(self._masks[self._mentions.names[number]] for number in target)
            targets.add(target)
        return place, targets

    def _alike(self, name: str, others: Iterable[str]) -> list[str]:
        self._work.spend(1)
        if isinstance(self._lexemes[name], Text):
            others = [x for x in others if not isinstance(self._lexemes[x], Text)]
        self._work.spend(len(list(others)) // 4)
        return [name, *(x for x in others if x != name and self._masks[x] & self._masks[name])]

    def _behind(self, numbers: list[int]) -> frozenset[int]:
        for number in numbers:
            if number not in self._nexts:
                self._nexts[number] = self._reached([], [number])
        found = frozenset[int]().union(*(self._nexts[n] for n in numbers))
        self._work.spend(1 + len(found) // 4)
        return found

    def _reached(self, expected: Iterable[int], read: Iterable[int]) -> frozenset[int]:
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
        rule = self._mentions.ended.get(number)
        return self._mentions.after[number], () if rule is None else self._mentions.callers[rule]

    def _within(self, name: str, number: int) -> tuple[Iterable[int], Iterable[int]]:
        if is_lexeme(name):
            return (), ()
        return self._mentions.firsts[name], (number,) if Ref(name) in self._mentions.nullable else ()
