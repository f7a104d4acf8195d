"""The request router by itself: calls go where they say, or fail at once."""

from __future__ import annotations

import asyncio
import pickle
import warnings
from types import SimpleNamespace

import pytest

from openai_cpu_server.replicas.ray.surroundings import NoSuchReplica, ReplicaAddress

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Ray's own
    pytest.importorskip("ray.serve.request_router")

from openai_cpu_server.replicas.ray.request_router import EngineRequestRouter

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # importing Ray takes longer than they do


class Router(EngineRequestRouter):
    def __init__(self, *names: str) -> None:
        self._replicas = {SimpleNamespaceKey(name): None for name in names}


class SimpleNamespaceKey(SimpleNamespace):
    def __init__(self, name: str) -> None:
        super().__init__(unique_id=name)

    def __hash__(self) -> int:
        return hash(self.unique_id)


def pending(to: str) -> SimpleNamespace:
    return SimpleNamespace(args=[to], future=asyncio.get_running_loop().create_future())


def replicas(*names: str) -> list[SimpleNamespace]:
    return [SimpleNamespace(replica_id=SimpleNamespaceKey(name)) for name in names]


async def test_a_call_goes_where_it_says_and_tells_its_sender_who_there_is() -> None:
    told: list[frozenset[str]] = []
    router, (one, two) = Router("one", "two"), replicas("one", "two")
    assert await router.choose_replicas([one, two], pending(ReplicaAddress("two", told.append))) == [[two]]
    assert told == [{"one", "two"}]


async def test_a_call_to_a_replica_that_is_gone_fails_at_once() -> None:
    router, asked = Router("one"), pending(ReplicaAddress("gone", lambda _: None))
    assert (await router.choose_replicas(replicas("one"), asked))[0]
    with pytest.raises(NoSuchReplica):
        await asked.future


async def test_a_call_to_anybody_goes_to_somebody() -> None:
    router = Router("one")
    assert len((await router.choose_replicas(replicas("one"), pending("")))[0]) == 1


def test_an_address_travels_as_a_name() -> None:
    arrived = pickle.loads(pickle.dumps(ReplicaAddress("two", lambda _: None)))
    assert (type(arrived), arrived) == (str, "two")
