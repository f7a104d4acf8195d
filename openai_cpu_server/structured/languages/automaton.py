"""Automata of expressions by Brzozowski derivatives, which make intersection and complement cheap."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from openai_cpu_server.structured.languages.charset import DIGITS, CharSet, partition
from openai_cpu_server.structured.languages.expr import (
    ALL,
    ANY_CHAR,
    EMPTY,
    NOTHING,
    Alt,
    And,
    Chars,
    Expr,
    GrammarRules,
    Not,
    Ref,
    Repeat,
    Residue,
    Seq,
    alt,
    both,
    every_expression,
    negate,
    rebuilt,
    repeat,
    seq,
    span,
    star,
    weight,
)
from openai_cpu_server.structured.options import Budget, SchemaTooLarge

V = TypeVar("V")

_DIGITS = tuple(CharSet.chars(c) for c in "0123456789.")


_PAIRS_A_STEP = 500
"""Pairs of sets of characters that cost as much as one transition."""


class Alphabet:
    """Numbered classes of characters. Sets of classes are bits of an int."""

    def __init__(self, expr: Expr, budget: Budget) -> None:
        sets: dict[CharSet, None] = {}
        for each in every_expression([expr]):
            if isinstance(each, Chars):
                sets[each.set] = None
            elif isinstance(each, Residue):
                sets.update(dict.fromkeys(_DIGITS))
        budget.spend("regex_work", len(sets) ** 2 // _PAIRS_A_STEP)
        self.classes = partition(sets)
        self._firsts = [each.ranges[0][0] for each in self.classes]
        self._mask = functools.cache(
            lambda chars: sum(1 << i for i, code in enumerate(self._firsts) if code in chars)
        )
        self._front = functools.cache(self._find_front)

    def blocks(self, state: Expr) -> list[int]:
        """Return sets of classes, such that all characters of a set have the same derivative."""
        blocks = [(1 << len(self.classes)) - 1]
        for mask in self._front(state):
            blocks = [part for each in blocks for part in (each & mask, each & ~mask) if part]
        return blocks

    def code(self, block: int) -> int:
        return self._firsts[(block & -block).bit_length() - 1]

    def _find_front(self, expr: Expr) -> frozenset[int]:
        if isinstance(expr, Chars):
            return frozenset((self._mask(expr.set),))
        if isinstance(expr, Residue):
            return frozenset(map(self._mask, _DIGITS))
        found: set[int] = set()
        for part in expr.parts:
            found |= self._front(part)
            if isinstance(expr, Seq) and not part.is_nullable:
                break
        return frozenset(found)


_POINT = ord(".")
_ZERO = ord("0")
_MOST_PREFIXES_EACH = 20


class Automaton(msgspec.Struct, frozen=True):
    """Deterministic automaton with start 0. Every state can reach an accepting one, if any exists."""

    edges: tuple[tuple[tuple[CharSet, int], ...], ...]
    accepting: frozenset[int]


class Deriver:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._derivatives: dict[tuple[Expr, int], Expr] = {}

    def derive(self, expr: Expr, code: int) -> Expr:
        if isinstance(expr, Chars):
            return EMPTY if code in expr.set else NOTHING
        key = (expr, code)
        found = self._derivatives.get(key)
        if found is None:
            parts_per_unit = 4 if isinstance(expr, And) else 8
            self._budget.spend("regex_work", 1 + len(expr.parts) // parts_per_unit)
            found = self._derivatives[key] = self._derive(expr, code)
        return found

    def _derive(self, expr: Expr, code: int) -> Expr:
        if isinstance(expr, Seq):
            return self._of_sequence(expr.items, code)
        if isinstance(expr, Alt):
            return _sorted_alt([self.derive(x, code) for x in expr.items])
        if isinstance(expr, Repeat):
            rest = repeat(expr.item, max(expr.low - 1, 0), None if expr.high is None else expr.high - 1)
            return seq(self.derive(expr.item, code), rest)
        if isinstance(expr, And):
            return self._of_all(expr.items, code)
        if isinstance(expr, Not):
            return negate(self.derive(expr.item, code))
        assert isinstance(expr, Residue), expr
        if code == _POINT:
            return (
                NOTHING if expr.read is not None else Residue(expr.modulus, expr.decimals, expr.remainder, 0)
            )
        if code not in DIGITS:
            return NOTHING
        if expr.read is not None and expr.read == expr.decimals:
            return expr if code == _ZERO else NOTHING
        remainder = (expr.remainder * 10 + code - _ZERO) % expr.modulus
        return Residue(expr.modulus, expr.decimals, remainder, None if expr.read is None else expr.read + 1)

    def _of_all(self, items: tuple[Expr, ...], code: int) -> Expr:
        found: set[Expr] = set()
        for item in items:
            rest = self.derive(item, code)
            if rest is NOTHING:
                return NOTHING
            found.add(rest)
        return both(*sorted(found, key=_serial))

    def _of_sequence(self, items: tuple[Expr, ...], code: int) -> Expr:
        options = []
        for i, item in enumerate(items):
            rest = self.derive(item, code)
            if rest is not NOTHING:
                options.append(seq(rest, *items[i + 1 :]))
            if not item.is_nullable:
                break
        return _sorted_alt(options)

    def matches(self, expr: Expr, text: str) -> bool:
        for char in text:
            expr = self.derive(expr, ord(char))
            if expr == NOTHING:
                return False
        return expr.is_nullable


def _sorted_alt(options: list[Expr]) -> Expr:
    """Order the alternatives, because equal states must be equal objects."""
    if len(options) == 1 and not isinstance(options[0], Alt):
        return options[0]
    flat = [x for option in options for x in (option.items if isinstance(option, Alt) else (option,))]
    return ALL if ALL in flat else alt(*sorted(set(flat), key=_serial))


def _serial(expr: Expr) -> int:
    return expr.serial


def build_automaton(expr: Expr, budget: Budget) -> Automaton:
    """Make a minimal automaton. Raises SchemaTooLarge."""
    alphabet = Alphabet(expr, budget)
    states = list(_explored(expr, alphabet, budget))
    table = [row for _, row in states]
    accepting = {number for number, (state, _) in enumerate(states) if state.is_nullable}
    budget.spend("regex_work", len(table) * len(alphabet.classes) // _CELLS_A_STEP)
    table = _without_dead_ends(table, accepting)
    return _numbered(table, accepting, alphabet.classes, _equivalent(table, accepting))


def _explored(expr: Expr, alphabet: Alphabet, budget: Budget) -> Iterator[tuple[Expr, list[int | None]]]:
    """Rows of targets are filled before the next one is yielded."""
    deriver, numbers, queue = Deriver(budget), {expr: 0}, [expr]
    for state in queue:
        row: list[int | None] = [None] * len(alphabet.classes)
        yield state, row
        for block in alphabet.blocks(state):
            target = deriver.derive(state, alphabet.code(block))
            if target == NOTHING:
                continue
            if target not in numbers:
                numbers[target] = len(numbers)
                queue.append(target)
                budget.check("regex_states", len(numbers))
            for bit in _bits(block):
                row[bit] = numbers[target]


def _without_dead_ends(table: list[list[int | None]], accepting: set[int]) -> list[list[int | None]]:
    sources: dict[int, list[int]] = {}
    for state, row in enumerate(table):
        for target in row:
            if target is not None:
                sources.setdefault(target, []).append(state)
    alive, queue = set(accepting), list(accepting)
    for state in queue:
        fresh = [s for s in sources.get(state, ()) if s not in alive]
        alive.update(fresh)
        queue += fresh
    return [[t if t in alive else None for t in row] for row in table]


_CELLS_A_STEP = 40
"""Cells of a table that cost as much as one derivative when they are minimised."""


def _equivalent(table: list[list[int | None]], accepting: set[int]) -> list[int]:
    """Hopcroft's refinement."""
    sources: list[dict[int, list[int]]] = [{} for _ in table[0]]
    for state, row in enumerate(table):
        for into, target in zip(sources, row, strict=True):
            if target is not None:
                into.setdefault(target, []).append(state)
    blocks = [block for block in (set(range(len(table))) - accepting, set(accepting)) if block]
    block_of = [int(state in accepting and len(blocks) > 1) for state in range(len(table))]
    waiting = list(range(len(blocks)))
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for into in sources:
            parts: dict[int, set[int]] = {}
            for state in itertools.chain.from_iterable(into.get(target, ()) for target in splitter):
                parts.setdefault(block_of[state], set()).add(state)
            waiting += _split_blocks(blocks, block_of, parts)
    return block_of


