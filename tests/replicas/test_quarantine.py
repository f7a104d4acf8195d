"""Requests that kill replicas: they fail alone, and requests beside them are completed."""

from __future__ import annotations

import asyncio

import anyio
import msgspec
import pytest

from openai_cpu_server.contract.engine import LiveRequest
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.errors import GenerationFailed
from tests.replicas.fake_replica import FakeReplica, expected
from tests.replicas.test_remote_engine import FOREIGN, Cluster, cluster, settle
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio

KILLER = "killer"
INNOCENT = [request(f"innocent-{number}", output=6) for number in range(8)]


class PoisonedFleet:
    """Cluster in which one request kills each replica that computes it. Each dead replica has a successor."""

    def __init__(self, fleet: Cluster, others: tuple[LiveRequest, ...] = ()) -> None:
        self._fleet = fleet
        self._others = others
        self.deaths = 0
        for replica in fleet.replicas.values():
            replica.killer = KILLER

    async def run(self, *tasks: asyncio.Task[str]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while not all(task.done() for task in tasks):
                await self.step()

    async def step(self) -> None:
        for name, replica in list(self._fleet.replicas.items()):
            is_killed = any(wire.startswith(KILLER) for wire in replica.live)
            replica.step()
            if is_killed:
                self.deaths += 1
                await settle()
                self._fleet.remove(name)
                successor = FakeReplica()
                successor.killer, successor.others = KILLER, self._others
                self._fleet.start(**{f"successor{self.deaths}": successor})
        await settle()


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
async def test_the_killer_fails_and_all_other_requests_are_completed(num_replicas: int) -> None:
    async with cluster(num_replicas) as fleet:
        poisoned = PoisonedFleet(fleet)
        killer, *innocent = await fleet.submit_each(request(KILLER, output=6), *INNOCENT)
        await poisoned.run(killer, *innocent)
        assert [task.result() for task in innocent] == [expected(one) for one in INNOCENT]
        with pytest.raises(GenerationFailed, match="Each replica that computed this request was lost"):
            killer.result()
        assert poisoned.deaths == 3


async def test_newcomers_during_a_trial_go_to_another_replica() -> None:
    async with cluster(2) as fleet:
        poisoned = PoisonedFleet(fleet)
        (killer,) = await fleet.submit_each(request(KILLER, output=6))
        while poisoned.deaths < 2:
            await poisoned.step()
        on_trial = fleet.holder(KILLER)
        late = await fleet.submit_each(*INNOCENT)
        assert [wire.partition("~")[0] for wire in fleet.replicas[on_trial].live] == [KILLER]
        await poisoned.run(killer, *late)
        assert [task.result() for task in late] == [expected(one) for one in INNOCENT]
        assert poisoned.deaths == 3


async def test_new_requests_of_another_api_process_delay_the_verdict() -> None:
    beginner = msgspec.structs.replace(FOREIGN, priority=Priority.INTERACTIVE)
    async with cluster(1) as fleet:
        fleet.replicas["r0"].others = (beginner,)
        poisoned = PoisonedFleet(fleet, others=(beginner,))
        (killer,) = await fleet.submit_each(request(KILLER, output=6))
        await poisoned.run(killer)
        assert isinstance(killer.exception(), GenerationFailed)
        assert poisoned.deaths == 6
