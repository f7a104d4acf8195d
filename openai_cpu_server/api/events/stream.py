"""Stream of events: the most overdue kind first, with names only for the listener's own requests."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from openai_cpu_server import __version__
from openai_cpu_server.api.admin.health import QueueSizes
from openai_cpu_server.api.events import schema
from openai_cpu_server.api.events.broadcaster import SeenStep, StepBroadcaster, Subscriber
from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.route import event_source
from openai_cpu_server.api.state import AppState, response_of
from openai_cpu_server.contract.engine import EngineState, EngineStatus, LiveRequest, RequestState
from openai_cpu_server.contract.media import Sound
from openai_cpu_server.contract.messages import KVStats
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import TraceHolding, TracePart, TraceState
from openai_cpu_server.errors import ServerError, wrong_value
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.keys import INFERENCE, Client, Identity, Scope
from openai_cpu_server.http.options import SchedulingOptions
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.models.registry import ModelRegistry
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import AnswerUse
from openai_cpu_server.observe.telemetry import RecentActivity

L = TypeVar("L", bound=schema.LiveSequence)
Shown = TypeVar("Shown", TracePart, TraceHolding)


@dataclass(frozen=True)
class EventFilter:
    identity: Identity

    @property
    def is_whole(self) -> bool:
        return self.identity.may(Scope.ADMIN)

    @property
    def has_rates(self) -> bool:
        return self.is_whole or self.identity.may(Scope.METRICS)

    def has_model(self, names: Iterable[str]) -> bool:
        allowed = self.identity.allowed_models
        if allowed is None:
            return True
        without_adapters = {name.rpartition(":")[0] for name in allowed}
        return any(name in allowed or name in without_adapters for name in names)

    def adapter(self, key: str | None, names: Iterable[str]) -> str | None:
        if key is None:
            return None
        name, allowed = key.partition("@")[0], self.identity.allowed_models
        is_visible = self.is_whole or allowed is None or any(f"{model}:{name}" in allowed for model in names)
        return name if is_visible else None

    def owns(self, client: str) -> bool:
        return Client.of_label(client).is_owned_by(self.identity)

    def name_of(self, client: str) -> str:
        return Client.of_label(client).shown_to(self.identity)

    def parts(self, parts: Sequence[TracePart]) -> list[schema.StepPart]:
        """Return the key's own parts, then one part per priority of others."""
        own, others = self._divided(parts)
        shown = [
            schema.StepPart(
                id=part.id,
                client=self.name_of(part.client) or None,
                priority=part.priority.label,
                why=part.why or None,
                **_sums([part]),
            )
            for part in own
        ]
        for priority, group in others:
            shown.append(schema.StepPart(priority=priority.label, sequences=len(group), **_sums(group)))
        return shown

    def holdings(self, holdings: Sequence[TraceHolding]) -> list[schema.Holding]:
        own, others = self._divided(holdings)
        return [
            *(schema.Holding(id=one.id, priority=one.priority.label, runs=list(one.runs)) for one in own),
            *(schema.Holding(priority=priority.label, runs=_united(group)) for priority, group in others),
        ]

    def _divided(self, items: Sequence[Shown]) -> tuple[list[Shown], list[tuple[Priority, list[Shown]]]]:
        own = [item for item in items if self.owns(item.client)]
        others = [item for item in items if not self.owns(item.client)]
        groups = [(priority, [item for item in others if item.priority is priority]) for priority in Priority]
        return own, [(priority, group) for priority, group in groups if group]


_COUNTS = ("prompt", "decode", "forced", "draft", "accepted", "output", "encoding_ms", "sound_ms")


def _sums(parts: Sequence[TracePart | schema.StepPart]) -> dict[str, Any]:
    return {name: sum([getattr(part, name) for part in parts]) or 0 for name in _COUNTS}


def _united(holdings: Iterable[TraceHolding]) -> list[tuple[int, int]]:
    tiles = {first + n for one in holdings for first, count in one.runs for n in range(count)}
    runs: list[tuple[int, int]] = []
    for tile in sorted(tiles):
        if runs and tile == sum(runs[-1]):
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((tile, 1))
    return runs


MOST_STEPS = 50
"""Steps per event, about one per two pixels of a minute's picture."""


