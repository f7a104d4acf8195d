"""`GET /v1/events`: what those who watch are told, who may see what, and what slow readers miss."""

from __future__ import annotations

import os
import signal
import time
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import httpx
import msgspec
import pytest

from openai_cpu_server.api.events.hub import (
    FOR_ADMINISTRATORS,
    MOST_LISTENERS,
    MOST_OF_ADMINISTRATOR,
    MOST_OF_ONE,
    RateWindow,
    StepFeed,
    Watcher,
)
from openai_cpu_server.api.events.stream import EventSchedule
from openai_cpu_server.api.events.view import MOST_STEPS, EventFilter
from openai_cpu_server.contract.messages import StepFigures
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.step import ShownHolding, ShownPart, ShownState, ShownWait, StepTrace
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.http.keys import Identity, Key, Scope
from tests.api.asgi import exchange
from tests.api.events import watching
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import api, client, locked_api, new_engine, running, served
from tests.api.talking import error_of
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

ANN, BOB = "key:ann", "key:bob"
FIGURES = StepFigures(sequences=1, tokens=1, predicted_ms=2.0, elapsed_ms=1.0)
STATE = ShownState(
    pool_tiles=8,
    tile_blocks=1,
    holdings=(
        ShownHolding("a/0", ANN, Priority.INTERACTIVE, ((0, 3),)),
        ShownHolding("b/0", BOB, Priority.BATCH, ((2, 2),)),
        ShownHolding("c/0", BOB, Priority.BATCH, ((3, 2), (7, 1))),
    ),
    waits=(ShownWait("d/0", "slot"),),
    cache_pinned_blocks=0,
)


def part(name: str, client: str = ANN, priority: Priority = Priority.INTERACTIVE) -> ShownPart:
    return ShownPart(name, client, priority, "decode", decode=1, output=1)


def tell(engine: FakeEngine, *parts: ShownPart, state: ShownState | None = None) -> None:
    assert engine.see is not None
    engine.see(FIGURES, StepTrace(parts=parts, state=state))


async def test_hello_comes_first_and_says_what_will_be_told(engine: FakeEngine) -> None:
    async with watching(api(engine)) as one:
        hello = await one.next()
        assert one.status == 200
    assert (hello["type"], hello["version"], hello["sees"], hello["interval_ms"]) == ("hello", 1, "all", 100)
    assert set(hello["types"]) == {"restart", "model", "step", "queue", "request", "cache", "rate"}
    assert [(m["name"], m["state"], m["max_seqs"]) for m in hello["models"]] == [("fake", "ready", 64)]


async def test_the_engine_tells_steps_only_while_somebody_listens(engine: FakeEngine) -> None:
    app = api(engine)
    assert engine.see is None
    async with watching(app) as first:
        await first.next()
        async with watching(app) as second:
            await second.next()
        assert engine.see is not None
    await eventually(lambda: engine.see is None)


async def test_a_step_is_told_with_who_was_in_it(engine: FakeEngine) -> None:
    async with watching(api(engine), types="step") as one:
        await one.next()
        tell(engine, part("a/0"), part("b/0", BOB, Priority.BATCH))
        told = await one.next()
    (step,) = told["steps"]
    assert (step["model"], step["ms"], step["predicted_ms"], step["tokens"]) == ("fake", 1.0, 2.0, 1)
    assert abs(step["at"] - time.time()) < 20
    assert step["parts"] == [
        {
            "id": name,
            "client": name_of_client,
            "priority": priority,
            "decode": 1,
            "output": 1,
            "why": "decode",
        }
        for name, name_of_client, priority in [("a/0", "ann", "interactive"), ("b/0", "bob", "batch")]
    ]


async def test_steps_of_a_tenth_of_a_second_come_in_one_event_and_many_short_ones_as_few(
    engine: FakeEngine,
) -> None:
    async with watching(api(engine), types="step") as one:
        await one.next()
        for _ in range(10 * MOST_STEPS):
            tell(engine, part("a/0"), part("b/0", BOB))
        told = await one.next()
    assert len(told["steps"]) == MOST_STEPS
    assert {step["merged"] for step in told["steps"]} == {10}
    assert told["steps"][0]["parts"][0]["decode"] == told["steps"][0]["ms"] == 10
    assert told["dropped"] == 0


