"""An engine over replicas that are fakes: what becomes of requests when replicas come, die, drain and lie."""

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
"""Of another API process."""


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

    def ask(self, *requests: GenerationRequest) -> asyncio.Task[str]:
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

    async def asked(self, *requests: GenerationRequest) -> list[asyncio.Task[str]]:
        tasks = [self.ask(one) for one in requests]
        await settle()
        return tasks

    async def step(self, name: str) -> None:
        self.replicas[self.holder(name)].step()
        await settle()

    async def notify(self, **forecasts: Forecast) -> None:
        for name, replica in self.replicas.items():
            replica.forecast = forecasts.get(name, replica.forecast)
            replica.tell_state()
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
    made = Cluster(**options)  # type: ignore[arg-type]
    running = asyncio.create_task(made.engine.run())
    try:
        made.start(**{f"r{number}": FakeReplica() for number in range(num)})
        if num:
            await eventually(lambda: made.engine.state is EngineState.READY)
            await settle()
        yield made
    finally:
        running.cancel()
        await made.engine.close()


async def settle() -> None:
    for _ in range(12):
        await anyio.lowlevel.checkpoint()


async def test_long_prompts_are_sent_in_several_batches() -> None:
    """Encoding all at once would delay the event loop."""
    replica = FakeReplica()
    session = ReplicaSession(
        "r0", replica, "me", lambda *_: None, lambda *_: None, lease_s=60.0, clock=lambda: 0.0
    )
    session.send(*(Submit(request=request(f"a{number}", prompt=30_000)) for number in range(7)))
    await eventually(lambda: sum(map(len, replica.batches)) == 7)
    session.leave()
    assert [len(batch) for batch in replica.batches] == [3, 3, 1]


async def test_what_stands_for_a_picture_is_told_by_whoever_can() -> None:
    size = PictureSize(3, 2)
    async with cluster(2) as made:
        asking = asyncio.create_task(made.engine.shapes([size, size]))
        await settle()
        for replica in made.replicas.values():
            assert MeasureMedia((size,)) in replica.orders
            replica.die()
        newcomer = FakeReplica()
        newcomer.sees = True
        made.start(new=newcomer)
        with anyio.fail_after(DEADLINE_S):
            assert await asking == (((7,),), ((7,),))
            assert await made.engine.shapes([size]) == (((7,),),), "it is known"
        assert len([order for order in newcomer.orders if isinstance(order, MeasureMedia)]) == 1
        unknown = asyncio.create_task(made.engine.shapes([PictureSize(4, 4)]))
        newcomer.sees = False
        await settle()
    with pytest.raises(GenerationFailed):
        await unknown


async def test_requests_spread_over_replicas_and_choices_of_a_call_share_one() -> None:
    async with cluster(2) as made:
        asked = await made.asked(*(request(f"{i}", output=2) for i in range(6)))
        assert {len(replica.live) for replica in made.replicas.values()} == {3}
        choices = made.ask(request("a/0", output=3), request("a/1", output=3))
        await settle()
        assert made.holder("a/0") == made.holder("a/1")
        await made.run_until_done(*asked, choices)


@pytest.mark.parametrize("loses", [FakeReplica.die, FakeReplica.babble], ids=["it dies", "it babbles"])
@pytest.mark.parametrize("tokens_before", [0, 1, 3])
async def test_a_stream_survives_its_replica(
    tokens_before: int, loses: Callable[[FakeReplica], None]
) -> None:
    one = request("a", output=6)
    async with cluster(2) as made:
        (asked,) = await made.asked(one)
        holder = made.holder("a")
        for _ in range(tokens_before):
            made.replicas[holder].step()
        await settle()
        loses(made.replicas[holder])
        made.remove(holder)
        await settle()
        (replayed,) = made.replicas[made.holder("a")].submitted()
        assert len(replayed.output) == tokens_before
        assert await made.run_until_done(asked) == [expected(one)]
        assert made.engine.totals.output_tokens == 6
        assert made.engine.status().restarts == 1
        assert made.engine.status().last_death is not None


