"""`unevaluatedProperties` and `unevaluatedItems` -> other nodes, by what each way of passing leaves over."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from openai_cpu_server.structured.report import Report
from openai_cpu_server.structured.schema.evaluated import TooManyWays
from openai_cpu_server.structured.schema.evaluation import KEYWORDS, Evaluation
from openai_cpu_server.structured.schema.nodes import TRUE, Kind, Table, Unevaluated


class Expander:
    """Writes those keywords in other nodes. `at` gives the node at a pointer."""

    def __init__(
        self,
        table: Table,
        at: Callable[[str], int],
        evaluations: Mapping[Kind, Evaluation],
        report: Report,
    ) -> None:
        self._table = table
        self._at = at
        self._evaluations = evaluations
        self._report = report
        self._known: dict[Unevaluated, int] = {}

    def expand(self, node: Unevaluated) -> int:
        """The number of a node that means the same. Raises InvalidSchema, UnsupportedSchema."""
        if node not in self._known:
            self._known[node] = self._expanded(node)
        return self._known[node]

    def _expanded(self, node: Unevaluated) -> int:
        keyword = KEYWORDS[node.kind]
        place = (node.pointer, keyword)
        rest = self._at(f"{node.pointer}/{keyword}")
        try:
            ways = self._evaluations[node.kind].beside(node.pointer)
        except TooManyWays:
            self._report.refuse(*place, "depends on too many combinations of other schemas")
            return TRUE
        closed = [w.seen.beyond(rest, node.kind, self._table, place) for w in ways]
        return self._table.any(*(self._table.all(c, *w.guards) for c, w in zip(closed, ways, strict=True)))
