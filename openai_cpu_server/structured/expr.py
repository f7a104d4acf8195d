"""Expressions: of a string's characters (regular, with intersection and complement), and of grammar text.

Interned: equal expressions are one object, so comparing costs nothing however deep they are. Build them
through the functions below, which keep them simple.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar
from weakref import KeyedRef

from openai_cpu_server.structured.charset import ANY, CharSet, single


class _Interned(type):
    """Classes whose instances are equal only if they are the same. Weakly kept; safe between threads."""

    _known: ClassVar[dict[tuple[object, ...], KeyedRef[Any, Any]]] = {}
    _serials: ClassVar[Iterator[int]] = itertools.count()

    def __call__(cls, *args: object) -> Any:
        key = (cls, *args)
        reference = _Interned._known.get(key)
        found = None if reference is None else reference()
        return cls._made(key) if found is None else found

    def _made(cls, key: tuple[object, ...]) -> Any:
        fresh = type.__call__(cls, *key[1:])
        fresh.__dict__["serial"] = next(_Interned._serials)
        fresh.measure()
        reference = KeyedRef(fresh, _Interned._forget, key)
        found = _Interned._known.setdefault(key, reference)()
        if found is None:
            _Interned._known[key] = reference
        return fresh if found is None else found

    @staticmethod
    def _forget(reference: KeyedRef[Any, Any], known: dict[Any, Any] = _known) -> None:
        """(The table comes as a default, for at the interpreter's end there are no globals.)"""
        if known.get(reference.key) is reference:
            del known[reference.key]


_NO_NAMES: frozenset[str] = frozenset()


class Expr(metaclass=_Interned):
    serial: int
    """Older expressions have smaller ones: an order to put equal sets of expressions into."""
    depth: int = 1
    is_extended: bool = False
    """Whether there are intersections, complements or residues in it, which no grammar has."""
    references: frozenset[str] = _NO_NAMES
    """Rules that are named in it."""

    @property
    def parts(self) -> tuple[Expr, ...]:
        """What it is made of."""
        return ()

    def measure(self) -> None:
        """Note what follows from the parts: once, when it is made."""
        facts, parts = self.__dict__, self.parts
        if parts:
            facts["depth"] = 1 + max([x.depth for x in parts])
        if isinstance(self, (And, Not, Residue)) or any(x.is_extended for x in parts):
            facts["is_extended"] = True
        named = [x.references for x in parts if x.references]
        if named:
            facts["references"] = named[0].union(*named[1:])
        elif isinstance(self, Ref):
            facts["references"] = frozenset((self.name,))


@dataclass(frozen=True, eq=False)
class Chars(Expr):
    """One character out of a set."""

    set: CharSet


@dataclass(frozen=True, eq=False)
class Text(Expr):
    """A literal of the grammar's text."""

    text: str


@dataclass(frozen=True, eq=False)
class Ref(Expr):
    """A rule of the grammar."""

    name: str


@dataclass(frozen=True, eq=False)
class Seq(Expr):
    items: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.items


@dataclass(frozen=True, eq=False)
class Alt(Expr):
    items: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.items


@dataclass(frozen=True, eq=False)
class Repeat(Expr):
    """`low` to `high` times (None: without end)."""

    item: Expr
    low: int
    high: int | None

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.item,)


@dataclass(frozen=True, eq=False)
class And(Expr):
    items: tuple[Expr, ...]

    @property
    def parts(self) -> tuple[Expr, ...]:
        return self.items


@dataclass(frozen=True, eq=False)
class Not(Expr):
    item: Expr

    @property
    def parts(self) -> tuple[Expr, ...]:
        return (self.item,)


@dataclass(frozen=True, eq=False)
class Residue(Expr):
    """Decimal digits (with a point, perhaps) whose value times 10**decimals is a multiple of `modulus`.

    `remainder` is of the digits read so far; `read` counts decimals read, None before the point.
    """

    modulus: int
    decimals: int
    remainder: int = 0
    read: int | None = None


EMPTY: Expr = Seq(())
NOTHING: Expr = Alt(())


def literal(text: str) -> Expr:
    """The string itself, as characters."""
    return Seq(tuple(Chars(single(ord(c))) for c in text)) if len(text) != 1 else Chars(single(ord(text)))


def seq(*items: Expr) -> Expr:
    flat: list[Expr] = []
    for item in items:
        if item is NOTHING:
            return NOTHING
        for part in item.items if isinstance(item, Seq) else (item,):
            joined = _joined(flat[-1], part) if flat else None
            if joined is None:
                flat.append(part)
            else:
                flat[-1] = joined
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))


def _joined(left: Expr, right: Expr) -> Expr | None:
    """`x x{1,3}` as `x{2,4}`."""
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
        flat = _merged_chars(flat, chars)
    if EMPTY in flat and len(flat) == 2:
        return _optional(next(x for x in flat if x != EMPTY))
    return next(iter(flat)) if len(flat) == 1 else Alt(tuple(flat))


def _merged_chars(flat: dict[Expr, None], chars: list[Chars]) -> dict[Expr, None]:
    union = CharSet(())
    for each in chars:
        union = union | each.set
    return dict.fromkeys(
        [Chars(union) if x is chars[0] else x for x in flat if x is chars[0] or x not in chars]
    )


def _optional(item: Expr) -> Expr:
    if isinstance(item, Repeat) and item.low <= 1:
        return Repeat(item.item, 0, item.high)
    return Repeat(item, 0, 1)


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


def any_of(texts: Iterable[str]) -> Expr:
    return alt(*(literal(t) for t in texts))


ANY_CHAR = Chars(ANY)
ALL = star(ANY_CHAR)
"""Every string."""
