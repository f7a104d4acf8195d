"""Search for lexemes that must be broken, because llguidance reads all lexemes of a place at once, without
turning back.

Reading is exact if the byte that may follow a lexeme continues none being read; else those that could
continue are broken. Single characters and control tokens never conflict.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping

import msgspec

from openai_cpu_server.structured.languages.automaton import Deriver
from openai_cpu_server.structured.languages.charset import DIGITS, MAX, CharSet, partition, single
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Expr,
    Multiples,
    Not,
    Repeat,
    Seq,
    Text,
    Token,
    alt,
    character,
    every_expression,
    literal,
    parts_first,
    rebuilt,
    repeat,
    seq,
    star,
)
from openai_cpu_server.structured.lark.plan import (
    FirstBytes,
    Following,
    LexemePlaces,
    LexemePlan,
    Share,
    TooMuch,
    Work,
    is_character,
    lead_of_char,
    union,
)
from openai_cpu_server.structured.options import Budget, Limits, SchemaTooLarge

_WHOLE = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
STRING = Chars(single(MAX))
"""The grammar may have this character, too."""
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
_START, _BODY, _ESCAPED, _END, _WRONG = range(5)
_Moves = tuple[int, ...]
"""States (as bits) to which an expression may lead from each state."""
_STAY: _Moves = (1, 2, 4, 8, 16)
_ONTO_WRONG = 1 << _WRONG


class QuotedStrings:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._cache: dict[Expr, _Moves] = {}
        self._leads = FirstBytes()

    def shortened(self, expr: Expr) -> Expr | None:
        """Return None if something else begins with a quote."""
        if not self._begins_with_quote(expr):
            return expr
        if isinstance(expr, Text):
            found = _WHOLE.match(expr.text)
            return seq(STRING, literal(expr.text[found.end() :])) if found else None
        for part in parts_first([expr], self._cache):
            self._moves(part)
        return self._shortened(expr)

    def _begins_with_quote(self, expr: Expr) -> bool:
        return any(_QUOTE in chars for chars in self._leads.fronts(expr))

    def _shortened(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Alt):
            options = [found for x in expr.items if (found := self._shortened(x)) is not None]
            return alt(*options) if len(options) == len(expr.items) else None
        moves, items = _STAY, _spelt(expr)
        for i, item in enumerate(items):
            moves = _then(moves, self._moves(item))
            if moves[_START] == 1 << _END:
                return seq(STRING, *items[i + 1 :])
        return None if self._begins_with_quote(expr) else expr

    def _moves(self, expr: Expr) -> _Moves:
        if expr not in self._cache:
            self._cache[expr] = self._compute(expr)
        return self._cache[expr]

    def _compute(self, expr: Expr) -> _Moves:
        if isinstance(expr, Chars):
            return _of_chars(expr)
        if isinstance(expr, Alt):
            return functools.reduce(_union, map(self._moves, expr.items), (0, 0, 0, 0, 0))
        if isinstance(expr, Not):
            return (31, 31, 31, 31, 31)
        if isinstance(expr, And):
            of_items = zip(*map(self._moves, expr.items), strict=True)
            return tuple(functools.reduce(int.__and__, masks) for masks in of_items)
        if isinstance(expr, Repeat):
            once = self._moves(expr.item)
            return _closure(once) if expr.low == 0 else _then(once, _closure(once))
        self._work.spend(len(expr.text) if isinstance(expr, Text) else 1)
        parts = map(character, expr.text) if isinstance(expr, Text) else expr.parts
        return functools.reduce(_then, map(self._moves, parts), _STAY)


def _spelt(expr: Expr) -> tuple[Expr, ...]:
    """Literals become single characters, because a string may end within one."""
    items: list[Expr] = []
    for item in expr.items if isinstance(expr, Seq) else (expr,):
        if isinstance(item, Text):
            items += map(character, item.text)
        elif isinstance(item, Repeat) and item.low:
            items += [*_spelt(item.item), repeat(item.item, item.low - 1, item.high and item.high - 1)]
        else:
            items.append(item)
    return tuple(items)


def _of_chars(expr: Chars) -> _Moves:
    has_quote, has_backslash = _QUOTE in expr.set, _BACKSLASH in expr.set
    has_others = expr.set.size > has_quote + has_backslash
    start = has_quote << _BODY | (has_backslash or has_others) << _WRONG
    body = has_quote << _END | has_backslash << _ESCAPED | has_others << _BODY
    return (start, body, 1 << _BODY, _ONTO_WRONG, _ONTO_WRONG) if expr.set else (0, 0, 0, 0, 0)


@functools.lru_cache(maxsize=4096)
def _then(first: _Moves, second: _Moves) -> _Moves:
    return tuple(union(to for state, to in enumerate(second) if mask >> state & 1) for mask in first)


@functools.lru_cache(maxsize=4096)
def _union(first: _Moves, second: _Moves) -> _Moves:
    return tuple(a | b for a, b in zip(first, second, strict=True))


def _closure(once: _Moves) -> _Moves:
    moves = _STAY
    while (grown := _union(moves, _then(moves, once))) != moves:
        moves = grown
    return moves


_LARGEST_COUNT = 3
_DEEPEST = 40


def _loosened(expr: Expr, found: Mapping[Expr, Expr]) -> Expr:
    """Return a superset with a small automaton."""
    if isinstance(expr, Text):
        return literal(expr.text)
    if isinstance(expr, Not):
        return ALL
    if isinstance(expr, Multiples):
        return repeat(Chars(CharSet.chars("-") | DIGITS), 1, None)
    if isinstance(expr, Repeat):
        high = expr.high if expr.high is not None and expr.high <= _LARGEST_COUNT else None
        loose = repeat(found[expr.item], min(expr.low, _LARGEST_COUNT), high)
    else:
        loose = rebuilt(expr, [found[part] for part in expr.parts])
    if loose.depth <= _DEEPEST:
        return loose
    sets = [x.set for x in every_expression([loose]) if isinstance(x, Chars)]
    return star(Chars(CharSet.of(*(r for each in sets for r in each.ranges))))


def _split(expr: Expr) -> tuple[list[str], Expr]:
    words = {x: _word(x) for x in (expr.items if isinstance(expr, Alt) else (expr,))}
    return [x for x in words.values() if x is not None], alt(*(x for x in words if words[x] is None))


def _word(expr: Expr) -> str | None:
    if isinstance(expr, Text):
        return expr.text
    if isinstance(expr, Chars) and expr.set.size == 1:
        return chr(expr.set.ranges[0][0])
    if isinstance(expr, Seq) and expr.items:
        parts = [_word(x) for x in expr.items]
        return None if None in parts else "".join(x for x in parts if x)
    return None


MOST_WORK = 3_000
"""Derivatives. Beyond that, every lexeme counts as in conflict, and words only if all lexemes are words."""


def conflicting(plan: LexemePlan, work: Work, share: Share) -> set[str]:
    """Compare the lexemes of each place if some conflict when all are read everywhere, as far as the work
    allows."""
    leads = FirstBytes()
    first_bytes = {name: leads.mask(expr) for name, expr in plan.lexemes.items()}
    follow = Following(plan.rules, plan.lexemes, first_bytes, work).result()
    found = conflicts_among(plan.lexemes, follow, work)
    if found is not None and not found:
        return set()
    suspects = set(plan.lexemes) if found is None else found
    try:
        confirmed: set[str] = set()
        for place in LexemePlaces(plan, share).found():
            firsts = union(first_bytes[name] for name in place if name in suspects)
            lexemes = {name: plan.lexemes[name] for name in place if first_bytes[name] & firsts}
            here = conflicts_among(lexemes, place, share) if lexemes else set()
            confirmed |= _largest(lexemes) if here is None else here
        return confirmed
    except TooMuch:
        return _largest(plan.lexemes) if found is None else found


def conflicts_among(lexemes: dict[str, Expr], follow: dict[str, int], work: Work) -> set[str] | None:
    """Return None if the search is too large."""
    lexemes = {name: expr for name, expr in lexemes.items() if not isinstance(expr, Token)}
    if not any(follow[name] for name in lexemes):
        return set()
    try:
        found = _Search(lexemes, follow, work).found()
    except SchemaTooLarge:
        return None
    return {name for name in found if not is_character(lexemes[name])}


def _largest(lexemes: dict[str, Expr]) -> set[str]:
    breakable = {name for name, expr in lexemes.items() if not is_character(expr)}
    return {name for name in breakable if _split(lexemes[name])[1] != NOTHING} or breakable


def _shortened(lexemes: dict[str, Expr], work: Work) -> dict[str, Expr]:
    quoted, found = QuotedStrings(work), dict[str, Expr]()
    for name, expr in lexemes.items():
        short = quoted.shortened(expr)
        if short is None:
            return lexemes
        found[name] = short
    return found


@functools.lru_cache(maxsize=1024)
def _one_of_each(sets: frozenset[CharSet]) -> list[str]:
    codes = [each.ranges[0][0] for each in partition(sets)]
    return [chr(code) for code in codes if any(code in each for each in sets)]


class _Group(msgspec.Struct):
    follow: int = 0
    members: list[str] = msgspec.field(default_factory=list)


_State = tuple[tuple[Expr, Expr], ...]


class _Search:
    def __init__(self, lexemes: dict[str, Expr], follow: dict[str, int], work: Work) -> None:
        self._follow = follow
        self._work = work
        self._budget = Budget(Limits(regex_work=MOST_WORK, regex_states=MOST_WORK))
        self._deriver = Deriver(self._budget)
        self._groups: dict[Expr, _Group] = {}
        self._words: dict[str, list[str]] = {}
        self._step = functools.cache(self._find_step)
        self._followers: Callable[[_State], int] = functools.cache(
            lambda state: union(self._groups[group].follow for group, rest in state if rest.is_nullable)
        )
        self._leads = FirstBytes()
        self._loosened: dict[Expr, Expr] = {}
        self._found: set[str] = set()
        for name, expr in _shortened(lexemes, work).items():
            self._add(name, expr)

    def _add(self, name: str, expr: Expr) -> None:
        words, rest = _split(expr)
        for word in words:
            self._work.spend(2 + len(word) // 16)
            self._words.setdefault(word, []).append(name)
        self._work.spend(6)
        if rest not in (NOTHING, EMPTY):
            for part in parts_first([rest], self._loosened):
                self._loosened[part] = _loosened(part, self._loosened)
            group = self._groups.setdefault(self._loosened[rest], _Group())
            group.follow |= self._follow[name]
            group.members.append(name)

    def found(self) -> set[str]:
        start: _State = tuple((expr, expr) for expr in self._groups)
        seen, queue = {start}, [start]
        for state in queue:
            self._work.spend(4 + len(state))
            if state is not start:
                self._note(self._followers(state), state)
            for char in self._characters(state):
                target = self._step(state, char)
                if target and target not in seen:
                    seen.add(target)
                    queue.append(target)
                    self._budget.check("regex_states", len(seen))
        for word in self._words:
            self._read(word, start)
        self._compare_words()
        return self._found

    def _characters(self, state: _State) -> list[str]:
        sets = frozenset[CharSet]().union(*(self._leads.fronts(rest) for _, rest in state))
        self._budget.spend("regex_work", 1 + len(sets) ** 2 // 4)
        return _one_of_each(sets)

    def _find_step(self, state: _State, char: str) -> _State:
        before = self._budget.spent("regex_work")
        moved = ((group, self._deriver.derive(rest, ord(char))) for group, rest in state)
        found = tuple((group, rest) for group, rest in moved if rest != NOTHING)
        self._work.spend(4 + len(state) + 6 * (self._budget.spent("regex_work") - before))
        return found

    def _note(self, following: int, state: _State) -> None:
        for group, rest in state if following else ():
            if following & self._leads.mask(rest):
                self._found.update(self._groups[group].members)

    def _read(self, word: str, state: _State) -> None:
        self._work.spend(1)
        for position, char in enumerate(word):
            if position and self._followers(state) & lead_of_char(char):
                self._found.update(self._words[word])
            state = self._step(state, char)
            if not state:
                return
            self._work.spend(1)
        self._note(self._behind(word), state)

    def _compare_words(self) -> None:
        beginnings: list[tuple[str, int]] = []
        for word in sorted(self._words):
            while beginnings and not word.startswith(beginnings[-1][0]):
                beginnings.pop()
            self._work.spend(1 + len(beginnings))
            for beginning, follow in beginnings:
                if follow & lead_of_char(word[len(beginning)]):
                    self._found.update(self._words[word])
            beginnings.append((word, self._behind(word)))

    def _behind(self, word: str) -> int:
        return union(self._follow[name] for name in self._words[word])
