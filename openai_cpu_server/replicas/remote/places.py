"""Which replica computes which request, and by what name. Pure bookkeeping."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.replicas.wire import wire_id


class Place(NamedTuple):
    replica: str
    wire_id: str


class Places:
    """Of all live requests; those without a place wait for one."""

    def __init__(self) -> None:
        self._waiting: dict[str, Live] = {}
        self._places: dict[str, Place] = {}
        self._by_wire: dict[str, Live] = {}
        self._attempts: Counter[str] = Counter()

    @property
    def waiting(self) -> list[Live]:
        """In the order of their arrival here."""
        return list(self._waiting.values())

    def place(self, live: Live) -> Place | None:
        return self._places.get(live.request.id)

    def at(self, replica: str) -> list[Live]:
        """Those that the replica computes."""
        return [
            live for name, live in self._by_wire.items() if self._places[live.request.id].replica == replica
        ]

    def live(self, replica: str, wire: str) -> Live | None:
        """None: the replica does not compute it any more."""
        live = self._by_wire.get(wire)
        if live is None or self._places[live.request.id].replica != replica:
            return None
        return live

    def wait(self, live: Live) -> None:
        """It has no place (any more)."""
        self._leave(live.request.id)
        self._waiting[live.request.id] = live

    def put(self, live: Live, replica: str) -> Place:
        """The replica computes it from now on."""
        name = live.request.id
        self._leave(name)
        self._waiting.pop(name, None)
        place = Place(replica, wire_id(name, self._attempts[name]))
        self._attempts[name] += 1
        self._places[name], self._by_wire[place.wire_id] = place, live
        return place

    def remove(self, live: Live) -> None:
        """It lives no more."""
        self._leave(live.request.id)
        self._waiting.pop(live.request.id, None)
        self._attempts.pop(live.request.id, None)

    def _leave(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            del self._by_wire[place.wire_id]
