"""The characters that an expression tells apart, and which of them matter for its next step."""

from __future__ import annotations

from collections.abc import Iterable

from openai_cpu_server.structured.languages.charset import CharSet, partition
from openai_cpu_server.structured.languages.expr import Chars, Expr, Residue, Seq

_DIGITS = tuple(CharSet.chars(c) for c in "0123456789.")


class Alphabet:
    """Classes of characters, numbered; sets of them are bits of an int."""

    def __init__(self, expr: Expr) -> None:
        self.classes = partition(_sets_in(expr))
        self._masks: dict[CharSet, int] = {}
        self._fronts: dict[Expr, frozenset[int]] = {}

    def blocks(self, state: Expr) -> list[int]:
        """Sets of classes. The state goes on in the same way with all characters of one set."""
        blocks = [(1 << len(self.classes)) - 1]
        for mask in self._front(state):
            blocks = [part for each in blocks for part in (each & mask, each & ~mask) if part]
        return blocks

    def code(self, block: int) -> int:
        """One character of the block."""
        return self.classes[(block & -block).bit_length() - 1].ranges[0][0]

    def _front(self, expr: Expr) -> frozenset[int]:
        """The sets of characters that the first step of the expression tells apart."""
        found = self._fronts.get(expr)
        if found is None:
            found = self._fronts[expr] = frozenset(self._compute(expr))
        return found

    def _compute(self, expr: Expr) -> Iterable[int]:
        if isinstance(expr, Chars):
            return (self._mask(expr.set),)
        if isinstance(expr, Residue):
            return map(self._mask, _DIGITS)
        found: set[int] = set()
        for part in expr.parts:
            found |= self._front(part)
            if isinstance(expr, Seq) and not part.is_nullable:
                break
        return found

    def _mask(self, chars: CharSet) -> int:
        if chars not in self._masks:
            inside = (i for i, each in enumerate(self.classes) if each.ranges[0][0] in chars)
            self._masks[chars] = sum(1 << i for i in inside)
        return self._masks[chars]


def _sets_in(expr: Expr) -> list[CharSet]:
    """Every set of characters in the expression, each once."""
    sets: dict[CharSet, None] = {}
    seen, queue = {expr}, [expr]
    for each in queue:
        if isinstance(each, Chars):
            sets[each.set] = None
        elif isinstance(each, Residue):
            sets.update(dict.fromkeys(_DIGITS))
        fresh = [x for x in dict.fromkeys(each.parts) if x not in seen]
        seen.update(fresh)
        queue += fresh
    return list(sets)