def step_reports(
    seen: Sequence[SeenStep], event_filter: EventFilter, *, wall_s: float
) -> list[schema.StepReport]:
    """Return steps of allowed models. `wall_s`: Unix time at zero of the monotonic clock."""
    steps = [_report(one, event_filter, wall_s) for one in seen if event_filter.has_model(one.model.names)]
    size = -(-len(steps) // MOST_STEPS)
    if size <= 1:
        return steps
    by_model = [list(steps_of_model) for _, steps_of_model in groupby(steps, key=lambda step: step.model)]
    return [_merged(row[start : start + size]) for row in by_model for start in range(0, len(row), size)]


def _report(seen: SeenStep, event_filter: EventFilter, wall_s: float) -> schema.StepReport:
    figures = seen.figures
    return response_of(
        schema.StepReport,
        figures,
        model=seen.model.name,
        at=round(wall_s + seen.ended_s - figures.elapsed_ms / 1000, 4),
        ms=round(figures.elapsed_ms, 3),
        predicted_ms=round(figures.predicted_ms, 3),
        encoding_ms=round(figures.encoding_ms, 3) or 0,
        sound_ms=round(figures.encoding_ms, 3) or 0 if figures.encodes == Sound.kind else 0,
        interrupted=figures.is_interrupted,
        adapter=event_filter.adapter(seen.shown.adapter, seen.model.names),
        parts=event_filter.parts(seen.shown.parts),
    )


def _merged(steps: Sequence[schema.StepReport]) -> schema.StepReport:
    first = steps[0]
    if len(steps) == 1:
        return first
    parts: dict[tuple[str | None, str], list[schema.StepPart]] = {}
    for step in steps:
        for part in step.parts:
            parts.setdefault((part.id, part.priority), []).append(part)
    times = ("ms", "predicted_ms", "encoding_ms", "sound_ms")
    return msgspec.structs.replace(
        first,
        **{name: sum(getattr(step, name) for step in steps) for name in ("tokens", "padding", "preemptions")},
        **{name: round(sum(getattr(step, name) for step in steps), 3) or 0 for name in times},
        merged=len(steps),
        interrupted=any(step.interrupted for step in steps),
        parts=[
            msgspec.structs.replace(
                group[0],
                sequences=1 if name is not None else sum(part.sequences for part in group),
                **_sums(group),
            )
            for (name, _), group in parts.items()
        ],
    )


_MOST_LISTED = 100
_NO_STATE = TraceState(pool_tiles=0, tile_blocks=1, holdings=(), waits=(), cache_pinned_blocks=0)
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
"""Steps get each turn that no other kind needs, at least half."""


class EventSchedule:
    def __init__(self, periods_s: Mapping[str, float], now_s: float) -> None:
        self._periods_s = periods_s
        self._due_s = dict.fromkeys(periods_s, now_s)

    def due(self, now_s: float) -> Iterator[str]:
        """Yield due kinds. Taking one restarts its interval."""
        kinds = [kind for kind, due_s in self._due_s.items() if due_s <= now_s]
        for kind in sorted(kinds, key=self._due_s.__getitem__):
            self._due_s[kind] = now_s + self._periods_s[kind]
            yield kind


@dataclass
class EventListener:
    hub: StepBroadcaster
    models: ModelRegistry
    recent: RecentActivity
    identity: Identity
    _: KW_ONLY
    kinds: frozenset[str] = frozenset(PERIODS_S)
    scheduling: SchedulingOptions | None = None
    has_usage: bool = False
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.filter = EventFilter(self.identity)
        has_rates = self.filter.has_rates
        self._kinds = [kind for kind in PERIODS_S if kind in self.kinds and (has_rates or kind != "rate")]
        self._agenda = EventSchedule({kind: PERIODS_S[kind] for kind in self._kinds}, self.clock())
        self._position = self.hub.position
        self._wall_s = time.time() - self.clock()
        self._sent: dict[str, schema.Event] = {}
        self._restarts: dict[str, int] = {}
        self._due_restarts: deque[schema.Restart] = deque()
        self._past = self._new_restarts()
        self._makers: dict[str, Callable[[], schema.Event | None]] = {
            "restart": self._restart,
            "model": self._models,
            "step": self._steps,
            "queue": self._queue,
            "request": self._requests,
            "cache": self._caches,
            "rate": lambda: self.hub.pace.rates(self.clock()),
        }

    def hello(self) -> schema.Hello:
        return schema.Hello(
            version=schema.VERSION,
            server=__version__,
            at=round(self._wall_s + self.clock(), 3),
            sees="all" if self.filter.is_whole else "own",
            types=self._kinds,
            interval_ms=round(1000 * INTERVAL_S),
            models=self._models().models,
            restarts=self._past,
            usage=self.has_usage,
            scheduling=self.scheduling,
        )

    def next(self) -> schema.Event | None:
        self.hub.look_for_models()
        for kind in self._agenda.due(self.clock()):
            event = self._makers[kind]()
            if event is not None and event != self._sent.get(kind):
                self._sent[kind] = event
                return event
        return None

    def _restart(self) -> schema.Event | None:
        self._due_restarts.extend(self._new_restarts())
        return self._due_restarts.popleft() if self._due_restarts else None

    def _new_restarts(self) -> list[schema.Restart]:
        found: list[schema.Restart] = []
        for model in self._seen_models:
            status, earlier = model.engine.status(), self._restarts.get(model.name, 0)
            found += [
                schema.Restart(
                    model=model.name,
                    at=round(time.time() - death.age_s, 3),
                    cause=death.cause,
                    reason=death.message,
                    restarts=number,
                )
                for number, death in enumerate(status.deaths, status.restarts - len(status.deaths) + 1)
                if number > earlier
            ]
            self._restarts[model.name] = status.restarts
        return sorted(found, key=lambda restart: restart.at)

    def _models(self) -> schema.Models:
        states = [_model_state(model) for model in self._seen_models]
        return schema.Models(models=states, memory_bytes=self.models.status().rss_bytes)

    def _steps(self) -> schema.Event | None:
        news = self.hub.since(self._position)
        self._position = news.next
        steps = step_reports(news.steps, self.filter, wall_s=self._wall_s)
        return schema.Steps(steps=steps, dropped=news.num_dropped) if steps or news.num_dropped else None

    def _queue(self) -> schema.Queue:
        seen = [(model, model.engine.status()) for model in self._seen_models]
        sizes = {
            label: QueueSizes(
                sum(status.running[label] for _, status in seen),
                sum(status.waiting[label] for _, status in seen),
            )
            for label in (priority.label for priority in Priority)
        }
        waiting = [one for model, status in seen for one in self._waiting(model, status)]
        return schema.Queue(sizes=sizes, waiting=waiting[:_MOST_LISTED])

    def _requests(self) -> schema.Requests:
        running = (
            self._shown(
                schema.Running,
                model,
                live,
                inputs=live.num_inputs,
                inputs_done=None if live.num_inputs is None else live.num_embedded,
            )
            for model in self._seen_models
            for live in self._own_requests(model, RequestState.RUNNING)
        )
        return schema.Requests(running=list(islice(running, _MOST_LISTED)))

    def _caches(self) -> schema.Caches:
        models = [
            _cache(model, kv, self.hub.state_of(model) or _NO_STATE, self.filter)
            for model in self._seen_models
            if (kv := model.engine.kv_stats()) is not None
        ]
        return schema.Caches(models=models, answers=self._answers() if self.filter.is_whole else None)

    @property
    def _seen_models(self) -> list[ServedModel]:
        return [model for model in self.models.current if self.filter.has_model(model.names)]

    def _own_requests(self, model: ServedModel, state: RequestState) -> list[LiveRequest]:
        live = self.hub.requests_of(model)
        return [one for one in live if one.state is state and self.filter.owns(one.client)]

    def _waiting(self, model: ServedModel, status: EngineStatus) -> list[schema.Waiting]:
        state = self.hub.state_of(model) or _NO_STATE
        whys = {wait.id: wait.why for wait in state.waits}
        is_ready = status.state is EngineState.READY
        found = self._own_requests(model, RequestState.WAITING)
        found.sort(key=lambda live: (live.position is None, live.position or 0))
        return [
            self._shown(
                schema.Waiting,
                model,
                live,
                first_token_ms=None if live.first_token_ms is None else round(live.first_token_ms, 1),
                why=whys.get(live.id) if is_ready else "engine",
            )
            for live in found[:_MOST_LISTED]
        ]

    def _shown(self, kind: type[L], model: ServedModel, live: LiveRequest, **others: object) -> L:
        return response_of(
            kind,
            live,
            model=model.name,
            priority=live.priority.label,
            client=self.filter.name_of(live.client),
            age_s=round(live.age_s, 2),
            **others,
        )

    def _answers(self) -> schema.Answers | None:
        counts = self.recent.answers
        if not counts:
            return None
        hits, misses = counts[AnswerUse.EXACT] + counts[AnswerUse.SEMANTIC], counts[AnswerUse.MISS]
        return schema.Answers(
            exact=counts[AnswerUse.EXACT],
            semantic=counts[AnswerUse.SEMANTIC],
            misses=misses,
            bypasses=counts[AnswerUse.BYPASS],
            hit_rate=round(hits / (hits + misses), 4) if hits + misses else None,
        )


def _model_state(model: ServedModel) -> schema.ModelState:
    status, info = model.engine.status(), model.engine.info
    return response_of(
        schema.ModelState,
        status,
        name=model.name,
        kind=model.kind.value,
        quantisation=model.quantisation,
        context_length=info.context_limit if info else None,
        max_seqs=info.max_seqs if info else None,
        threads=info.threads if info else None,
        threads_computing=status.threads_computing if info else None,
        memory_bytes=status.engine_rss_bytes,
    )


def _cache(
    model: ServedModel, kv: KVStats, state: TraceState, event_filter: EventFilter
) -> schema.ModelCache:
    pool = response_of(
        schema.Pool,
        kv,
        blocks=kv.pool_blocks,
        used_blocks=kv.pool_blocks_used,
        shared_blocks=kv.pool_blocks_shared,
        tiles=state.pool_tiles,
        tile_blocks=state.tile_blocks,
        holdings=event_filter.holdings(state.holdings),
    )
    prompts = response_of(
        schema.Prompts,
        kv,
        block_tokens=kv.cache_block_tokens,
        capacity_blocks=kv.cache_capacity_blocks,
        blocks=kv.cache_blocks,
        pinned_blocks=state.cache_pinned_blocks,
        evictions=kv.cache_evictions,
        hit_rate=round(kv.cached_tokens / kv.prompt_tokens, 4) if kv.prompt_tokens else None,
    )
    return schema.ModelCache(model=model.name, pool=pool, prompts=prompts if event_filter.is_whole else None)


logger = logging.getLogger(__name__)

_KEY_S = 1.0
"""Longest time until a stream ends after its key was changed."""
_HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


class EventRoutes:
    def __init__(self, state: AppState) -> None:
        self._state = state
        self._hub = StepBroadcaster(state.models)

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
        events=schema.EVENTS,
    )
    async def stream(self, request: Request) -> ASGIApp:
        """Stream what the scheduler does, as server-sent events."""
        kinds, identity = _kinds(request), context_of(request.scope).identity
        self._hub.check_room(_subscriber(identity))
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=_HEADERS)
        return partial(self._emit, kinds)

    async def _emit(self, kinds: frozenset[str], scope: AsgiScope, receive: Receive, send: Send) -> None:
        identity, state = context_of(scope).identity, self._state
        with self._hub.listening(_subscriber(identity)):
            listener = EventListener(
                self._hub,
                state.models,
                state.telemetry.recent,
                identity,
                kinds=kinds,
                scheduling=state.options.scheduling,
                has_usage=state.jobs is not None,
            )
            messages = self._messages(listener, scope)
            response = event_source(messages, _HEADERS, keep_alive_s=state.options.keep_alive_s)
            await response(scope, receive, send)

    async def _messages(self, listener: EventListener, scope: AsgiScope) -> AsyncIterator[bytes]:
        """Make an event only when the previous one has been sent."""
        yield _encoded(listener.hello())
        context, checked_s = context_of(scope), time.monotonic()
        while True:
            await asyncio.sleep(INTERVAL_S)
            if time.monotonic() - checked_s >= _KEY_S:
                checked_s = time.monotonic()
                try:
                    if context.identity_now(self._state.keys) != context.identity:
                        return  # a new connection sees what the changed key allows
                except ServerError as error:
                    failure = error_object(error, request_id=context.request_log.id)
                    yield events([Chunk(msgspec.json.encode(failure), "error")])
                    return
            if (event := listener.next()) is not None:
                yield _encoded(event)


def _kinds(request: Request) -> frozenset[str]:
    names = request.query_params.get("types")
    if names is None:
        return frozenset(PERIODS_S)
    kinds = frozenset(name.strip() for name in names.split(",") if name.strip())
    if not kinds or not kinds <= PERIODS_S.keys():
        raise wrong_value("types", f"some of {', '.join(PERIODS_S)}, with commas")
    return kinds


def _subscriber(identity: Identity) -> Subscriber:
    return Subscriber(Client.of(identity, None).label, identity.may(Scope.ADMIN))


def _encoded(event: schema.Event) -> bytes:
    return events([Chunk(msgspec.json.encode(event), str(event.__struct_config__.tag))])


ROUTER = ApiRouter[AppState](EventRoutes)