async def test_what_arrives_late_from_a_replica_that_was_given_up_is_not_taken_twice() -> None:
    one = request("a", output=6)
    async with cluster(1, lease_s=0.08) as made:
        (asked,) = await made.asked(one)
        cut_off = made.replicas["r0"]
        cut_off.step()
        await settle()
        cut_off.is_deaf = True
        made.start(r1=FakeReplica())
        await eventually(lambda: made.replicas["r1"].live)
        for _ in range(3):
            cut_off.step()
        made.replicas["r1"].step()
        assert await made.run_until_done(asked) == [expected(one)]


async def test_without_a_replica_requests_wait_for_the_next_and_interactive_ones_go_first() -> None:
    one, late = request("a", output=4, priority=Priority.BATCH), request("b", output=2)
    async with cluster(1, max_queue=1) as made:
        asked = await made.asked(one)
        made.remove("r0").die()
        await eventually(lambda: made.engine.state is EngineState.RESTARTING)
        asked += await made.asked(late)
        assert made.engine.status().waiting == {"interactive": 1, "batch": 1}
        with pytest.raises(QueueFull):
            made.engine.generate([request("c")])
        made.start(r1=FakeReplica())
        await eventually(lambda: len(made.replicas["r1"].live) == 2)
        assert [each.request.priority for each in made.replicas["r1"].submitted()] == list(Priority)
        assert await made.run_until_done(*asked) == [expected(one), expected(late)]


async def test_a_replica_that_is_to_go_goes_on_until_another_is_ready() -> None:
    one, two = request("a", output=4), request("b", output=8)
    async with cluster(1) as made:
        asked = await made.asked(one, two)
        leaving = made.remove("r0")
        for _ in range(4):
            leaving.step()
        await settle()
        assert asked[0].result() == expected(one)
        made.start(r1=FakeReplica())
        await eventually(lambda: made.replicas["r1"].live)
        assert await made.run_until_done(asked[1]) == [expected(two)]
        assert made.engine.status().restarts == 0


async def test_what_a_replica_returns_is_computed_by_another() -> None:
    one = request("a", output=6)
    async with cluster(2) as made:
        (asked,) = await made.asked(one)
        holder = made.holder("a")
        made.replicas[holder].step()
        made.replicas[holder].state, made.replicas[holder].reason = EngineState.FAILED, "5 crashes"
        made.replicas[holder].return_all()
        made.replicas[holder].tell_state()
        assert await made.run_until_done(asked) == [expected(one)]
        assert made.engine.state is EngineState.READY
        assert made.engine.status().reason == f"the replica {holder}: 5 crashes"


async def test_a_replica_that_cannot_load_is_told_and_only_where_none_can_requests_are_refused() -> None:
    why = "the file is cut off"
    async with cluster(0) as made:
        with pytest.raises(EngineUnavailable, match="loading"):
            made.engine.generate([request("a")])
        made.start(broken=FakeReplica(state=EngineState.FAILED, reason=why))
        await eventually(lambda: made.engine.state is EngineState.FAILED)
        with pytest.raises(EngineUnavailable, match=why):
            made.engine.generate([request("a")])
        made.start(r1=FakeReplica())
        await eventually(lambda: made.engine.state is EngineState.READY)
        assert made.engine.status().reason == f"the replica broken: {why}"
        assert len(await made.run_until_done(*[made.ask(request(f"{i}")) for i in range(4)])) == 4
        assert made.replicas["broken"].submitted() == []


async def test_a_call_is_cancelled_by_name_here_and_at_another_api_process() -> None:
    async with cluster(1) as made:
        asked = made.ask(request("a/0", output=50), request("a/1", output=50))
        await settle()
        assert made.engine.cancel("a")
        with pytest.raises(RequestCancelled):
            await asked
        await settle()
        assert not made.replicas["r0"].live
        assert isinstance(made.replicas["r0"].orders[-1], CancelRequest)
        assert not made.engine.cancel("foreign")
        made.replicas["r0"].others = (FOREIGN,)
        made.replicas["r0"].tell_state()
        await settle()
        assert made.engine.requests() == [FOREIGN]
        assert made.engine.cancel("foreign")
        await settle()
        assert made.replicas["r0"].orders[-1] == CancelCall("foreign")


