"""Finds how long the strings of an expression are, and limits their length."""

from __future__ import annotations

import itertools

from openai_cpu_server.structured.languages.expr import (
    ANY_CHAR,
    NOTHING,
    Alt,
    And,
    Chars,
    Expr,
    Not,
    Repeat,
    Residue,
    Seq,
    alt,
    both,
    repeat,
    seq,
)

Span = tuple[int, "int | None"]
_MOST_PAIRED = 3
"""If at most so many parts vary, any two of them may make up for missing characters together."""
_MOST_SPLIT = 4


def span(expr: Expr) -> Span:
    """The least and the greatest number of characters; None: no limit."""
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
    """The strings of `expr` with `low` to `high` characters:
    by its structure where that is simple, else And."""
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
    """If all items have the same length, limit their number; else None."""
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
    """If only one part varies in length, it gets what the others leave; else None."""
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


def within(expr: Expr, high: int) -> Expr:
    """Strings of `expr` with at most `high` characters. Some may be missing, but none is longer.

    A sequence of endless parts would need a counter in every part. Instead each part gets a small share, and
    one of them gets all that is left. A repetition has few long items or many short ones.
    """
    least, most = span(expr)
    if least > high:
        return NOTHING
    if most is not None and most <= high:
        return expr
    if isinstance(expr, Alt):
        return alt(*(within(x, high) for x in expr.items))
    if isinstance(expr, Repeat):
        return _fewer(expr, high)
    assert isinstance(expr, Seq), expr
    return _shared(expr, high)


def _fewer(expr: Repeat, high: int) -> Expr:
    """Many short items or few long ones: a number of items for each length that an item may have."""
    least, most = span(expr.item)
    if least == most:
        return repeat(expr.item, expr.low, high // max(least, 1))
    largest = high // max(least, 1)
    largest = largest if expr.high is None else min(largest, expr.high)
    count = max(expr.low, 1, min(largest, high // most) if most else 1)
    options: dict[Expr, int] = {}
    while count < largest:
        options[within(expr.item, high // count)] = count
        count *= 2
    if largest >= max(expr.low, 1):
        options[within(expr.item, high // largest)] = largest
    found = [repeat(item, expr.low, count) for item, count in options.items()]
    return alt(*found, *([Seq(())] if expr.low == 0 else []))


def _shared(expr: Seq, high: int) -> Expr:
    spans = [span(x) for x in expr.items]
    room = high - sum(s[0] for s in spans)
    variable = [i for i, s in enumerate(spans) if s[0] != s[1]]
    small = room // (2 * len(variable))
    favoured = [i for i in variable if _most_extra(spans[i], room) > small] or variable[:1]
    options = []
    for chosen in favoured:
        extra = {i: min(small, _most_extra(spans[i], room)) for i in variable if i != chosen}
        extra[chosen] = room - sum(extra.values())
        options.append(seq(*(within(x, spans[i][0] + extra.get(i, 0)) for i, x in enumerate(expr.items))))
    return alt(*options)


def _most_extra(given: Span, room: int) -> int:
    """How many characters beyond its least a part can use."""
    return room if given[1] is None else min(given[1] - given[0], room)


def not_shorter(expr: Expr, low: int) -> Expr:
    """Strings of `expr` with at least `low` characters. Some may be missing, but none is shorter.

    One part makes up for missing characters, or two of them together.
    """
    least, most = span(expr)
    if most is not None and most < low:
        return NOTHING
    if least >= low:
        return expr
    if isinstance(expr, Alt):
        return alt(*(not_shorter(x, low) for x in expr.items))
    if isinstance(expr, Repeat):
        return _more(expr, low)
    assert isinstance(expr, Seq), expr
    return _made_up(expr, low)


def _more(expr: Repeat, low: int) -> Expr:
    """Enough items that they are long enough together, or items that are long enough each."""
    least, most = span(expr.item)
    options = []
    count = max(expr.low, -(-low // least)) if least else None
    if count is not None and (expr.high is None or count <= expr.high):
        options.append(repeat(expr.item, count, expr.high))
    if least != most:
        options.append(repeat(not_shorter(expr.item, low), max(expr.low, 1), expr.high))
    return alt(*options)


def _made_up(expr: Seq, low: int) -> Expr:
    spans = [span(x) for x in expr.items]
    missing = low - sum(s[0] for s in spans)
    variable = [i for i, s in enumerate(spans) if s[0] != s[1]]
    shares = [{i: missing} for i in variable]
    if len(variable) <= _MOST_PAIRED:
        pairs = itertools.combinations(variable, 2)
        shares += [{i: n, j: m} for i, j in pairs for n, m in _split(missing)]
    options = []
    for share in shares:
        parts = (not_shorter(x, spans[i][0] + share.get(i, 0)) for i, x in enumerate(expr.items))
        options.append(seq(*parts))
    return alt(*options)


def _split(missing: int) -> list[tuple[int, int]]:
    """All ways to split the number if it is small; else one third and two thirds."""
    if missing <= _MOST_SPLIT:
        return [(n, missing - n) for n in range(1, missing)]
    third = missing // 3
    return [(third, missing - third), (missing - third, third)]


def weight(expr: Expr) -> int:
    """About how many states an automaton of the expression has."""
    if isinstance(expr, (Seq, Alt)):
        return sum(weight(x) for x in expr.items)
    if isinstance(expr, Repeat):
        return weight(expr.item) * max(expr.low, expr.high or 1, 1)
    return 1