async def test_pictures_and_sounds_that_are_encoded_are_told_apart(engine: FakeEngine) -> None:
    """Also in steps that come together, and where they are others'."""
    async with watching(api(engine), types="step") as one:
        await one.next()
        assert engine.see is not None
        shown = {
            kind: ShownPart(kind, ANN, Priority.INTERACTIVE, kind, encoding_ms=0.5)
            for kind in ("picture", "sound")
        }
        for kind in [*shown] * MOST_STEPS:
            figures = msgspec.structs.replace(FIGURES, encoding_ms=0.5, encodes=kind)
            engine.see(figures, StepTrace(parts=(shown[kind],)))
        told = await one.next()
    for step in told["steps"]:
        assert (step["merged"], step["encoding_ms"], step["sound_ms"]) == (2, 1, 0.5)
        assert [part.get("sound_ms", 0) for part in step["parts"]] == [0, 0.5]
    (anonymous,) = EventFilter(identity("bob", Scope.INFERENCE)).parts(list(shown.values()))
    assert (anonymous.id, anonymous.encoding_ms, anonymous.sound_ms) == (None, 1, 0.5)


async def test_a_reader_who_does_not_keep_up_is_told_how_much_it_has_missed(engine: FakeEngine) -> None:
    async with watching(api(engine), types="step") as one:
        await one.next()
        for _ in range(5000):  # meanwhile it reads nothing, and no more than a thousand are kept
            tell(engine, part("a/0"))
        told = await one.next()
    assert told["dropped"] == 4000
    assert sum(step["merged"] for step in told["steps"]) == 1000


async def test_no_more_than_ten_events_a_second(engine: FakeEngine) -> None:
    async with watching(api(engine)) as one:
        await one.next()
        began = time.monotonic()
        for _ in range(8):
            tell(engine, part("a/0"), state=STATE)
            await one.next()
        assert time.monotonic() - began >= 0.7


async def test_other_keys_see_their_own_requests_and_others_only_as_counts(
    engine: FakeEngine, tmp_path: Path
) -> None:
    app = locked_api(engine, key_ring(tmp_path, ann="", root="admin = true"))
    async with (
        watching(app, headers=of("ann"), types="step,cache,rate") as own,
        watching(app, headers=of("root"), types="step,cache,rate") as whole,
    ):
        hello = await own.next()
        assert (hello["sees"], hello["types"]) == ("own", ["step", "cache"])
        assert (await whole.next())["sees"] == "all"
        tell(engine, part("a/0"), part("b/0", BOB, Priority.BATCH), part("c/0", BOB, Priority.BATCH))
        (seen,) = (await own.until("step"))["steps"]
        (all_of_it,) = (await whole.until("step"))["steps"]
    assert [part.get("id") for part in all_of_it["parts"]] == ["a/0", "b/0", "c/0"]
    assert seen["parts"][1:] == [{"priority": "batch", "sequences": 2, "decode": 2, "output": 2}]
    assert "bob" not in str(seen)


def identity(name: str, *scopes: Scope, models: frozenset[str] | None = None) -> Identity:
    return Identity(Key(name=name, digest=b"", scopes=frozenset(scopes), models=models), "")


def test_the_cells_of_others_have_no_names_but_what_is_shared_shows() -> None:
    own, *others = EventFilter(identity("ann", Scope.INFERENCE)).holdings(STATE.holdings)
    assert (own.id, own.runs) == ("a/0", [(0, 3)])
    assert [(one.id, one.priority, one.runs) for one in others] == [(None, "batch", [(2, 3), (7, 1)])]