async def test_a_prompt_goes_to_who_holds_its_beginning_and_keys_are_kept_apart() -> None:
    async with cluster(2) as made:
        mine = request("a", prompt=640, cache_namespace="mine")
        held = block_hashes(mine.tokens, mine.cells_namespace)
        made.replicas["r1"].held = HeldUpdate(version=1, is_whole=True, saved=held)
        await made.notify(r1=busy(100.0))
        asked = await made.asked(mine)
        assert made.holder("a") == "r1"
        asked += await made.asked(msgspec.structs.replace(mine, id="b", cache_namespace="another's"))
        assert made.holder("b") == "r0"
        await made.run_until_done(*asked)


async def test_who_waits_long_moves_to_a_replica_that_has_come() -> None:
    async with cluster(1) as made:
        asked = await made.asked(*(request(f"{i}", output=3) for i in range(4)))
        waiting = list(made.replicas["r0"].live)[2:]
        places = tuple(QueuePlace(name, position, 60_000.0) for position, name in enumerate(waiting, start=1))
        made.replicas["r0"].say(ReplicaNews(places=places))
        await made.notify(r0=busy(60_000.0, interactive=4))
        made.start(r1=FakeReplica())
        await eventually(lambda: len(made.replicas["r1"].live) == 2)
        assert len(made.replicas["r0"].live) == 2
        assert await made.run_until_done(*asked) == [expected(request(f"{i}", output=3)) for i in range(4)]


async def test_vectors_go_on_where_a_replica_has_left_off() -> None:
    info = msgspec.structs.replace(FAKE_INFO, kind=ModelKind.EMBEDS, embedding_size=1, max_input_tokens=10)
    asked = EmbedRequest(id="e", inputs=((5,), (6,), (7,)))
    async with cluster(2) as made:
        for replica in made.replicas.values():
            replica.say(ReplicaNews(report=HostReport(state=EngineState.READY, status=STATUS, info=info)))
        await settle()
        async with made.engine.embed(asked) as embedding:
            reading = asyncio.create_task(embedding.vectors())
            await settle()
            holder = made.holder("e")
            await made.step("e")
            made.replicas[holder].die()
            await settle()
            while not reading.done():
                for replica in made.replicas.values():
                    replica.step()
                await settle()
            assert reading.result() == bytes([5, 6, 7])


async def test_adapters_are_loaded_everywhere_and_by_those_who_come_later() -> None:
    async with cluster(2) as made:
        with pytest.raises(AdapterNotFound):
            made.engine.generate([request("a", adapter="pirate")])
        await made.engine.load_adapter(PIRATE)
        await settle()
        assert all("pirate" in replica.adapters for replica in made.replicas.values())
        made.start(r2=FakeReplica())
        await eventually(lambda: "pirate" in made.replicas["r2"].adapters)
        (asked,) = await made.asked(request("a", adapter="pirate"))
        (submitted,) = made.replicas[made.holder("a")].submitted()
        assert submitted.request.adapter == PIRATE.key
        await made.run_until_done(asked)
        assert made.engine.unload_adapter("pirate")
        await settle()
        assert not any(replica.adapters for replica in made.replicas.values())


