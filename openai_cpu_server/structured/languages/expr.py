"""Interned expressions, of characters and of grammar text. Equal ones are one object, so comparing
is cheap."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar
from weakref import ref

from openai_cpu_server.structured.languages.charset import ANY, CharSet, single

K = TypeVar("K")


class _KeyedReference(ref[Any]):
    __slots__ = ("key",)
    key: tuple[object, ...]


class _Interned(type):
    """Equal instances are one object. The table is weak and thread-safe."""

    _table: ClassVar[dict[tuple[object, ...], _KeyedReference]] = {}
    _serials: ClassVar[Iterator[int]] = itertools.count()

    def __call__(cls, *args: object) -> Any:
        key = (cls, *args)
        reference = _Interned._table.get(key)
        found = None if reference is None else reference()
        return cls._made(key) if found is None else found

    def _made(cls, key: tuple[object, ...]) -> Any:
        """Set fields at once, because the dataclass is too slow for hundreds of thousands."""
        fresh: Any = object.__new__(cls)  # type: ignore[arg-type]
        facts: dict[str, Any] = fresh.__dict__
        facts.update(zip(cls.__match_args__, key[1:]))  # type: ignore[attr-defined]  # noqa: B905
        facts["serial"] = next(_Interned._serials)
        fresh.measure()
        reference = _KeyedReference(fresh, _Interned._forget)
        reference.key = key
        found = _Interned._table.setdefault(key, reference)()
        if found is None:
            _Interned._table[key] = reference
        return fresh if found is None else found

    @staticmethod
    def _forget(reference: _KeyedReference, table: dict[Any, Any] = _table) -> None:
        """`table`: a default argument, because globals are gone when the interpreter exits."""
        if table.get(reference.key) is reference:
            del table[reference.key]


_NO_NAMES: frozenset[str] = frozenset()


class Expr(metaclass=_Interned):
    serial: int
    """Grows with every new expression, and gives sets of expressions an order."""
    depth: int = 1
    is_extended: bool = False
    references: frozenset[str] = _NO_NAMES
    is_nullable: bool = False
    """True if the empty string matches. Always False for a reference to a rule."""

    @property
    def parts(self) -> tuple[Expr, ...]:
        return ()

    def measure(self) -> None:
        if self._takes_nothing():
            self.__dict__["is_nullable"] = True
        parts = self.parts
        if parts:
            self._measure_parts(self.__dict__, parts)

    @staticmethod
    def _measure_parts(facts: dict[str, Any], parts: tuple[Expr, ...]) -> None:
        depth, named, more = 0, _NO_NAMES, list[frozenset[str]]()
        for part in parts:
            if part.depth > depth:
                depth = part.depth
            if part.is_extended:
                facts["is_extended"] = True
            if part.references and part.references is not named:
                if named:
                    more.append(part.references)
                else:
                    named = part.references
        facts["depth"] = depth + 1
        if named:
            facts["references"] = named.union(*more) if more else named

    def _takes_nothing(self) -> bool:
        return False


@dataclass(frozen=True, eq=False)
class Chars(Expr):
    set: CharSet

    def measure(self) -> None:
        """Keep the defaults, because a set has no parts."""


@dataclass(frozen=True, eq=False)
class Text(Expr):
    text: str

    def _takes_nothing(self) -> bool:
        return not self.text


@dataclass(frozen=True, eq=False)
class Ref(Expr):
    name: str

    def measure(self) -> None:
        self.__dict__["references"] = frozenset((self.name,))


@dataclass(frozen=True, eq=False)
class Token(Expr):
    """Number in the vocabulary. No text matches it."""

    number: int

    def measure(self) -> None:
        # It counts as a reference, so that no lexeme takes it in.
        self.__dict__["references"] = frozenset((f"<[{self.number}]>",))


@dataclass(frozen=True, eq=False)
class _NaryExpr(Expr):
    items: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.items

    def _takes_nothing(self) -> bool:
        return False not in [x.is_nullable for x in self.items]


@dataclass(frozen=True, eq=False)
class _UnaryExpr(Expr):
    item: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.item,)


@dataclass(frozen=True, eq=False)
class Seq(_NaryExpr):
    pass


@dataclass(frozen=True, eq=False)
class Alt(_NaryExpr):
    def _takes_nothing(self) -> bool:
        return True in [x.is_nullable for x in self.items]


COUNT_MARKS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_COUNTS = re.compile(r"\{\s*(?:(\d+)\s*)?(?:(,)\s*(?:(\d+)\s*)?)?\}")


def counts_in_braces(text: str, most: int) -> tuple[int, int | None]:
    found = _COUNTS.fullmatch(text)
    if found is None or not (found[1] or found[3]):
        raise ValueError("expected {m}, {m,}, {,n} or {m,n}")
    if max(len(digits.lstrip("0")) for digits in (found[1] or "", found[3] or "")) > len(str(most)):
        raise ValueError(f"more than {most} repetitions")
    low, high = int(found[1] or "0"), int(found[3]) if found[3] else None
    if max(low, high or 0) > most:
        raise ValueError(f"more than {most} repetitions")
    if found[2] is None:
        return low, low
    if high is not None and high < low:
        raise ValueError(f"at least {low} and at most {high} times")
    return low, high


@dataclass(frozen=True, eq=False)
class Repeat(_UnaryExpr):
    """`high`: None for no limit."""

    low: int
    high: int | None

    @property
    def mark(self) -> str:
        short = next((mark for mark, times in COUNT_MARKS.items() if times == (self.low, self.high)), None)
        if short is not None:
            return short
        if self.low == self.high:
            return f"{{{self.low}}}"
        return f"{{{self.low},{'' if self.high is None else self.high}}}"

    def _takes_nothing(self) -> bool:
        return self.low == 0 or self.item.is_nullable


@dataclass(frozen=True, eq=False)
class And(_NaryExpr):
    is_extended = True


@dataclass(frozen=True, eq=False)
class Not(_UnaryExpr):
    is_extended = True

    def _takes_nothing(self) -> bool:
        return not self.item.is_nullable


@dataclass(frozen=True, eq=False)
class Residue(Expr):
    """Decimal digits whose value times 10**decimals is a multiple of `modulus`.

    `remainder`: of the digits so far. `read`: number of decimals so far, or None before the point.
    """

    modulus: int
    decimals: int
    remainder: int = 0
    read: int | None = None
    is_extended = True

    def _takes_nothing(self) -> bool:
        return bool(self.remainder * 10 ** (self.decimals - (self.read or 0)) % self.modulus == 0)


@dataclass(frozen=True, eq=False)
class Multiples(Expr):
    """Multiples of an integer, which llguidance counts itself: an automaton has a state for each remainder.

    `language`: the same as an expression.
    """

    step: int
    low: int | None
    high: int | None
    language: Expr
    is_extended = True


EMPTY: Expr = Seq(())
NOTHING: Expr = Alt(())


@functools.lru_cache(maxsize=512)
def character(char: str) -> Expr:
    return Chars(single(ord(char)))


def literal(text: str) -> Expr:
    return Seq(tuple(map(character, text))) if len(text) != 1 else character(text)


def seq(*items: Expr) -> Expr:
    flat: list[Expr] = []
    last: Expr | None = None
    for item in items:
        if item is NOTHING:
            return NOTHING
        for part in item.items if isinstance(item, Seq) else (item,):
            joined = None
            if last is not None and (isinstance(part, Repeat) or isinstance(last, Repeat)):
                joined = _joined(last, part)
            if joined is None:
                flat.append(part)
                last = part
            else:
                flat[-1] = last = joined
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _joined(left: Expr, right: Expr) -> Expr | None:
    """`x x{1,3}` becomes `x{2,4}`."""
    if isinstance(left, Repeat):
        other = right if isinstance(right, Repeat) else None
        if left.item is not (other.item if other else right):
            return None
        low, high = (other.low, other.high) if other else (1, 1)
        return Repeat(
            left.item, left.low + low, None if left.high is None or high is None else left.high + high
        )
    if not isinstance(right, Repeat) or right.item is not left:
        return None
    return Repeat(left, right.low + 1, None if right.high is None else right.high + 1)


def alt(*items: Expr) -> Expr:
    flat: dict[Expr, None] = {}
    for item in items:
        flat.update(dict.fromkeys(item.items if isinstance(item, Alt) else (item,)))
    chars = [x for x in flat if isinstance(x, Chars)]
    if len(chars) > 1:
        union = CharSet(())
        for each in chars:
            union = union | each.set
        flat = dict.fromkeys(
            [Chars(union) if x is chars[0] else x for x in flat if x is chars[0] or x not in chars]
        )
    if EMPTY in flat and len(flat) == 2:
        item = next(x for x in flat if x != EMPTY)
        if isinstance(item, Repeat) and item.low <= 1:
            return Repeat(item.item, 0, item.high)
        return Repeat(item, 0, 1)
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def repeat(item: Expr, low: int, high: int | None) -> Expr:
    if item in (EMPTY, NOTHING) or high == 0:
        return EMPTY if low == 0 or item == EMPTY or high == 0 else NOTHING
    if (low, high) == (1, 1):
        return item
    if isinstance(item, Repeat) and item.low <= 1 and item.high is None and low <= 1:
        return Repeat(item.item, item.low * low, None)
    return Repeat(item, low, high)


def star(item: Expr) -> Expr:
    return repeat(item, 0, None)


def optional(item: Expr) -> Expr:
    return alt(EMPTY, item)


def both(*items: Expr) -> Expr:
    flat: dict[Expr, None] = {}
    for item in items:
        flat.update(dict.fromkeys(item.items if isinstance(item, And) else (item,)))
    flat.pop(ALL, None)
    if NOTHING in flat:
        return NOTHING
    if not flat:
        return ALL
    return next(iter(flat)) if len(flat) == 1 else And(tuple(flat))


def negate(item: Expr) -> Expr:
    if isinstance(item, Not):
        return item.item
    if item == NOTHING:
        return ALL
    return NOTHING if item == ALL else Not(item)


def rebuilt(expr: Expr, parts: Iterable[Expr]) -> Expr:
    if isinstance(expr, Seq):
        return seq(*parts)
    if isinstance(expr, Alt):
        return alt(*parts)
    if isinstance(expr, And):
        return both(*parts)
    if isinstance(expr, Not):
        return negate(*parts)
    if not isinstance(expr, Repeat):
        return expr
    (item,) = parts
    return repeat(item, expr.low, expr.high)


def any_of(texts: Iterable[str]) -> Expr:
    return alt(*(literal(t) for t in texts))


ANY_CHAR = Chars(ANY)
ALL = star(ANY_CHAR)


GrammarRules = dict[str, Expr]
ROOT = "root"


def every_expression(roots: Iterable[Expr]) -> dict[Expr, None]:
    found = dict.fromkeys(roots)
    queue = list(found)
    for expr in queue:
        for part in expr.parts:
            if part not in found:
                found[part] = None
                queue.append(part)
    return found


def inner_first(roots: Iterable[K], inner: Callable[[K], Iterable[K]], done: Container[K] = ()) -> list[K]:
    found, met = list[K](), set[K]()
    stack = [(root, False) for root in reversed([*roots])]
    while stack:
        key, is_done = stack.pop()
        if is_done:
            found.append(key)
        elif key not in met and key not in done:
            met.add(key)
            stack.append((key, True))
            stack += [(each, False) for each in inner(key) if each not in met]
    return found


def parts_first(roots: Iterable[Expr], done: Container[Expr] = ()) -> list[Expr]:
    return inner_first(roots, lambda expr: expr.parts, done)


def rewritten(rules: GrammarRules, leaf: Callable[[Expr], Expr]) -> GrammarRules:
    found: dict[Expr, Expr] = {}
    for expr in parts_first(rules.values()):
        found[expr] = rebuilt(expr, (found[x] for x in expr.parts)) if expr.parts else leaf(expr)
    return {name: found[expr] for name, expr in rules.items()}


_Span = tuple[int, "int | None"]


def span(expr: Expr) -> _Span:
    """Least and greatest length; None means no limit."""
    if isinstance(expr, Chars):
        return 1, 1
    if isinstance(expr, (Seq, Alt)):
        spans = [span(x) for x in expr.items]
        lows, highs = [low for low, _ in spans], [high for _, high in spans if high is not None]
        is_limited = len(highs) == len(spans)
        if isinstance(expr, Seq):
            return sum(lows), sum(highs) if is_limited else None
        return min(lows, default=0), max(highs, default=0) if is_limited else None
    if isinstance(expr, Repeat):
        low, high = span(expr.item)
        return low * expr.low, None if expr.high is None or high is None else high * expr.high
    assert isinstance(expr, (And, Not, Residue)), expr
    return 0, None


def bounded(expr: Expr, low: int, high: int | None) -> Expr:
    """Return the strings of these lengths, by structure where that is simple, else as an intersection."""
    least, most = span(expr)
    if (high is not None and (least > high or high < low)) or (most is not None and most < low):
        return NOTHING
    if least >= low and (high is None or (most is not None and most <= high)):
        return expr
    found = _by_structure(expr, low, high)
    return both(expr, repeat(ANY_CHAR, low, high)) if found is None else found


def _by_structure(expr: Expr, low: int, high: int | None) -> Expr | None:
    if isinstance(expr, Repeat):
        return _repetition(expr, low, high)
    if isinstance(expr, Alt):
        parts = [bounded(x, low, high) for x in expr.items]
        return None if any(isinstance(x, And) for x in parts) else alt(*parts)
    return _sequence(expr, low, high) if isinstance(expr, Seq) else None


def _repetition(expr: Repeat, low: int, high: int | None) -> Expr | None:
    least, most = span(expr.item)
    if least != most or least == 0:
        return None
    fewest = max(expr.low, -(-low // least))
    highs = [h for h in (expr.high, None if high is None else high // least) if h is not None]
    most_items = min(highs, default=None)
    return (
        NOTHING if most_items is not None and most_items < fewest else repeat(expr.item, fewest, most_items)
    )


def _sequence(expr: Seq, low: int, high: int | None) -> Expr | None:
    spans = [span(x) for x in expr.items]
    variable = [i for i, s in enumerate(spans) if s[0] != s[1]]
    if len(variable) != 1:
        return None
    i = variable[0]
    fixed = sum(s[0] for j, s in enumerate(spans) if j != i)
    part = bounded(expr.items[i], max(low - fixed, 0), None if high is None else high - fixed)
    if isinstance(part, And):
        return None
    return seq(*expr.items[:i], part, *expr.items[i + 1 :])


def weight(expr: Expr) -> int:
    if isinstance(expr, And):
        return math.prod(map(weight, expr.items))
    if isinstance(expr, (Seq, Alt, Not)):
        return sum(map(weight, expr.parts))
    if isinstance(expr, Repeat):
        return weight(expr.item) * max(expr.low, expr.high or 1, 1)
    return expr.modulus if isinstance(expr, Residue) else 1