def test_models_that_a_key_may_not_use_do_not_exist_for_it() -> None:
    sight = EventFilter(identity("ann", models=frozenset({"small", "large:poet"})))
    assert sight.has_model(("small", "team/small"))
    assert sight.has_model(("large",))
    assert not sight.has_model(("other",))
    assert sight.adapter("poet@1", ("large",)) == "poet"
    assert sight.adapter("clerk@1", ("large",)) is None


def test_a_model_that_was_replaced_shows_no_more_and_its_successors_state_stays() -> None:
    old, new = FakeEngine(), FakeEngine()
    models, successors = served(old), served(new)
    hub = StepFeed(models)
    with hub.listening(Watcher(client="", is_administrator=True)):
        late = old.see
        assert late is not None
        models.replace(models.default, successors.default)
        hub.look_for_models()
        assert old.see is None, "its engine shows steps for nobody"
        tell(new, part("new/0"), state=STATE)
        late(FIGURES, StepTrace(parts=(part("old/0"),), state=msgspec.structs.replace(STATE, pool_tiles=1)))
        assert hub.state_of(successors.default) == STATE
        assert [seen.shown.parts[0].id for seen in hub.since(0).steps] == ["new/0"]
    assert new.see is None


async def test_a_key_that_is_taken_back_ends_its_streams(engine: FakeEngine, tmp_path: Path) -> None:
    ring = key_ring(tmp_path, ann="", bob="")
    async with watching(locked_api(engine, ring), headers=of("ann"), types="step") as one:
        await one.next()
        key_ring(tmp_path, bob="")
        ring.reload()
        assert (await one.next())["error"]["code"] == "invalid_api_key"


async def test_a_key_that_loses_a_scope_ends_its_streams(engine: FakeEngine, tmp_path: Path) -> None:
    ring = key_ring(tmp_path, ann="admin = true")
    app = locked_api(engine, ring)
    async with watching(app, headers=of("ann"), types="restart") as one:
        assert (await one.next())["sees"] == "all"
        key_ring(tmp_path, ann="")
        ring.reload()
        with anyio.fail_after(DEADLINE_S):
            while await one.body() is not None:
                pass
    async with watching(app, headers=of("ann")) as again:
        assert (await again.next())["sees"] == "own"


@pytest.mark.parametrize("types", ["", "steps", "step,nothing", ","])
async def test_unknown_types_are_refused(http: httpx.AsyncClient, types: str) -> None:
    refused = await http.get("/v1/events", params={"types": types})
    assert refused.status_code == 400
    assert error_of(refused)["param"] == "types"


async def test_one_client_may_not_take_all_streams(engine: FakeEngine) -> None:
    app = api(engine)
    streams = [watching(app, types="step") for _ in range(MOST_OF_ADMINISTRATOR)]
    async with client(app) as http:
        for stream in streams:
            await (await stream.__aenter__()).next()
        async with watching(app) as refused:
            body = await refused.body()
        assert refused.status == 503
        assert b"too_many_event_streams" in (body or b"")
        for stream in streams:
            await stream.__aexit__(None, None, None)
        assert (await http.head("/v1/events")).status_code == 200
    assert engine.see is None


