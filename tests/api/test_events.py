"""`GET /v1/events`: its events, their filters by key, and the steps that slow readers miss."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import msgspec
import pytest

from openai_cpu_server.api.events.broadcaster import (
    FOR_ADMINISTRATORS,
    MOST_LISTENERS,
    MOST_OF_ADMINISTRATOR,
    MOST_OF_ONE,
    RateWindow,
    StepBroadcaster,
    Subscriber,
)
from openai_cpu_server.api.events.stream import MOST_STEPS, EventFilter, EventListener, EventSchedule
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import StepTrace, TraceHolding, TracePart, TraceState, TraceWait
from openai_cpu_server.http.keys import ANYBODY, Identity, Key, Scope
from openai_cpu_server.observe.telemetry import RecentActivity
from tests.api.asgi import exchange
from tests.api.events import Event, watching
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import api, client, locked_api, new_engine, running, served
from tests.clock import Clock
from tests.fakes import FAKE_LIVE
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ANN, BOB = "key:ann", "key:bob"
FIGURES = StepFigures(sequences=1, tokens=1, predicted_ms=2.0, elapsed_ms=1.0)
STATE = TraceState(
    pool_tiles=8,
    tile_blocks=1,
    holdings=(
        TraceHolding("a/0", ANN, Priority.INTERACTIVE, ((0, 3),)),
        TraceHolding("b/0", BOB, Priority.BATCH, ((2, 2),)),
        TraceHolding("c/0", BOB, Priority.BATCH, ((3, 2), (7, 1))),
    ),
    waits=(TraceWait("d/0", "slot"),),
    cache_pinned_blocks=0,
)


def part(name: str, client: str = ANN, priority: Priority = Priority.INTERACTIVE) -> TracePart:
    return TracePart(name, client, priority, "decode", decode=1, output=1)


def identity(name: str, *scopes: Scope, models: frozenset[str] | None = None) -> Identity:
    return Identity(Key(name=name, digest=b"", scopes=frozenset(scopes), models=models), "")


class Feed:
    """Steps of an engine, which the test sends, and their listeners, on the test's clock."""

    def __init__(self) -> None:
        self.engine, self.clock = FakeEngine(), Clock(100.0)
        self.models = served(self.engine)
        self.hub = StepBroadcaster(self.models, clock=self.clock)

    def step(self, *parts: TracePart, figures: StepFigures = FIGURES) -> None:
        assert self.engine.see is not None
        self.engine.see(figures, StepTrace(parts=parts))

    def listener(self, identity: Identity = ANYBODY, kind: str = "step") -> EventListener:
        return EventListener(
            self.hub, self.models, RecentActivity(), identity, kinds=frozenset({kind}), clock=self.clock
        )


def next_event(listener: EventListener) -> Event:
    return dict(msgspec.to_builtins(listener.next()))


@pytest.fixture
def feed() -> Iterator[Feed]:
    feed = Feed()
    with feed.hub.listening(Subscriber(client="", is_administrator=True)):
        yield feed


def test_a_step_names_ones_own_requests_and_counts_others(feed: Feed) -> None:
    whole, own = feed.listener(), feed.listener(identity("ann", Scope.INFERENCE))
    assert (whole.hello().sees, own.hello().sees) == ("all", "own")
    others = [part(name, BOB, Priority.BATCH) for name in ("b/0", "c/0")]
    feed.step(part("a/0"), *others)
    (step,) = next_event(whole)["steps"]
    assert (step["model"], step["ms"], step["predicted_ms"], step["tokens"]) == ("fake", 1.0, 2.0, 1)
    assert step["at"] == pytest.approx(whole.hello().at - FIGURES.elapsed_ms / 1000)
    requests = ("a/0", "ann", "interactive"), ("b/0", "bob", "batch"), ("c/0", "bob", "batch")
    parts = [
        {"id": name, "client": client, "priority": label, "decode": 1, "output": 1, "why": "decode"}
        for name, client, label in requests
    ]
    assert step["parts"] == parts
    (step,) = next_event(own)["steps"]
    assert step["parts"] == [parts[0], {"priority": "batch", "sequences": 2, "decode": 2, "output": 2}]


def test_many_short_steps_are_merged_into_few(feed: Feed) -> None:
    listener = feed.listener()
    for _ in range(10 * MOST_STEPS):
        feed.step(part("a/0"), part("b/0", BOB))
    event = next_event(listener)
    assert len(event["steps"]) == MOST_STEPS
    assert {step["merged"] for step in event["steps"]} == {10}
    assert event["steps"][0]["parts"][0]["decode"] == event["steps"][0]["ms"] == 10
    assert "dropped" not in event or event["dropped"] == 0


def test_a_slow_reader_gets_the_number_of_dropped_steps(feed: Feed) -> None:
    listener = feed.listener()
    for _ in range(5000):  # the feed stores a thousand
        feed.step(part("a/0"))
    event = next_event(listener)
    assert event["dropped"] == 4000
    assert sum(step["merged"] for step in event["steps"]) == 1000


