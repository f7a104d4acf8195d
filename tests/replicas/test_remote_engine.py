"""An engine over fake replicas: its requests when replicas come, die, drain or send wrong messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import anyio
import anyio.lowlevel
import msgspec
import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.media import PictureSize
from openai_cpu_server.contract.messages import CancelRequest, ClearCache, MeasureMedia, QueuePlace, Submit
from openai_cpu_server.contract.model_info import Adapter, ModelKind
from openai_cpu_server.contract.replica import Forecast, HeldUpdate, block_hashes
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.errors import (
    AdapterFailed,
    AdapterNotFound,
    EngineUnavailable,
    GenerationFailed,
    QueueFull,
    RequestCancelled,
)
from openai_cpu_server.replicas.remote.adapters import SETTLED_S
from openai_cpu_server.replicas.remote.engine import RemoteEngine
from openai_cpu_server.replicas.remote.session import ReplicaSession
from openai_cpu_server.replicas.wire import CancelCall, EndReason, HostReport, ReplicaNews, RequestEnd
from tests.fakes import FAKE_INFO, FAKE_LIVE
from tests.replicas.fake_replica import STATUS, FakeReplica, busy, expected
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio

PIRATE = Adapter(name="pirate", path="pirate.gguf", digest="0" * 64)
FOREIGN = msgspec.structs.replace(FAKE_LIVE, id="foreign/0", priority=Priority.BATCH)
"""Request of another API process."""


class Cluster:
    def __init__(self, *, lease_s: float = 60.0, max_queue: int = 100) -> None:
        self.now_s = 0.0
        self.spent_ms: Counter[str] = Counter()
        self.engine = RemoteEngine(
            max_queue=max_queue,
            lease_s=lease_s,
            clock=lambda: self.now_s,
            random=Random(1),
            spent=self.spent_ms.update,
        )
        self.replicas: dict[str, FakeReplica] = {}
        self._readers: set[asyncio.Task[str]] = set()

    def start(self, **replicas: FakeReplica) -> None:
        self.replicas.update(replicas)
        self.engine.set_replicas(dict(self.replicas))

    def remove(self, name: str) -> FakeReplica:
        replica = self.replicas.pop(name)
        self.engine.set_replicas(dict(self.replicas))
        return replica

    def submit(self, *requests: GenerationRequest) -> asyncio.Task[str]:
        task = asyncio.create_task(self._read(*requests))
        self._readers.add(task)
        return task

    async def _read(self, *requests: GenerationRequest) -> str:
        async with self.engine.generate(requests) as generation:
            return "".join([event.text async for event in generation])

    async def run_until_done(self, *tasks: asyncio.Task[str]) -> list[str]:
        with anyio.fail_after(DEADLINE_S):
            while not all(task.done() for task in tasks):
                for replica in self.replicas.values():
                    replica.step()
                await settle()
        return [task.result() for task in tasks]

    async def submit_each(self, *requests: GenerationRequest) -> list[asyncio.Task[str]]:
        tasks = [self.submit(one) for one in requests]
        await settle()
        return tasks

    async def step(self, name: str) -> None:
        self.replicas[self.holder(name)].step()
        await settle()

    async def notify(self, **forecasts: Forecast) -> None:
        for name, replica in self.replicas.items():
            replica.forecast = forecasts.get(name, replica.forecast)
            replica.send_state()
        await settle()

    def holder(self, name: str) -> str:
        (holder,) = [
            replica
            for replica, fake in self.replicas.items()
            if any(one.startswith(name) for one in fake.live)
        ]
        return holder


@asynccontextmanager
async def cluster(num: int = 2, **options: float) -> AsyncIterator[Cluster]:
    fleet = Cluster(**options)  # type: ignore[arg-type]
    running = asyncio.create_task(fleet.engine.run())
    try:
        fleet.start(**{f"r{number}": FakeReplica() for number in range(num)})
        if num:
            await eventually(lambda: fleet.engine.state is EngineState.READY)
            await settle()
        yield fleet
    finally:
        running.cancel()
        await fleet.engine.close()


async def settle() -> None:
    for _ in range(12):
        await anyio.lowlevel.checkpoint()


async def test_long_prompts_are_sent_in_several_batches() -> None:
    """A single encoding of all prompts would delay the event loop."""
    replica = FakeReplica()
    session = ReplicaSession(
        "r0", replica, "me", lambda *_: None, lambda *_: None, lease_s=60.0, clock=lambda: 0.0
    )
    session.send(*(Submit(request=request(f"a{number}", prompt=30_000)) for number in range(7)))
    await eventually(lambda: sum(map(len, replica.batches)) == 7)
    session.leave()
    assert [len(batch) for batch in replica.batches] == [3, 3, 1]


async def test_a_picture_is_measured_by_any_replica_that_can() -> None:
    size = PictureSize(3, 2)
    async with cluster(2) as fleet:
        measuring = asyncio.create_task(fleet.engine.shapes([size, size]))
        await settle()
        for replica in fleet.replicas.values():
            assert MeasureMedia((size,)) in replica.orders
            replica.die()
        newcomer = FakeReplica()
        newcomer.sees = True
        fleet.start(new=newcomer)
        with anyio.fail_after(DEADLINE_S):
            assert await measuring == (((7,),), ((7,),))
            assert await fleet.engine.shapes([size]) == (((7,),),), "the size is measured once"
        assert len([order for order in newcomer.orders if isinstance(order, MeasureMedia)]) == 1
        unknown = asyncio.create_task(fleet.engine.shapes([PictureSize(4, 4)]))
        newcomer.sees = False
        await settle()
    with pytest.raises(GenerationFailed):
        await unknown


async def test_requests_spread_over_replicas_and_choices_of_a_call_share_one() -> None:
    async with cluster(2) as fleet:
        calls = await fleet.submit_each(*(request(f"{i}", output=2) for i in range(6)))
        assert {len(replica.live) for replica in fleet.replicas.values()} == {3}
        choices = fleet.submit(request("a/0", output=3), request("a/1", output=3))
        await settle()
        assert fleet.holder("a/0") == fleet.holder("a/1")
        await fleet.run_until_done(*calls, choices)


@pytest.mark.parametrize("lose", [FakeReplica.die, FakeReplica.send_garbage], ids=["death", "garbage"])
@pytest.mark.parametrize("tokens_before", [0, 1, 3])
async def test_a_stream_survives_its_replica(tokens_before: int, lose: Callable[[FakeReplica], None]) -> None:
    one = request("a", output=6)
    async with cluster(2) as fleet:
        (call,) = await fleet.submit_each(one)
        holder = fleet.holder("a")
        for _ in range(tokens_before):
            fleet.replicas[holder].step()
        await settle()
        lose(fleet.replicas[holder])
        fleet.remove(holder)
        await settle()
        (replayed,) = fleet.replicas[fleet.holder("a")].submitted()
        assert len(replayed.output) == tokens_before
        assert await fleet.run_until_done(call) == [expected(one)]
        assert fleet.engine.totals.output_tokens == 6
        assert fleet.engine.status().restarts == 1
        assert fleet.engine.status().last_death is not None


async def test_late_events_of_a_replica_that_was_given_up_are_ignored() -> None:
    one = request("a", output=6)
    async with cluster(1, lease_s=0.08) as fleet:
        (call,) = await fleet.submit_each(one)
        cut_off = fleet.replicas["r0"]
        cut_off.step()
        await settle()
        cut_off.is_deaf = True
        fleet.start(r1=FakeReplica())
        await eventually(lambda: fleet.replicas["r1"].live)
        for _ in range(3):
            cut_off.step()
        fleet.replicas["r1"].step()
        assert await fleet.run_until_done(call) == [expected(one)]


async def test_without_a_replica_requests_wait_for_the_next_and_interactive_ones_go_first() -> None:
    one, late = request("a", output=4, priority=Priority.BATCH), request("b", output=2)
    async with cluster(1, max_queue=1) as fleet:
        calls = await fleet.submit_each(one)
        fleet.remove("r0").die()
        await eventually(lambda: fleet.engine.state is EngineState.RESTARTING)
        calls += await fleet.submit_each(late)
        assert fleet.engine.status().waiting == {"interactive": 1, "batch": 1}
        with pytest.raises(QueueFull):
            fleet.engine.generate([request("c")])
        fleet.start(r1=FakeReplica())
        await eventually(lambda: len(fleet.replicas["r1"].live) == 2)
        assert [each.request.priority for each in fleet.replicas["r1"].submitted()] == list(Priority)
        assert await fleet.run_until_done(*calls) == [expected(one), expected(late)]


async def test_a_removed_replica_continues_until_another_is_ready() -> None:
    one, two = request("a", output=4), request("b", output=8)
    async with cluster(1) as fleet:
        calls = await fleet.submit_each(one, two)
        leaving = fleet.remove("r0")
        for _ in range(4):
            leaving.step()
        await settle()
        assert calls[0].result() == expected(one)
        fleet.start(r1=FakeReplica())
        await eventually(lambda: fleet.replicas["r1"].live)
        assert await fleet.run_until_done(calls[1]) == [expected(two)]
        assert fleet.engine.status().restarts == 0


async def test_a_request_that_a_replica_returns_is_computed_by_another() -> None:
    one = request("a", output=6)
    async with cluster(2) as fleet:
        (call,) = await fleet.submit_each(one)
        holder = fleet.holder("a")
        fleet.replicas[holder].step()
        fleet.replicas[holder].state, fleet.replicas[holder].reason = EngineState.FAILED, "5 crashes"
        fleet.replicas[holder].return_all()
        fleet.replicas[holder].send_state()
        assert await fleet.run_until_done(call) == [expected(one)]
        assert fleet.engine.state is EngineState.READY
        assert fleet.engine.status().reason == f"the replica {holder}: 5 crashes"


async def test_a_replica_that_cannot_load_is_reported_and_requests_are_refused_only_if_none_can() -> None:
    why = "the file is cut off"
    async with cluster(0) as fleet:
        with pytest.raises(EngineUnavailable, match="loading"):
            fleet.engine.generate([request("a")])
        fleet.start(broken=FakeReplica(state=EngineState.FAILED, reason=why))
        await eventually(lambda: fleet.engine.state is EngineState.FAILED)
        with pytest.raises(EngineUnavailable, match=why):
            fleet.engine.generate([request("a")])
        fleet.start(r1=FakeReplica())
        await eventually(lambda: fleet.engine.state is EngineState.READY)
        assert fleet.engine.status().reason == f"the replica broken: {why}"
        assert len(await fleet.run_until_done(*[fleet.submit(request(f"{i}")) for i in range(4)])) == 4
        assert fleet.replicas["broken"].submitted() == []


async def test_a_call_is_cancelled_by_name_here_and_at_another_api_process() -> None:
    async with cluster(1) as fleet:
        call = fleet.submit(request("a/0", output=50), request("a/1", output=50))
        await settle()
        assert fleet.engine.cancel("a")
        with pytest.raises(RequestCancelled):
            await call
        await settle()
        assert not fleet.replicas["r0"].live
        assert isinstance(fleet.replicas["r0"].orders[-1], CancelRequest)
        assert not fleet.engine.cancel("foreign")
        fleet.replicas["r0"].others = (FOREIGN,)
        fleet.replicas["r0"].send_state()
        await settle()
        assert fleet.engine.requests() == [FOREIGN]
        assert fleet.engine.cancel("foreign")
        await settle()
        assert fleet.replicas["r0"].orders[-1] == CancelCall("foreign")


async def test_a_prompt_goes_to_the_replica_with_its_prefix_in_the_same_namespace() -> None:
    async with cluster(2) as fleet:
        mine = request("a", prompt=640, cache_namespace="mine")
        held = block_hashes(mine.tokens, mine.cells_namespace)
        fleet.replicas["r1"].held = HeldUpdate(version=1, is_whole=True, saved=held)
        await fleet.notify(r1=busy(100.0))
        calls = await fleet.submit_each(mine)
        assert fleet.holder("a") == "r1"
        calls += await fleet.submit_each(msgspec.structs.replace(mine, id="b", cache_namespace="another's"))
        assert fleet.holder("b") == "r0"
        await fleet.run_until_done(*calls)


async def test_requests_that_wait_long_move_to_a_new_replica() -> None:
    async with cluster(1) as fleet:
        calls = await fleet.submit_each(*(request(f"{i}", output=3) for i in range(4)))
        waiting = list(fleet.replicas["r0"].live)[2:]
        places = tuple(QueuePlace(name, position, 60_000.0) for position, name in enumerate(waiting, start=1))
        fleet.replicas["r0"].send(ReplicaNews(places=places))
        await fleet.notify(r0=busy(60_000.0, interactive=4))
        fleet.start(r1=FakeReplica())
        await eventually(lambda: len(fleet.replicas["r1"].live) == 2)
        assert len(fleet.replicas["r0"].live) == 2
        assert await fleet.run_until_done(*calls) == [expected(request(f"{i}", output=3)) for i in range(4)]


async def test_an_embedding_call_continues_where_a_dead_replica_left_it() -> None:
    info = msgspec.structs.replace(FAKE_INFO, kind=ModelKind.EMBEDS, embedding_size=1, max_input_tokens=10)
    embedding_request = EmbedRequest(id="e", inputs=((5,), (6,), (7,)))
    async with cluster(2) as fleet:
        for replica in fleet.replicas.values():
            replica.send(ReplicaNews(report=HostReport(state=EngineState.READY, status=STATUS, info=info)))
        await settle()
        async with fleet.engine.embed(embedding_request) as embedding:
            reading = asyncio.create_task(embedding.vectors())
            await settle()
            holder = fleet.holder("e")
            await fleet.step("e")
            fleet.replicas[holder].die()
            await settle()
            while not reading.done():
                for replica in fleet.replicas.values():
                    replica.step()
                await settle()
            assert reading.result() == bytes([5, 6, 7])


async def test_adapters_are_loaded_by_all_replicas_and_by_later_ones() -> None:
    async with cluster(2) as fleet:
        with pytest.raises(AdapterNotFound):
            fleet.engine.generate([request("a", adapter="pirate")])
        await fleet.engine.load_adapter(PIRATE)
        await settle()
        assert all("pirate" in replica.adapters for replica in fleet.replicas.values())
        fleet.start(r2=FakeReplica())
        await eventually(lambda: "pirate" in fleet.replicas["r2"].adapters)
        (call,) = await fleet.submit_each(request("a", adapter="pirate"))
        (submitted,) = fleet.replicas[fleet.holder("a")].submitted()
        assert submitted.request.adapter == PIRATE.key
        await fleet.run_until_done(call)
        assert fleet.engine.unload_adapter("pirate")
        await settle()
        assert not any(replica.adapters for replica in fleet.replicas.values())


async def test_adapters_of_an_api_process_that_is_gone_reach_others_later_and_unloaded_ones_never() -> None:
    """The process has loaded two adapters and unloaded one of them."""
    gone = Adapter(name="poet", path="poet.gguf", digest="1" * 64)
    async with cluster(2) as fleet:
        first, second = fleet.replicas.values()
        for adapter in (PIRATE, gone):
            await first.load_adapter(adapter)
        await fleet.notify()
        assert not second.adapters, "the adapter was loaded just now"
        await second.load_adapter(PIRATE)
        del first.adapters["poet"]
        await fleet.notify()
        fleet.now_s = SETTLED_S
        await fleet.notify()
        fleet.start(r2=FakeReplica())
        await eventually(lambda: "pirate" in fleet.replicas["r2"].adapters)
        await fleet.notify()
        assert [[*one.adapters] for one in fleet.replicas.values()] == [["pirate"]] * 3
        second.adapters.clear()
        fleet.now_s *= 2
        await fleet.notify()
        assert [[*one.adapters] for one in fleet.replicas.values()] == [["pirate"], [], ["pirate"]]


async def test_an_adapter_that_one_replica_refuses_is_loaded_nowhere_and_the_former_stays() -> None:
    async with cluster(2) as fleet:
        fleet.replicas["r1"].refuses_adapters = True
        with pytest.raises(AdapterFailed, match="does not fit"):
            await fleet.engine.load_adapter(PIRATE)
        await settle()
        assert "pirate" not in fleet.replicas["r0"].adapters
        fleet.replicas["r1"].refuses_adapters = False
        await fleet.engine.load_adapter(PIRATE)
        fleet.replicas["r1"].refuses_adapters = True
        with pytest.raises(AdapterFailed):
            await fleet.engine.load_adapter(msgspec.structs.replace(PIRATE, digest="1" * 64))
        await settle()
        assert [one.adapters["pirate"].adapter for one in fleet.replicas.values()] == [PIRATE, PIRATE]


async def test_all_replicas_clear_their_caches_and_figures_are_sums_over_them() -> None:
    async with cluster(3) as fleet:
        fleet.engine.clear_cache()
        await settle()
        assert all(ClearCache() in replica.orders for replica in fleet.replicas.values())
        await eventually(lambda: fleet.engine.status().kv_tokens == 300)
        assert fleet.engine.status().rss_bytes == 3000
        for replica in fleet.replicas.values():
            replica.send(ReplicaNews(spent_ms={"mine": 5.0}))
        await settle()
        assert fleet.spent_ms == {"mine": 15.0}


async def test_closing_the_engine_ends_all_requests() -> None:
    async with cluster(1) as fleet:
        (call,) = await fleet.submit_each(request("a", output=50))
        fleet.engine.drain()
        with pytest.raises(EngineUnavailable):
            fleet.engine.generate([request("b")])
        await fleet.engine.close()
        with pytest.raises(GenerationFailed):
            await call


async def test_a_replica_that_answers_but_sends_no_news_is_given_up() -> None:
    """The network is cut in one direction."""
    one = request("a", output=3)
    async with cluster(2, lease_s=0.04) as fleet:
        (call,) = await fleet.submit_each(one)
        silent = fleet.holder("a")
        (other,) = fleet.replicas.keys() - {silent}
        fleet.now_s = 60.0
        fleet.replicas[other].send_state()
        await eventually(lambda: fleet.replicas[other].live)
        assert await fleet.run_until_done(call) == [expected(one)]


async def test_a_request_that_makes_engines_fail_fails_alone() -> None:
    async with cluster(4) as fleet:
        call = fleet.submit(request("poison", output=5))
        for _ in range(3):
            await eventually(lambda: any(one.live for one in fleet.replicas.values()))
            replica = fleet.replicas[fleet.holder("poison")]
            (wire,) = replica.live
            replica.live.clear()
            replica.state = EngineState.FAILED
            replica.send(
                ReplicaNews(started=(wire,), ended=(RequestEnd(wire, EndReason.RETURNED, "5 crashes"),))
            )
            replica.send_state()
            await settle()
        with pytest.raises(GenerationFailed, match="5 crashes"):
            await call


async def test_a_request_whose_adapter_is_gone_fails() -> None:
    async with cluster(1) as fleet:
        await fleet.engine.load_adapter(PIRATE)
        await settle()
        (call,) = await fleet.submit_each(request("a", adapter="pirate"))
        assert fleet.engine.unload_adapter("pirate")
        fleet.start(r1=FakeReplica())
        await settle()
        fleet.remove("r0").die()
        with pytest.raises(GenerationFailed, match="adapter"):
            await call