def _split_blocks(blocks: list[set[int]], block_of: list[int], parts: dict[int, set[int]]) -> range:
    first = len(blocks)
    for number, part in parts.items():
        rest = blocks[number]
        if len(part) < len(rest):
            rest -= part
            blocks[number], smaller = (rest, part) if len(part) <= len(rest) else (part, rest)
            for state in smaller:
                block_of[state] = len(blocks)
            blocks.append(smaller)
    return range(first, len(blocks))


def _numbered(
    table: list[list[int | None]], accepting: set[int], classes: list[CharSet], block: list[int]
) -> Automaton:
    numbers, queue, edges = {block[0]: 0}, [0], []
    for state in queue:
        merged: dict[int, CharSet] = {}
        for each, target in zip(classes, table[state], strict=True):
            if target is None:
                continue
            if block[target] not in numbers:
                numbers[block[target]] = len(numbers)
                queue.append(target)
            number = numbers[block[target]]
            merged[number] = merged[number] | each if number in merged else each
        edges.append(tuple((chars, number) for number, chars in merged.items()))
    final = frozenset(numbers[block[s]] for s in accepting if block[s] in numbers)
    return Automaton(tuple(edges), final)


def few_strings(automaton: Automaton, most: int) -> list[str] | None:
    """Return None for more than `most` strings, or too costly ones. They are in order of length."""
    found: list[str] = []
    ways = [("", 0)]
    for text, state in ways:
        found += [text] if state in automaton.accepting else []
        is_endless = len(text) >= len(automaton.edges)
        num_more = sum(chars.size for chars, _ in automaton.edges[state])
        if is_endless or len(found) > most or len(ways) + num_more > _MOST_PREFIXES_EACH * most:
            return None
        for chars, target in automaton.edges[state]:
            codes = itertools.chain.from_iterable(range(low, high + 1) for low, high in chars.ranges)
            ways += [(text + chr(code), target) for code in codes]
    return found