def test_encoding_times_of_pictures_and_sounds_are_separate(feed: Feed) -> None:
    """Merged steps and parts of other clients have both times, too."""
    listener, other = feed.listener(), feed.listener(identity("bob", Scope.INFERENCE))
    for kind in ("picture", "sound") * MOST_STEPS:
        figures = msgspec.structs.replace(FIGURES, encoding_ms=0.5, encodes=kind)
        feed.step(TracePart(kind, ANN, Priority.INTERACTIVE, kind, encoding_ms=0.5), figures=figures)
    for step in next_event(listener)["steps"]:
        assert (step["merged"], step["encoding_ms"], step["sound_ms"]) == (2, 1, 0.5)
        assert [part.get("sound_ms", 0) for part in step["parts"]] == [0, 0.5]
    (anonymous,) = next_event(other)["steps"][0]["parts"]
    assert ("id" in anonymous, anonymous["encoding_ms"], anonymous["sound_ms"]) == (False, 1, 0.5)


def test_first_tokens_and_gaps_are_measured(feed: Feed) -> None:
    """The first token comes half a second after the request, and the second one 20 ms later."""
    submitted = msgspec.structs.replace(FAKE_LIVE, id="a/0", age_s=0.5)
    feed.engine.requests = lambda: [submitted]  # type: ignore[method-assign]
    feed.step(part("a/0"))
    feed.clock.now_s += 0.02
    feed.step(part("a/0"))
    feed.clock.now_s += 4
    rates = feed.hub.pace.rates(feed.clock.now_s)
    latency = rates.priorities["interactive"]
    assert (latency.ttft_ms.count, latency.inter_token_ms.count) == (1, 1)
    assert latency.ttft_ms.p50 == pytest.approx(500, rel=0.3)
    assert latency.inter_token_ms.p50 == pytest.approx(20, rel=0.3)
    assert rates.output_tokens_per_s > 0


def test_quantiles_cover_the_last_seconds() -> None:
    pace = RateWindow(0.0)
    pace.first_token(1.0, Priority.BATCH, 60.0)
    for _ in range(100):
        pace.first_token(20.5, Priority.INTERACTIVE, 0.25)
    latencies = pace.rates(23.0).priorities
    assert latencies["batch"].ttft_ms.count == 0
    assert latencies["interactive"].ttft_ms.p50 == pytest.approx(250, rel=0.3)


def test_the_most_overdue_kind_of_event_comes_first() -> None:
    agenda = EventSchedule({"step": 1.0, "queue": 10.0}, now_s=0.0)
    kinds = [next(agenda.due(float(tick))) for tick in range(13)]
    assert kinds == ["step", "queue", *["step"] * 10, "queue"]


def test_kv_cells_of_other_clients_have_no_names() -> None:
    own, *others = EventFilter(identity("ann", Scope.INFERENCE)).holdings(STATE.holdings)
    assert (own.id, own.runs) == ("a/0", [(0, 3)])
    assert [(one.id, one.priority, one.runs) for one in others] == [(None, "batch", [(2, 3), (7, 1)])]


def test_models_that_a_key_may_not_use_do_not_exist_for_it() -> None:
    filter_ = EventFilter(identity("ann", models=frozenset({"small", "large:poet"})))
    assert filter_.has_model(("small", "team/small"))
    assert filter_.has_model(("large",))
    assert not filter_.has_model(("other",))
    assert filter_.adapter("poet@1", ("large",)) == "poet"
    assert filter_.adapter("clerk@1", ("large",)) is None


def test_late_steps_of_a_replaced_model_do_not_change_its_successors_state(feed: Feed) -> None:
    old_see, new = feed.engine.see, FakeEngine()
    assert old_see is not None
    successor = served(new).default
    feed.models.replace(feed.models.default, successor)
    feed.hub.look_for_models()
    assert feed.engine.see is None, "its engine shows no steps"
    assert new.see is not None
    new.see(FIGURES, StepTrace(parts=(part("new/0"),), state=STATE))
    old_see(FIGURES, StepTrace(parts=(part("old/0"),), state=msgspec.structs.replace(STATE, pool_tiles=1)))
    assert feed.hub.state_of(successor) == STATE
    assert [seen.shown.parts[0].id for seen in feed.hub.since(0).steps] == ["new/0"]


# -- over HTTP -----------------------------------------------------------------------------------------------


async def test_hello_comes_first_and_then_at_most_ten_events_a_second(engine: FakeEngine) -> None:
    """The engine shows its steps only while a stream is open."""
    app = api(engine)
    assert engine.see is None
    async with watching(app) as one:
        hello = await one.next()
        assert one.status == 200
        began_s = time.monotonic()
        async with watching(app) as second:
            await second.next()
        for _ in range(3):
            await one.next()
        assert time.monotonic() - began_s >= 0.2
        assert engine.see is not None
    assert (hello["type"], hello["version"], hello["sees"], hello["interval_ms"]) == ("hello", 1, "all", 100)
    assert set(hello["types"]) == {"restart", "model", "step", "queue", "request", "cache", "rate"}
    assert [(m["name"], m["state"], m["max_seqs"]) for m in hello["models"]] == [("fake", "ready", 64)]
    await eventually(lambda: engine.see is None)


