"""Requests that replicas die of: they fail alone, and whoever was computed beside them ends well."""

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


class Doomed:
    """A cluster whose replicas die of one request. Another comes for each that has died."""

    def __init__(self, made: Cluster, others: tuple[LiveRequest, ...] = ()) -> None:
        self._made = made
        self._others = others
        self.deaths = 0
        for replica in made.replicas.values():
            replica.killer = KILLER

    async def run(self, *tasks: asyncio.Task[str]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while not all(task.done() for task in tasks):
                await self.step()

    async def step(self) -> None:
        for name, replica in list(self._made.replicas.items()):
            is_killed = any(wire.startswith(KILLER) for wire in replica.live)
            replica.step()
            if is_killed:
                self.deaths += 1
                await settle()
                self._made.remove(name)
                successor = FakeReplica()
                successor.killer, successor.others = KILLER, self._others
                self._made.start(**{f"successor{self.deaths}": successor})
        await settle()


@pytest.mark.parametrize("num_replicas", [1, 2, 4])
async def test_the_innocent_end_well_and_the_killer_fails(num_replicas: int) -> None:
    async with cluster(num_replicas) as made:
        doomed = Doomed(made)
        killer, *innocent = await made.asked(request(KILLER, output=6), *INNOCENT)
        await doomed.run(killer, *innocent)
        assert [task.result() for task in innocent] == [expected(one) for one in INNOCENT]
        with pytest.raises(GenerationFailed, match="Each replica that computed this request was lost"):
            killer.result()
        assert doomed.deaths == 3


async def test_who_comes_during_a_trial_goes_elsewhere() -> None:
    async with cluster(2) as made:
        doomed = Doomed(made)
        (killer,) = await made.asked(request(KILLER, output=6))
        while doomed.deaths < 2:
            await doomed.step()
        on_trial = made.holder(KILLER)
        late = await made.asked(*INNOCENT)
        assert [wire.partition("~")[0] for wire in made.replicas[on_trial].live] == [KILLER]
        await doomed.run(killer, *late)
        assert [task.result() for task in late] == [expected(one) for one in INNOCENT]
        assert doomed.deaths == 3


async def test_beside_beginners_of_another_api_process_nobody_is_convicted_at_once() -> None:
    beginner = msgspec.structs.replace(FOREIGN, priority=Priority.INTERACTIVE)
    async with cluster(1) as made:
        made.replicas["r0"].others = (beginner,)
        doomed = Doomed(made, others=(beginner,))
        (killer,) = await made.asked(request(KILLER, output=6))
        await doomed.run(killer)
        assert isinstance(killer.exception(), GenerationFailed)
        assert doomed.deaths == 6