def has_length(automaton: Automaton, low: int, high: int | None, budget: Budget) -> bool:
    steps = [sum(1 << target for target in {to for _, to in edges}) for edges in automaton.edges]
    ends = sum(1 << state for state in automaton.accepting)
    reached, length, seen = 1, 0, dict[int, int]()
    while reached and (high is None or length <= high):
        if length >= low and reached & ends:
            return True
        before = seen.get(reached, length)  # from there on the lengths repeat themselves
        if length > before >= low:
            return False
        if length > before and (skipped := (low - length) // (length - before) * (length - before)) > 0:
            length, seen = length + skipped, {}
            continue
        seen[reached] = length
        budget.spend("regex_work")
        reached = functools.reduce(int.__or__, (steps[i] for i in _bits(reached)), 0)
        length += 1
    return False


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def state_rules(
    automaton: Automaton, names: Sequence[str], written: Callable[[CharSet], Expr]
) -> GrammarRules:
    """Return a rule for each state, the first one for the whole. They are slower to run than one lexeme, but
    short."""
    rules: GrammarRules = {}
    for state, edges in enumerate(automaton.edges):
        ends = [EMPTY] if state in automaton.accepting else []
        rules[names[state]] = alt(*ends, *(seq(written(chars), Ref(names[to])) for chars, to in edges))
    return rules


def is_empty(expr: Expr, budget: Budget) -> bool:
    if expr in (EMPTY, ALL):
        return False
    return not any(state.is_nullable for state, _ in _explored(expr, Alphabet(expr, budget), budget))


_START, _END = -1, -2
_LARGEST = 4_000
"""Parts of the largest expression that is worth writing."""
_MOST_WRITTEN = 15_000
_MOST_EDGES = 2_000

_DEEPEST = 90


class _TooLong(Exception): ...


class _Graph:
    def __init__(self, automaton: Automaton) -> None:
        self._out: dict[int, dict[int, Expr]] = {_START: {0: EMPTY}, _END: {}}
        self._into: dict[int, set[int]] = {_START: set(), _END: set()}
        self._size: Callable[[Expr], int] = functools.cache(lambda expr: 1 + sum(map(self._size, expr.parts)))
        self._num_written = 0
        for state, edges in enumerate(automaton.edges):
            self._out[state] = {target: Chars(chars) for chars, target in edges}
            if state in automaton.accepting:
                self._out[state][_END] = EMPTY
        for state in self._out:
            self._into.setdefault(state, set())
        for state, targets in self._out.items():
            for target in targets:
                self._into[target].add(state)
        self._queue = [(self._cost(s), -s) for s in range(len(automaton.edges))]
        heapq.heapify(self._queue)

    def eliminate_all(self) -> Expr:
        while self._queue:
            cost, negated = heapq.heappop(self._queue)
            if -negated not in self._out:
                continue
            fresh = self._cost(-negated)
            if fresh > cost:
                heapq.heappush(self._queue, (fresh, negated))
            else:
                self._eliminate(-negated)
        return self._out[_START].get(_END, NOTHING)

    def _cost(self, state: int) -> int:
        out, into = self._out[state], self._into[state]
        ways_in, ways_out = len(into - {state}), len(out) - (state in out)
        weight = sum(self._size(e) for e in out.values())
        incoming = sum(self._size(self._out[s][state]) for s in into)
        return max(ways_in - 1, 0) * weight + max(ways_out - 1, 0) * incoming

    def _eliminate(self, state: int) -> None:
        out = self._out.pop(state)
        loop = star(out.pop(state)) if state in out else EMPTY
        sources = self._into.pop(state) - {state}
        for source in sorted(sources):
            before = self._out[source].pop(state)
            for target, after in out.items():
                self._add(source, target, seq(before, loop, after))
        for target in out:
            self._into[target].discard(state)
        for changed in sorted((sources | set(out)) - {_START, _END}):
            heapq.heappush(self._queue, (self._cost(changed), -changed))

    def _add(self, source: int, target: int, expr: Expr) -> None:
        beside = self._out[source].get(target)
        whole = expr if beside is None else alt(beside, expr)
        size = self._size(whole)
        self._num_written += size
        if size > _LARGEST or whole.depth > _DEEPEST or self._num_written > _MOST_WRITTEN:
            raise _TooLong
        self._out[source][target] = whole
        self._into[target].add(source)


def to_expr(automaton: Automaton) -> Expr | None:
    """Return None if it would be too long."""
    if not automaton.accepting:
        return NOTHING
    if sum(map(len, automaton.edges)) > _MOST_EDGES:
        return None
    try:
        return _Graph(automaton).eliminate_all()
    except _TooLong:
        return None


_COUNTED = 24
"""Most states of a part that is combined with the rest of an intersection."""
_SHORT = 12
_MOST_STATES = 250
"""States of an intersection up to which it becomes one expression."""


class PlainLanguages:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.automaton = functools.cache(functools.partial(build_automaton, budget=budget))
        self._simple: dict[Expr, Expr | None] = {}
        self._surely_empty = functools.cache(functools.partial(self._tried, self._has_none))

    def is_empty(self, language: Expr) -> bool:
        """Return True only if surely empty: too many states count as not empty."""
        if not language.is_extended:
            return language is NOTHING
        return self._surely_empty(language) or False

    def _has_none(self, language: Expr) -> bool:
        if isinstance(language, And) and _starts_clash(language):
            return True
        lengths = (x for x in language.parts if isinstance(x, Repeat) and x.item is ANY_CHAR)
        length = next(lengths, None)
        if isinstance(language, And) and length is not None:
            body = both(*(x for x in language.items if x is not length))
            return not has_length(self.automaton(body), length.low, length.high, self._budget)
        return is_empty(language, self._budget)

    def _tried(self, find: Callable[[Expr], V], language: Expr) -> V | None:
        try:
            return find(language)
        except SchemaTooLarge as error:
            if error.limit != "regex_states":
                raise
            return None

    def few(self, language: Expr, most: int) -> list[str] | None:
        longest = span(language)[1]
        if longest is None or longest > _SHORT:
            return None
        return few_strings(self.automaton(language), most)

    def simplified(self, language: Expr) -> Expr | None:
        if not language.is_extended:
            return language
        if language not in self._simple:  # not `functools.cache`, which takes more of the stack
            self._simple[language] = self._plain(language)
        return self._simple[language]

    def _plain(self, language: Expr) -> Expr | None:
        """Counts and large parts stay apart, because the reader combines them only as far as the
        text goes."""
        if weight(language) <= _MOST_STATES and (found := self._by_automaton(language)) is not None:
            return found
        if isinstance(language, And) and any(map(_has_one_spelling, language.items)):
            parts = [self._part(x) for x in language.items]
        elif isinstance(language, And):
            counted = [x for x in language.items if not x.is_extended and weight(x) > _COUNTED]
            others = both(*(x for x in language.items if x not in counted))
            parts = [self.simplified(x) for x in ([others, *counted] if counted else language.items)]
        elif isinstance(language, (Alt, Seq)):
            parts = [self.simplified(x) for x in language.items]
        else:
            return self._by_automaton(language)
        found = None if None in parts else rebuilt(language, (x for x in parts if x is not None))
        return self._by_automaton(language) if found is None else found

    def _part(self, language: Expr) -> Expr | None:
        """Leave complements to the reader, which has no state that the text does not reach."""
        if not isinstance(language, Not):
            return self.simplified(language)
        found = self.simplified(language.item)
        return None if found is None else negate(found)

    def _by_automaton(self, language: Expr) -> Expr | None:
        automaton = self._tried(self.automaton, language)
        return None if automaton is None else to_expr(automaton)


_PLAIN_ASCII = CharSet.of((0x20, 0x7E)) - CharSet.chars('"\\')


def _has_one_spelling(language: Expr) -> bool:
    """Return True if a string of JSON never escapes its characters.

    A complement beside it is then one of spellings too.
    """
    if isinstance(language, And) or language.is_extended:
        return False
    sets = (x.set for x in every_expression([language]) if isinstance(x, Chars))
    return not any(chars - _PLAIN_ASCII for chars in sets)


def _starts_clash(language: And) -> bool:
    starts: list[list[CharSet]] = []
    for item in language.items:
        parts = item.items if isinstance(item, Seq) else (item,)
        chars = itertools.takewhile(lambda x: isinstance(x, Chars), parts)
        starts.append([x.set for x in chars if isinstance(x, Chars)])
    pairs = (zip(one, other, strict=False) for one, other in itertools.combinations(starts, 2))
    return any(not a & b for a, b in itertools.chain.from_iterable(pairs))
