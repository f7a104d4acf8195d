"""What is plain about a node: whether all values of one type fit it, or none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from openai_cpu_server.structured.logic.settled import settled
from openai_cpu_server.structured.schema.nodes import (
    KIND_OF,
    All,
    AnyOf,
    Constant,
    Kind,
    Negation,
    Node,
    OneOf,
    Reference,
    Scalars,
    Table,
    Types,
    Unevaluated,
)

Signed = tuple[int, bool]


class Truths:
    """Looks at each signed node once. `look_up` gives the node at a pointer."""

    def __init__(self, table: Table, look_up: Callable[[str], int]) -> None:
        self._table = table
        self._look_up = look_up
        self._known: dict[Kind, dict[Signed, bool | None]] = {kind: {} for kind in Kind}

    def of(self, signed: Signed, kind: Kind) -> bool | None:
        """Whether all values of the type fit (True), none does (False), or it depends (None)."""
        return settled(signed, self._known[kind], self._parts, partial(self._found, kind), None)

    def _parts(self, signed: Signed) -> list[Signed]:
        """The signed nodes on which the truth of this one depends."""
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, Negation):
            return [(node.item, not is_true)]
        if isinstance(node, Reference):
            return [(self._look_up(node.pointer), is_true)]
        return [(x, is_true) for x in node.items] if isinstance(node, (All, AnyOf)) else []

    def _found(self, kind: Kind, signed: Signed, truths: list[bool | None]) -> bool | None:
        number, is_true = signed
        node = self._table[number]
        if isinstance(node, Constant):
            return node.value == is_true
        if isinstance(node, (Negation, Reference)):
            return truths[0]
        if isinstance(node, (All, AnyOf)):
            return _of_parts(truths, decisive=isinstance(node, AnyOf) == is_true)
        if isinstance(node, Unevaluated):
            return None if node.kind is kind else is_true
        return None if isinstance(node, OneOf) else self.of_atom(node, is_true, kind)

    def of_atom(self, node: Node, is_true: bool, kind: Kind) -> bool | None:
        if isinstance(node, Types):
            if kind is Kind.NUMBER and "integer" in node.names and "number" not in node.names:
                return None
            return (kind.value in node.names) == is_true
        if isinstance(node, Scalars):
            return _of_scalars(node, is_true, kind)
        return None if KIND_OF[type(node)] is kind else is_true


def _of_parts(truths: list[bool | None], *, decisive: bool) -> bool | None:
    if decisive in truths:
        return decisive
    return (not decisive) if all(t is (not decisive) for t in truths) else None


def _of_scalars(node: Scalars, is_true: bool, kind: Kind) -> bool | None:
    listed: dict[Kind, bool] = {
        Kind.NULL: node.null,
        Kind.BOOLEAN: bool(node.booleans),
        Kind.NUMBER: bool(node.numbers),
        Kind.STRING: bool(node.strings),
    }
    if kind is Kind.NULL or not listed.get(kind, False):
        return listed.get(kind, False) == is_true
    return None
