"""What one listener is told: an event at a time, made when it is taken, so that none waits for a slow one."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from openai_cpu_server import __version__
from openai_cpu_server.api.access.keys import Identity
from openai_cpu_server.api.events.agenda import Agenda
from openai_cpu_server.api.events.hub import Hub
from openai_cpu_server.api.events.objects import (
    VERSION,
    Event,
    Hello,
    Restart,
    Steps,
)
from openai_cpu_server.api.events.sight import Sight
from openai_cpu_server.api.events.snapshots import Snapshots
from openai_cpu_server.api.events.steps import told_steps
from openai_cpu_server.api.options import SchedulingOptions
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.recent import Recent

INTERVAL_S = 0.1
"""Ten events a second at most."""
PERIODS_S = {
    "restart": 0.5,
    "model": 1.0,
    "step": INTERVAL_S,
    "queue": 1.0,
    "request": 1.0,
    "cache": 1.0,
    "rate": 2.0,
}
"""How often each kind is looked at. Steps get every turn that nothing else wants: half of them at least."""


class Listener:
    def __init__(
        self,
        hub: Hub,
        models: ModelRegistry,
        recent: Recent,
        identity: Identity,
        *,
        kinds: frozenset[str] = frozenset(PERIODS_S),
        scheduling: SchedulingOptions | None = None,
        has_usage: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`kinds`: those that it wants. `has_usage`: the server counts what keys use."""
        self._hub = hub
        self._clock = clock
        self._sight = Sight(identity)
        self._snapshots = Snapshots(models, recent, hub, self._sight)
        self._scheduling = scheduling
        self._has_usage = has_usage
        has_rates = self._sight.has_rates
        self._kinds = [kind for kind in PERIODS_S if kind in kinds and (has_rates or kind != "rate")]
        self._agenda = Agenda({kind: PERIODS_S[kind] for kind in self._kinds}, clock())
        self._position = hub.position
        self._wall_s = time.time() - clock()
        self._told: dict[str, Event] = {}
        """The last event of each kind."""
        self._restarts: dict[str, int] = {}
        """How many of each model it knows."""
        self._due_restarts: deque[Restart] = deque()
        self._past = self._new_restarts()
        self._makers: dict[str, Callable[[], Event | None]] = {
            "restart": self._restart,
            "model": self._snapshots.models,
            "step": self._steps,
            "queue": self._snapshots.queue,
            "request": self._snapshots.requests,
            "cache": self._snapshots.caches,
            "rate": lambda: hub.pace.rates(clock()),
        }

    def hello(self) -> Hello:
        return Hello(
            version=VERSION,
            server=__version__,
            at=round(self._wall_s + self._clock(), 3),
            sees="all" if self._sight.is_whole else "own",
            types=self._kinds,
            interval_ms=round(1000 * INTERVAL_S),
            models=self._snapshots.models().models,
            restarts=self._past,
            usage=self._has_usage,
            scheduling=self._scheduling,
        )

    def next(self) -> Event | None:
        """What is to be told now; None: there is nothing new."""
        self._hub.look_for_models()
        for kind in self._agenda.due(self._clock()):
            event = self._makers[kind]()
            if event is not None and event != self._told.get(kind):
                self._told[kind] = event
                return event
        return None

    def _steps(self) -> Event | None:
        news = self._hub.since(self._position)
        self._position = news.next
        steps = told_steps(news.steps, self._sight, wall_s=self._wall_s)
        return Steps(steps=steps, dropped=news.num_dropped) if steps or news.num_dropped else None

    def _restart(self) -> Event | None:
        self._due_restarts.extend(self._new_restarts())
        return self._due_restarts.popleft() if self._due_restarts else None

    def _new_restarts(self) -> list[Restart]:
        found: list[Restart] = []
        for model in self._snapshots.seen_models:
            status = model.engine.status()
            found += self._snapshots.restarts(model, status, self._restarts.get(model.name, 0))
            self._restarts[model.name] = status.restarts
        return sorted(found, key=lambda restart: restart.at)
