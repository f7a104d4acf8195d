"""Exchange of turns with the engine processes of one server, which share the machine's cores."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import count

from openai_cpu_server.contract.messages import Command, EngineWants, TurnBack
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.turns import CoreTurns

logger = logging.getLogger(__name__)

Send = Callable[[Command], None]


class SharedCores:
    """Cores of this machine. All methods belong to one event loop's thread and return at once."""

    def __init__(self, *, batch_floor: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.turns = CoreTurns(batch_floor=batch_floor)
        """For partners, which call `act` after each change."""
        self.clock = clock
        self._sends: dict[str, Send] = {}
        self._numbers = count(1)

    def join(self, name: str) -> CoresPartner:
        """Return one engine's part, for its `Supervisor`. Engines may share a name, as when a model is
        reloaded."""
        return CoresPartner(self, f"{name}#{next(self._numbers)}")

    @property
    def holder(self) -> str | None:
        return self.turns.holder

    # -- for partners ------------------------------------------------------------------------------------

    def __contains__(self, name: str) -> bool:
        return name in self._sends

    def enter(self, name: str, send: Send) -> None:
        self._sends[name] = send
        self.turns.join(name, self.clock())

    def leave(self, name: str) -> None:
        if self._sends.pop(name, None) is not None:
            self.turns.leave(name, self.clock())
            self.act()

    def act(self) -> None:
        decision = self.turns.decide(self.clock())
        if decision is not None:
            self._sends[decision.name](decision.command)


class CoresPartner:
    """One engine's part in the sharing. Its successive processes enter and leave."""

    def __init__(self, cores: SharedCores, name: str) -> None:
        self.name = name
        self._cores = cores
        self._used_before_s = dict.fromkeys(Priority, 0.0)
        self._loads_as: Priority | None = None

    def enter(self, send: Send) -> None:
        self._cores.enter(self.name, send)

    def leave(self) -> None:
        """Remove a dead or ending process. May be called twice."""
        self._used_before_s = {work: self.used_s(work) for work in Priority}
        self._loads_as = None
        self._cores.leave(self.name)

    def heard(self, event: EngineWants | TurnBack, *, loads_for: Priority | None) -> None:
        """Handle an event. `loads_for`: highest priority of requests that wait for the load; None: it
        loads as batch work."""
        wants = event.wants if isinstance(event, TurnBack) else event
        work = wants.work
        if wants.is_loading and work is not None:
            work = Priority.BATCH if loads_for is None else loads_for
        self._loads_as = work if wants.is_loading else None
        turns = self._cores.turns
        tell = turns.given_back if isinstance(event, TurnBack) else turns.wants
        tell(self.name, work, self._cores.clock())
        self._cores.act()

    def request_came(self, priority: Priority) -> None:
        """Make the load interactive work if it is batch work. A busy machine may have other work for
        seconds between two pieces."""
        if self._loads_as is Priority.BATCH and priority is Priority.INTERACTIVE:
            self._loads_as = priority
            self._cores.turns.wants(self.name, priority, self._cores.clock())
            self._cores.act()

    @property
    def is_waiting(self) -> bool:
        """True if it wants the turn and another engine has it."""
        return self.name in self._cores and self._cores.turns.is_waiting(self.name)

    @property
    def is_awaited(self) -> bool:
        """True if it has the turn and another engine wants it."""
        return self.name in self._cores and self._cores.turns.is_awaited(self.name)

    def used_s(self, work: Priority) -> float:
        """Time for which its processes have had the turn for this priority. Never falls."""
        cores = self._cores
        now_used_s = cores.turns.used_s(self.name, work, cores.clock()) if self.name in cores else 0.0
        return self._used_before_s[work] + now_used_s
