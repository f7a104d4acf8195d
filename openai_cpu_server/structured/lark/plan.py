"""Choice of lexemes, and the places where a reader can meet them.

Whole regular rules become lexemes, and regular items of the others; of an expression that is not `whole`,
only its parts. A rule that ends is taken to continue behind any place that names it, so sets of lexemes are
never too small.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from openai_cpu_server.contract.grammar import is_list_item
from openai_cpu_server.structured.languages.automaton import build_automaton, state_rules, to_expr
from openai_cpu_server.structured.languages.charset import ANY, DIGITS, CharSet
from openai_cpu_server.structured.languages.expr import (
    ANY_CHAR,
    EMPTY,
    ROOT,
    Alt,
    And,
    Chars,
    Expr,
    GrammarRules,
    Multiples,
    Not,
    Ref,
    Repeat,
    Seq,
    Text,
    Token,
    alt,
    both,
    literal,
    rebuilt,
    repeat,
)
from openai_cpu_server.structured.languages.rules import Nullables, leftmost, users
from openai_cpu_server.structured.options import Budget, InvalidGrammar, Limits, SchemaTooLarge

_MOST_STEPS = 600_000
_STEPS_A_SECOND = 160_000
"""Measured with 87 schemas of MaskBench on a busy Zen 3."""
_STEPS_A_TRANSITION = 4
"""Transition of an automaton, made and turned into an expression or a rule."""


class Work:
    def __init__(self, allowed: int = _MOST_STEPS) -> None:
        self._allowed = allowed
        self.spent = 0

    @property
    def share(self) -> float:
        return self.spent / _STEPS_A_SECOND

    @property
    def left(self) -> int:
        return max(self._allowed - self.spent, 0)

    def spend(self, steps: int) -> None:
        """Count steps. Raises InvalidGrammar."""
        self.spent += steps
        if self.spent > self._allowed:
            message = f"too large, or too ambiguous: more than {self._allowed} steps to translate"
            raise InvalidGrammar(1, 1, message)


class TooMuch(Exception):
    """A share is used up, and there is a cheaper way to continue."""


class Share(Work):
    def __init__(self, whole: Work, allowed: int) -> None:
        super().__init__(allowed)
        self._whole = whole

    def spend(self, steps: int) -> None:
        """Count steps. Raises TooMuch, InvalidGrammar."""
        self._whole.spend(steps)
        self.spent += steps
        if self.spent > self._allowed:
            raise TooMuch


DEEPEST_LEXEME = 300
_MOST_PUT_IN = 30_000
"""Nodes that inlining may make."""


class RegularRules:
    def __init__(self, rules: dict[str, Expr], work: Work) -> None:
        self._work = work
        self.inlined: dict[str, Expr] = {}
        self.of = functools.cache(self._of)
        """Return None if it is not regular or too deep."""
        self._num_put_in = 0
        for name in bottom_up(rules):
            found = None if is_list_item(name) else self.of(rules[name])
            if found is not None:
                self.inlined[name] = found

    def _of(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Ref):
            return self.inlined.get(expr.name)
        if isinstance(expr, Token):
            return None
        if not expr.references:
            return expr
        parts: list[Expr] = []
        for part in expr.parts:
            found = self.of(part) if part.references else part
            if found is None:
                return None
            parts.append(found)
        found = rebuilt(expr, parts)
        self._num_put_in += len(found.parts)
        self._work.spend(1 + len(found.parts) // 4)
        fits = self._num_put_in < _MOST_PUT_IN and found.depth <= DEEPEST_LEXEME
        return found if fits else None


def bottom_up(rules: dict[str, Expr]) -> list[str]:
    """Rules after those that they name, without recursive rules and their users."""
    missing = {name: len(expr.references) for name, expr in rules.items()}
    users_of = users(rules)
    order = [name for name, count in missing.items() if not count]
    for name in order:
        for user in users_of.get(name, ()):
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    return order


_MARK = "#"
_DEEPEST_RULE = 16
"""Nested groups of a rule. llguidance reads at most 29."""


class LexemePlan:
    def __init__(
        self, rules: dict[str, Expr], regular: RegularRules, whole: Callable[[Expr], bool], work: Work
    ) -> None:
        self._work = work
        self._source = dict(rules)
        self._regular = regular
        self._whole = whole
        self._names: dict[Expr, Ref] = {}
        self._cache: dict[Expr, Expr] = {}
        self.lexemes: dict[str, Expr] = {}
        self._parts: dict[str, Expr] = {}
        self.rules: dict[str, Expr] = {ROOT: self._planned(Ref(ROOT))}
        if self.rules[ROOT] == Ref(ROOT):
            del self.rules[ROOT]
            queue = [ROOT]
            seen = {ROOT}
            for name in queue:
                expr = self.rules[name] = self._parts.get(name) or self._planned(self._source[name])
                fresh = sorted(n for n in expr.references if not is_lexeme(n) and n not in seen)
                seen.update(fresh)
                queue += fresh

    def _planned(self, expr: Expr) -> Expr:
        if expr not in self._cache:
            found = self._plan(expr)
            if found.depth >= _DEEPEST_RULE:
                name = f"part.{len(self._cache)}"
                self._parts[name] = found
                found = Ref(name)
            self._cache[expr] = found
        return self._cache[expr]

    def _plan(self, expr: Expr) -> Expr:
        self._work.spend(2)
        if expr == EMPTY:
            return expr
        if isinstance(expr, Token):
            return self._lexeme(expr)
        language = None if isinstance(expr, Seq) else self._regular.of(expr)
        if language is not None and language.is_nullable:
            filled = _filled(language)
            if filled is not None and self._whole(filled):
                return Repeat(self._lexeme(filled), 0, 1)
        elif language is not None and self._whole(language):
            return self._lexeme(language)
        if isinstance(expr, Ref):
            return expr
        if isinstance(expr, Text):
            self._work.spend(4 * len(expr.text))
            return self._planned(literal(expr.text))
        if isinstance(expr, (And, Not, Multiples)):
            return self._planned(self._written_out(expr))
        if isinstance(expr, Repeat):
            return Repeat(self._planned(expr.item), expr.low, expr.high)
        assert isinstance(expr, (Seq, Alt)), expr
        return type(expr)(tuple(map(self._planned, expr.items)))

    def _written_out(self, expr: Expr) -> Expr:
        """Write one expression, or a rule for each state, because only lexemes can have intersections."""
        language = self._regular.of(expr)
        if language is None:
            raise InvalidGrammar(1, 1, "too large: a pattern is beside others in too many places")
        most = min(self._work.left // _STEPS_A_TRANSITION, Limits().regex_work)
        budget = Budget(Limits(regex_work=most))
        try:
            automaton = build_automaton(spelt_out(language), budget)
        except SchemaTooLarge:
            message = "too ambiguous: a pattern cannot be distinguished from the text that may follow it"
            raise InvalidGrammar(1, 1, message) from None
        self._work.spend(_STEPS_A_TRANSITION * budget.spent("regex_work"))
        simple = to_expr(automaton)
        if simple is not None:
            return simple
        names = [f"state-{len(self._source)}-{i}" for i in range(len(automaton.edges))]
        self._source |= state_rules(automaton, names, Chars)
        return Ref(names[0])

    def _lexeme(self, language: Expr) -> Expr:
        if language not in self._names:
            name = f"{_MARK}{len(self._names)}"
            self._names[language] = Ref(name)
            self.lexemes[name] = language
        return self._names[language]


_MOST_SYMBOLS = 65_000
"""llguidance panics at 65,525."""
_FACTOR = 4
"""llguidance writes long repetitions as repetitions of groups of so many."""


def check_symbols(plan: LexemePlan) -> None:
    num_symbols = len(plan.lexemes) + len(plan.rules)
    for rule in plan.rules.values():
        stack = list(rule.parts if isinstance(rule, Alt) else (rule,))
        while stack:
            expr = stack.pop()
            if isinstance(expr, Repeat):
                num_symbols += 2 if expr.high is None else _num_for_at_most(expr.high)
            else:
                num_symbols += isinstance(expr, Alt)
            stack += expr.parts
    if num_symbols > _MOST_SYMBOLS:
        raise SchemaTooLarge("symbols", _MOST_SYMBOLS)


def _num_for_at_most(times: int) -> int:
    """Symbols per level of groups, 8 or fewer: measured with 7,251 repetitions of 12."""
    num_symbols = 1
    while times >= 3 * _FACTOR:
        num_symbols, times = num_symbols + 8, times // _FACTOR - 1
    return num_symbols


def _filled(language: Expr) -> Expr | None:
    if isinstance(language, Repeat) and not language.item.is_nullable:
        return repeat(language.item, 1, language.high)
    if isinstance(language, And):
        return both(*language.items, repeat(ANY_CHAR, 1, None))
    if isinstance(language, Alt):
        options = [x if not x.is_nullable else _filled(x) for x in language.items if x != EMPTY]
        return None if None in options else alt(*(x for x in options if x is not None))
    return None


def spelt_out(expr: Expr) -> Expr:
    if isinstance(expr, Multiples):
        return expr.language
    return literal(expr.text) if isinstance(expr, Text) else rebuilt(expr, map(spelt_out, expr.parts))


def is_lexeme(name: str) -> bool:
    return name.startswith(_MARK)


def is_character(language: Expr) -> bool:
    return isinstance(language, (Chars, Token)) or (isinstance(language, Text) and len(language.text) == 1)


_LENGTHS = ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF))


def union(masks: Iterable[int]) -> int:
    """Sets of bytes are bits of an int."""
    return functools.reduce(int.__or__, masks, 0)


@functools.lru_cache(maxsize=4096)
def lead_bytes(chars: CharSet) -> int:
    stretches = ((max(low, first), min(high, last)) for low, high in chars.ranges for first, last in _LENGTHS)
    return union((2 << _lead(stop)) - (1 << _lead(start)) for start, stop in stretches if start <= stop)


def _lead(code: int) -> int:
    """A surrogate gets the byte of its neighbours, which adds no byte to a set."""
    return chr(code).encode("utf-8", "surrogatepass")[0]


@functools.lru_cache(maxsize=4096)
def lead_of_char(char: str) -> int:
    return 1 << _lead(ord(char))


class FirstBytes:
    def __init__(self) -> None:
        self.fronts = functools.cache(self._fronts)
        self.mask = functools.cache(lambda expr: union(map(lead_bytes, self.fronts(expr))))

    def _fronts(self, expr: Expr) -> frozenset[CharSet]:
        if isinstance(expr, Chars):
            return frozenset((expr.set,))
        if isinstance(expr, Text):
            return frozenset((CharSet.chars(expr.text[0]),) if expr.text else ())
        if isinstance(expr, Not):
            return frozenset((ANY,))
        if isinstance(expr, Multiples):
            return frozenset((CharSet.chars("-") | DIGITS,))
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


class Following:
    def __init__(
        self, rules: GrammarRules, terminals: Mapping[str, Expr], bits: Mapping[str, int], work: Work
    ) -> None:
        self._rules = rules
        self._terminals = terminals
        self._work = work
        work.spend(10 * len(terminals) + 2 * len(rules))
        self._nullable = Nullables({**rules, **terminals})
        self._first: dict[Expr, int] = {Ref(name): mask for name, mask in bits.items()}
        self._follow: dict[str, int] = dict.fromkeys([*rules, *terminals], 0)
        self._lasts: dict[str, dict[str, None]] = {name: {} for name in rules}
        self._seen: set[tuple[Expr, int, str | None]] = set()
        self._find_firsts()

    def _find_firsts(self) -> None:
        rules_by_first: dict[str, list[str]] = {}
        for name, expr in self._rules.items():
            self._first[Ref(name)] = 0
            for first in leftmost(expr, self._nullable):
                rules_by_first.setdefault(first, []).append(name)
        queue = deque(self._terminals)
        while queue:
            found = self._first[Ref(first := queue.popleft())]
            for name in rules_by_first.get(first, ()):
                self._work.spend(1)
                if found & ~self._first[Ref(name)]:
                    self._first[Ref(name)] |= found
                    queue.append(name)

    def _first_of(self, expr: Expr) -> int:
        found = self._first.get(expr)
        if found is None:
            found = 0
            for part in expr.parts:
                found |= self._first_of(part)
                if isinstance(expr, Seq) and part not in self._nullable:
                    break
            self._first[expr] = found
        return found

    def result(self) -> dict[str, int]:
        for name, expr in self._rules.items():
            self._spread(expr, 0, name)
        self._inherit()
        return {name: self._follow[name] for name in self._terminals}

    def _spread(self, expr: Expr, after: int, rule: str | None) -> None:
        """`rule`: the rule that may end with this, or None if something else comes behind."""
        self._work.spend(1)
        if (expr, after, rule) in self._seen:
            return
        self._seen.add((expr, after, rule))
        if isinstance(expr, Ref):
            self._follow[expr.name] |= after
            if rule is not None:
                self._lasts[rule][expr.name] = None
            return
        for part in reversed(expr.parts):
            again = self._first_of(part) if isinstance(expr, Repeat) and expr.high != 1 else 0
            self._spread(part, after | again, rule)
            if isinstance(expr, Seq):
                is_empty = part in self._nullable
                after, rule = self._first_of(part) | (after if is_empty else 0), rule if is_empty else None
            else:
                assert isinstance(expr, (Alt, Repeat)), expr

    def _inherit(self) -> None:
        queue, waiting = deque(self._rules), set(self._rules)
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


_Place = dict[str, int]
"""Lexemes, with the first bytes of what may follow each there."""


class _Mentions:
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


class LexemePlaces:
    def __init__(self, plan: LexemePlan, work: Work) -> None:
        self._work = work
        self._mentions = _Mentions(plan, work)
        self._lexemes = plan.lexemes
        leads = FirstBytes()
        self._masks = {name: leads.mask(expr) for name, expr in plan.lexemes.items()}
        self._next = functools.cache(lambda number: self._reached([], [number]))

    def found(self) -> list[_Place]:
        start = self._reached(self._mentions.firsts[ROOT], [])
        seen, queue, found = {start}, [start], []
        for state in queue:
            place, targets = self._read(state)
            found.append(place)
            fresh = targets - seen
            seen |= fresh
            queue += fresh
        return list({frozenset(place.items()): place for place in found}.values())

    def _read(self, state: frozenset[int]) -> tuple[_Place, set[frozenset[int]]]:
        by_name: dict[str, list[int]] = {}
        for number in state:
            by_name.setdefault(self._mentions.names[number], []).append(number)
        place, targets = {}, set()
        for name in by_name:
            numbers = [n for other in self._alike(name, by_name) for n in by_name[other]]
            target = frozenset[int]().union(*map(self._next, numbers))
            self._work.spend(1 + len(target) // 4)
            place[name] = union(self._masks[self._mentions.names[number]] for number in target)
            targets.add(target)
        return place, targets

    def _alike(self, name: str, others: Iterable[str]) -> list[str]:
        self._work.spend(1)
        if isinstance(self._lexemes[name], Text):
            others = [x for x in others if not isinstance(self._lexemes[x], Text)]
        self._work.spend(len(list(others)) // 4)
        return [name, *(x for x in others if x != name and self._masks[x] & self._masks[name])]

    def _reached(self, expected: Iterable[int], read: Iterable[int]) -> frozenset[int]:
        mentions = self._mentions
        seen, done, queue = set(expected), set(read), list(expected)
        ends = list(read)
        while queue or ends:
            self._work.spend(1)
            fresh: Iterable[int] = ()
            ended: Iterable[int] = ()
            if ends:
                number = ends.pop()
                fresh = mentions.after[number]
                if (rule := mentions.ended.get(number)) is not None:
                    ended = mentions.callers[rule]
            elif not is_lexeme(name := mentions.names[number := queue.pop()]):
                fresh = mentions.firsts[name]
                ended = (number,) if Ref(name) in mentions.nullable else ()
            queue += [n for n in fresh if n not in seen]
            seen.update(fresh)
            ends += [n for n in ended if n not in done]
            done.update(ended)
        return frozenset(n for n in seen if is_lexeme(mentions.names[n]))
