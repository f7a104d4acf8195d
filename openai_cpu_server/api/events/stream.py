"""Stream of `GET /v1/events`: one kind of event at a time, the most overdue first."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from openai_cpu_server import __version__
from openai_cpu_server.api.events.hub import StepBroadcaster, Subscriber
from openai_cpu_server.api.events.objects import EVENTS, VERSION, Event, Hello, Restart, Steps, name_of
from openai_cpu_server.api.events.view import EventFilter, Snapshots, step_reports
from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.route import event_source
from openai_cpu_server.api.parts import AppState
from openai_cpu_server.errors import ServerError, wrong_value
from openai_cpu_server.http.clients import Client
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.keys import INFERENCE, Identity
from openai_cpu_server.http.keys import Scope as AccessScope
from openai_cpu_server.http.options import SchedulingOptions
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.observe.recent import RecentActivity


class EventSchedule:
    def __init__(self, periods_s: Mapping[str, float], now_s: float) -> None:
        """`periods_s`: intervals of kinds, all of which are due at first, in this order."""
        self._periods_s = periods_s
        self._due_s = dict.fromkeys(periods_s, now_s)

    def due(self, now_s: float) -> Iterator[str]:
        """Yield the kinds that are due. Taking one restarts its interval."""
        kinds = [kind for kind, due_s in self._due_s.items() if due_s <= now_s]
        for kind in sorted(kinds, key=self._due_s.__getitem__):
            self._due_s[kind] = now_s + self._periods_s[kind]
            yield kind


INTERVAL_S = 0.1
PERIODS_S = {
    "restart": 0.5,
    "model": 1.0,
    "step": INTERVAL_S,
    "queue": 1.0,
    "request": 1.0,
    "cache": 1.0,
    "rate": 2.0,
}
"""Steps get every turn that no other kind needs, at least half of them."""


class EventListener:
    def __init__(
        self,
        hub: StepBroadcaster,
        models: ModelRegistry,
        recent: RecentActivity,
        identity: Identity,
        *,
        kinds: frozenset[str] = frozenset(PERIODS_S),
        scheduling: SchedulingOptions | None = None,
        has_usage: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hub = hub
        self._clock = clock
        self._filter = EventFilter(identity)
        self._snapshots = Snapshots(models, recent, hub, self._filter)
        self._scheduling = scheduling
        self._has_usage = has_usage
        has_rates = self._filter.has_rates
        self._kinds = [kind for kind in PERIODS_S if kind in kinds and (has_rates or kind != "rate")]
        self._agenda = EventSchedule({kind: PERIODS_S[kind] for kind in self._kinds}, clock())
        self._position = hub.position
        self._wall_s = time.time() - clock()
        self._told: dict[str, Event] = {}
        self._restarts: dict[str, int] = {}
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
            sees="all" if self._filter.is_whole else "own",
            types=self._kinds,
            interval_ms=round(1000 * INTERVAL_S),
            models=self._snapshots.models().models,
            restarts=self._past,
            usage=self._has_usage,
            scheduling=self._scheduling,
        )

    def next(self) -> Event | None:
        """Return the next event, or None without news."""
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
        steps = step_reports(news.steps, self._filter, wall_s=self._wall_s)
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


logger = logging.getLogger(__name__)

_KEY_S = 1.0
"""Longest time until a stream ends after its key was revoked or changed."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventRoutes:
    def __init__(self, parts: AppState) -> None:
        self._parts = parts
        self._hub = StepBroadcaster(parts.models)

    @ApiRoute(
        "GET",
        "/v1/events",
        INFERENCE,
        "Operation",
        query={
            "types": {
                "type": "string",
                "description": "only these, with commas between them: " + ", ".join(PERIODS_S),
            }
        },
        media="text/event-stream",
        events=EVENTS,
    )
    async def stream(self, request: Request) -> ASGIApp:
        """Stream what the scheduler does, as server-sent events."""
        kinds, identity = _kinds(request), context_of(request.scope).identity
        self._hub.check_room(_watcher(identity))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_HEADERS)
        return partial(self._tell, kinds)

    async def _tell(self, kinds: frozenset[str], scope: Scope, receive: Receive, send: Send) -> None:
        identity, parts = context_of(scope).identity, self._parts
        with self._hub.listening(_watcher(identity)):
            listener = EventListener(
                self._hub,
                parts.models,
                parts.watch.recent,
                identity,
                kinds=kinds,
                scheduling=parts.options.scheduling,
                has_usage=parts.jobs is not None,
            )
            told = self._messages(listener, scope)
            response = event_source(told, _HEADERS, keep_alive_s=parts.options.keep_alive_s)
            await response(scope, receive, send)

    async def _messages(self, listener: EventListener, scope: Scope) -> AsyncIterator[bytes]:
        """An event is made only when the previous one has been sent."""
        yield _encoded(listener.hello())
        context, checked_s = context_of(scope), time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL_S)
            if time.monotonic() - checked_s >= _KEY_S:
                checked_s = time.monotonic()
                try:
                    if context.identity_now(self._parts.keys) != context.identity:
                        return  # its rights are others now: who connects again sees what they allow
                except ServerError as error:
                    said = error_object(error, request_id=context.ticket.id)
                    yield events([Chunk(msgspec.json.encode(said), "error")])
                    return
            if (event := listener.next()) is not None:
                yield _encoded(event)


def _kinds(request: Request) -> frozenset[str]:
    asked = request.query_params.get("types")
    if asked is None:
        return frozenset(PERIODS_S)
    kinds = frozenset(name.strip() for name in asked.split(",") if name.strip())
    if not kinds or not kinds <= PERIODS_S.keys():
        raise wrong_value("types", f"some of {', '.join(PERIODS_S)}, with commas")
    return kinds


def _watcher(identity: Identity) -> Subscriber:
    return Subscriber(Client.of(identity, None).label, identity.may(AccessScope.ADMIN))


def _encoded(event: Event) -> bytes:
    return events([Chunk(msgspec.json.encode(event), name_of(event))])


ROOM = ApiRouter[AppState](EventRoutes)
