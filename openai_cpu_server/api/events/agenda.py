"""Which kind of event is told next: one at a time, and what is overdue for longest goes first. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class Agenda:
    def __init__(self, periods_s: Mapping[str, float], now_s: float) -> None:
        """`periods_s`: how often each kind is looked at. At first all are due, in the order given."""
        self._periods_s = periods_s
        self._due_s = dict.fromkeys(periods_s, now_s)

    def due(self, now_s: float) -> Iterator[str]:
        """The kinds that are due now. Each counts as looked at when it is taken."""
        kinds = [kind for kind, due_s in self._due_s.items() if due_s <= now_s]
        for kind in sorted(kinds, key=lambda kind: self._due_s[kind]):
            self._due_s[kind] = now_s + self._periods_s[kind]
            yield kind