async def test_adapters_of_an_api_process_that_is_gone_reach_others_later_and_unloaded_ones_never() -> None:
    """It has loaded two; one of them was unloaded again."""
    gone = Adapter(name="poet", path="poet.gguf", digest="1" * 64)
    async with cluster(2) as made:
        first, second = made.replicas.values()
        for adapter in (PIRATE, gone):
            await first.load_adapter(adapter)
        await made.notify()
        assert not second.adapters, "not yet: it was just loaded"
        await second.load_adapter(PIRATE)
        del first.adapters["poet"]
        await made.notify()
        made.now_s = SETTLED_S
        await made.notify()
        made.start(r2=FakeReplica())
        await eventually(lambda: "pirate" in made.replicas["r2"].adapters)
        await made.notify()
        assert [[*one.adapters] for one in made.replicas.values()] == [["pirate"]] * 3
        second.adapters.clear()
        made.now_s *= 2
        await made.notify()
        assert [[*one.adapters] for one in made.replicas.values()] == [["pirate"], [], ["pirate"]]


async def test_an_adapter_that_one_replica_refuses_is_loaded_nowhere_and_the_former_stays() -> None:
    async with cluster(2) as made:
        made.replicas["r1"].refuses_adapters = True
        with pytest.raises(AdapterFailed, match="does not fit"):
            await made.engine.load_adapter(PIRATE)
        await settle()
        assert "pirate" not in made.replicas["r0"].adapters
        made.replicas["r1"].refuses_adapters = False
        await made.engine.load_adapter(PIRATE)
        made.replicas["r1"].refuses_adapters = True
        with pytest.raises(AdapterFailed):
            await made.engine.load_adapter(msgspec.structs.replace(PIRATE, digest="1" * 64))
        await settle()
        assert [one.adapters["pirate"].adapter for one in made.replicas.values()] == [PIRATE, PIRATE]


async def test_all_replicas_clear_their_caches_and_figures_are_sums_over_them() -> None:
    async with cluster(3) as made:
        made.engine.clear_cache()
        await settle()
        assert all(ClearCache() in replica.orders for replica in made.replicas.values())
        await eventually(lambda: made.engine.status().kv_tokens == 300)
        assert made.engine.status().rss_bytes == 3000
        for replica in made.replicas.values():
            replica.say(ReplicaNews(spent_ms={"mine": 5.0}))
        await settle()
        assert made.spent_ms == {"mine": 15.0}


async def test_who_ends_ends_all_requests() -> None:
    async with cluster(1) as made:
        (asked,) = await made.asked(request("a", output=50))
        made.engine.drain()
        with pytest.raises(EngineUnavailable):
            made.engine.generate([request("b")])
        await made.engine.close()
        with pytest.raises(GenerationFailed):
            await asked


async def test_a_replica_that_answers_and_tells_nothing_is_given_up() -> None:
    """The network is cut in one direction."""
    one = request("a", output=3)
    async with cluster(2, lease_s=0.04) as made:
        (asked,) = await made.asked(one)
        silent = made.holder("a")
        (other,) = made.replicas.keys() - {silent}
        made.now_s = 60.0
        made.replicas[other].tell_state()
        await eventually(lambda: made.replicas[other].live)
        assert await made.run_until_done(asked) == [expected(one)]


async def test_a_request_that_engines_are_given_up_for_fails_alone() -> None:
    async with cluster(4) as made:
        asked = made.ask(request("poison", output=5))
        for _ in range(3):
            await eventually(lambda: any(one.live for one in made.replicas.values()))
            replica = made.replicas[made.holder("poison")]
            (wire,) = replica.live
            replica.live.clear()
            replica.state = EngineState.FAILED
            replica.say(
                ReplicaNews(started=(wire,), ended=(RequestEnd(wire, EndReason.RETURNED, "5 crashes"),))
            )
            replica.tell_state()
            await settle()
        with pytest.raises(GenerationFailed, match="5 crashes"):
            await asked


async def test_a_request_whose_adapter_is_nowhere_any_more_fails() -> None:
    async with cluster(1) as made:
        await made.engine.load_adapter(PIRATE)
        await settle()
        (asked,) = await made.asked(request("a", adapter="pirate"))
        assert made.engine.unload_adapter("pirate")
        made.start(r1=FakeReplica())
        await settle()
        made.remove("r0").die()
        with pytest.raises(GenerationFailed, match="adapter"):
            await asked