async def test_ordinary_keys_cannot_keep_an_administrator_out(engine: FakeEngine, tmp_path: Path) -> None:
    """Each takes what it gets, together all that there is for them."""
    names = [f"key{number}" for number in range(1 + MOST_LISTENERS // MOST_OF_ONE)]
    ring = key_ring(tmp_path, root="admin = true", **dict.fromkeys(names, ""))
    app, root = locked_api(engine, ring), of("root")
    async with AsyncExitStack() as open_streams, client(app) as http:

        async def opened_by(name: str) -> int:
            """Opens streams until the first is refused."""
            num_opened = 0
            while (await http.head("/v1/events", headers=of(name))).status_code == 200:
                stream = watching(app, headers=of(name), types="step")
                await (await open_streams.enter_async_context(stream)).next()
                num_opened += 1
            return num_opened

        opened = [await opened_by(name) for name in names]
        assert max(opened) == MOST_OF_ONE
        assert sum(opened) == MOST_LISTENERS - FOR_ADMINISTRATORS
        assert (await http.head("/v1/events", headers=root)).status_code == 200
        assert await opened_by("root") == MOST_OF_ADMINISTRATOR


async def test_who_waits_is_told_with_place_and_reason_and_who_runs_can_be_ended() -> None:
    app_engine = new_engine("step_s=0.02", max_seqs=1)
    async with running(app_engine) as engine:
        app, body = api(engine), {"prompt": "a", "ignore_eos": True}
        async with (
            watching(app, types="queue,request") as one,
            exchange(app, "/v1/completions", body) as first,
            exchange(app, "/v1/completions", {**body, "priority": "batch"}) as second,
            client(app) as http,
        ):
            while not (queue := await one.until("queue"))["waiting"] or queue["waiting"][0]["why"] is None:
                pass
            (waiting,) = queue["waiting"]
            assert (waiting["position"], waiting["priority"], waiting["why"]) == (1, "batch", "slot")
            assert waiting["first_token_ms"] > 0
            assert queue["sizes"] == {
                "interactive": {"running": 1, "waiting": 0},
                "batch": {"running": 0, "waiting": 1},
            }
            (running_one,) = (await one.until("request"))["running"]
            assert (await http.delete(f"/v1/requests/{running_one['id']}")).status_code == 200
            assert b"request_cancelled" in (await first.chunk() or b"")
            second.disconnect()


async def test_steps_cells_rates_and_restarts_of_a_real_engine(process: EngineClient) -> None:
    app = api(process)
    async with watching(app) as one, client(app) as http:
        assert (await one.next())["restarts"] == []
        await http.post("/v1/completions", json={"prompt": "abc", "max_tokens": 40, "ignore_eos": True})
        told = await one.until("step")
        assert sum(part.get("output", 0) for step in told["steps"] for part in step["parts"]) > 0
        (cache,) = (await one.until("cache"))["models"]
        assert (cache["pool"]["blocks"], cache["pool"]["tiles"]) == (256, 256)
        while not (rate := await one.until("rate"))["priorities"]["interactive"]["ttft_ms"]["count"]:
            pass
        assert rate["output_tokens_per_s"] > 0
        assert rate["priorities"]["interactive"]["inter_token_ms"]["count"] > 30
        assert process.engine_pid is not None
        os.kill(process.engine_pid, signal.SIGSEGV)
        restart = await one.until("restart")
        assert (restart["model"], restart["cause"], restart["restarts"]) == ("fake", "SIGSEGV", 1)
        await eventually(lambda: process.state.value == "ready")
        await http.post("/v1/completions", json={"prompt": "abd", "max_tokens": 2})
        await one.until("step")  # the new process tells, too
    async with watching(app) as later:
        assert [past["cause"] for past in (await later.next())["restarts"]] == ["SIGSEGV"]


def test_what_is_overdue_for_longest_is_told_first() -> None:
    agenda = EventSchedule({"step": 1.0, "queue": 10.0}, now_s=0.0)
    told = [next(agenda.due(float(tick))) for tick in range(13)]
    assert told == ["step", "queue", *["step"] * 10, "queue"]


def test_quantiles_are_of_the_last_seconds() -> None:
    pace = RateWindow(0.0)
    pace.first_token(1.0, Priority.BATCH, 60.0)
    for _ in range(100):
        pace.first_token(20.5, Priority.INTERACTIVE, 0.25)
    told = pace.rates(23.0).priorities
    assert told["batch"].ttft_ms.count == 0
    assert told["interactive"].ttft_ms.p50 == pytest.approx(250, rel=0.3)


async def test_the_stream_is_described(http: httpx.AsyncClient) -> None:
    described = (await http.get("/openapi.json")).json()
    answer = described["paths"]["/v1/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    names = [event["$ref"].rpartition("/")[2] for event in answer["schema"]["x-events"]]
    assert [described["components"]["schemas"][name]["properties"]["type"]["enum"] for name in names] == [
        [kind] for kind in ("hello", "step", "queue", "request", "cache", "rate", "model", "restart")
    ]