async def test_a_revoked_key_or_scope_ends_its_streams(engine: FakeEngine, tmp_path: Path) -> None:
    ring = key_ring(tmp_path, ann="admin = true", bob="")
    app = locked_api(engine, ring)
    async with (
        watching(app, headers=of("ann"), types="restart") as demoted,
        watching(app, headers=of("bob"), types="step") as revoked,
    ):
        assert [(await one.next())["sees"] for one in (demoted, revoked)] == ["all", "own"]
        key_ring(tmp_path, ann="")
        ring.reload()
        while (piece := await demoted.body()) is not None:
            assert b"error" not in piece
        assert (await revoked.next())["error"]["code"] == "invalid_api_key"
    async with watching(app, headers=of("ann"), types="step,cache,rate") as again:
        hello = await again.next()
    assert (hello["sees"], hello["types"]) == ("own", ["step", "cache"]), "no rates"


async def test_one_client_cannot_take_all_streams_and_administrators_have_their_own(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """Clients open all the streams that they may, together all but the administrators'."""
    names = [f"key{number}" for number in range(1 + MOST_LISTENERS // MOST_OF_ONE)]
    ring = key_ring(tmp_path, root="admin = true", **dict.fromkeys(names, ""))
    app, root = locked_api(engine, ring), of("root")
    async with AsyncExitStack() as open_streams, client(app) as http:

        async def open_until_refused(name: str) -> int:
            num_opened = 0
            while (await http.head("/v1/events", headers=of(name))).status_code == 200:
                stream = watching(app, headers=of(name), types="step")
                await (await open_streams.enter_async_context(stream)).next()
                num_opened += 1
            return num_opened

        opened = [await open_until_refused(name) for name in names]
        assert max(opened) == MOST_OF_ONE
        assert sum(opened) == MOST_LISTENERS - FOR_ADMINISTRATORS
        assert (await http.head("/v1/events", headers=root)).status_code == 200
        assert await open_until_refused("root") == MOST_OF_ADMINISTRATOR
        async with watching(app, headers=root) as refused:
            assert b"too_many_event_streams" in (await refused.body() or b"")
        assert refused.status == 503
    async with client(app) as http:
        assert (await http.head("/v1/events", headers=root)).status_code == 200
    assert engine.see is None


async def test_a_waiting_request_is_shown_with_its_position_and_reason() -> None:
    body = {"prompt": "a", "ignore_eos": True}
    async with running(new_engine("step_s=0.05", max_seqs=1)) as engine:
        app = api(engine)
        async with (
            watching(app, types="queue,request") as one,
            exchange(app, "/v1/completions", body) as first,
            exchange(app, "/v1/completions", {**body, "priority": "batch"}) as second,
        ):
            queue = await one.until("queue", lambda queue: any(each["why"] for each in queue["waiting"]))
            (waiting,) = queue["waiting"]
            assert (waiting["position"], waiting["priority"], waiting["why"]) == (1, "batch", "slot")
            assert waiting["first_token_ms"] > 0
            assert queue["sizes"] == {
                "interactive": {"running": 1, "waiting": 0},
                "batch": {"running": 0, "waiting": 1},
            }
            assert (await one.until("request", lambda event: event["running"]))["running"]
            first.disconnect()
            second.disconnect()


async def test_steps_cells_rates_and_restarts_of_a_real_engine() -> None:
    """A request runs until a rate event counts it."""
    body = {"prompt": "abc", "ignore_eos": True}
    async with running(new_engine("step_s=0.02")) as engine:
        app = api(engine)
        async with watching(app) as one, exchange(app, "/v1/completions", body) as call:
            assert (await one.next())["restarts"] == []
            await one.until(
                "step", lambda event: any(p.get("output") for s in event["steps"] for p in s["parts"])
            )
            (cache,) = (await one.until("cache"))["models"]
            assert (cache["pool"]["blocks"], cache["pool"]["tiles"]) == (256, 256)
            rate = await one.until(
                "rate", lambda rate: rate["priorities"]["interactive"]["inter_token_ms"]["count"]
            )
            assert rate["output_tokens_per_s"] > 0
            assert engine.engine_pid is not None
            os.kill(engine.engine_pid, signal.SIGSEGV)
            restart = await one.until("restart")
            assert (restart["model"], restart["cause"], restart["restarts"]) == ("fake", "SIGSEGV", 1)
            await one.until("step", lambda event: event["steps"][-1]["at"] > restart["at"])
            call.disconnect()
        async with watching(app) as later:
            assert [past["cause"] for past in (await later.next())["restarts"]] == ["SIGSEGV"]


async def test_the_stream_is_described(http: httpx.AsyncClient) -> None:
    described = (await http.get("/openapi.json")).json()
    answer = described["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    names = [event["$ref"].rpartition("/")[2] for event in answer["schema"]["x-events"]]
    assert [described["components"]["schemas"][name]["properties"]["type"]["enum"] for name in names] == [
        [kind] for kind in ("hello", "step", "queue", "request", "cache", "rate", "model", "restart")
    ]
