"""Embedding through the dispatcher and a real engine process; only its backend is a fake."""

from __future__ import annotations

import asyncio
from array import array

import anyio
import pytest

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.errors import DeadlineExceeded, GenerationFailed, RequestCancelled
from tests.engine.test_embed_core import embed
from tests.engine_client.test_client import client, kill_engine, running
from tests.fakes import FAKE_EMBEDDER, vector_of
from tests.gates import Gate
from tests.waiting import DEADLINE_S, eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

SIZE = FAKE_EMBEDDER.embedding_size


def many(name: str, count: int, priority: Priority = Priority.INTERACTIVE) -> EmbedRequest:
    return embed(name, *[(5, 6 + number % 50) * 16 for number in range(count)], priority=priority)


def expected(request: EmbedRequest) -> bytes:
    return b"".join(array("f", vector_of(tokens, SIZE)).tobytes() for tokens in request.inputs)


async def vectors(engine: EngineClient, request: EmbedRequest) -> bytes:
    with anyio.fail_after(DEADLINE_S):
        async with engine.embed(request) as embedding:
            return await embedding.vectors()


async def test_vectors_come_in_the_order_of_the_inputs() -> None:
    request = many("a", 50)
    async with running(client("embeds=1")) as engine:
        async with engine.embed(request) as embedding:
            assert await embedding.vectors() == expected(request)
        assert embedding.figures.latency_ms > 0
        assert embedding.figures.tokens_per_second > 0
        assert engine.totals.prompt_tokens == request.num_tokens
        assert engine.kv_stats() is None
        assert engine.requests() == []


async def test_an_embedding_call_is_listed_and_ends_by_cancellation_by_leaving_or_by_its_deadline() -> None:
    async with running(client("embeds=1", "step_s=0.1")) as engine:
        async with engine.embed(many("a", 1000)) as embedding:
            await eventually(lambda: engine.requests()[0].num_embedded > 0)
            (live,) = engine.requests()
            assert (live.state, live.num_inputs, live.prompt_tokens) == (RequestState.RUNNING, 1000, 32_000)
            assert engine.cancel("a")
            with pytest.raises(RequestCancelled):
                await embedding.vectors()
            assert engine.requests() == []
        async with engine.embed(many("b", 1000)):
            await eventually(lambda: engine.requests()[0].state is RequestState.RUNNING)
        assert engine.requests() == []
        async with engine.embed(many("c", 1000)) as embedding:
            embedding.fail_in(0.1, DeadlineExceeded(0.1))
            with pytest.raises(DeadlineExceeded):
                await embedding.vectors()
        request = many("d", 2)
        assert await vectors(engine, request) == expected(request)


async def test_a_killed_engine_loses_no_vector(gate: Gate) -> None:
    request, other = many("a", 300), many("b", 100, Priority.BATCH)
    gate.allow(16)
    async with running(client("embeds=1", gate.steps)) as engine:
        both = asyncio.gather(vectors(engine, request), vectors(engine, other))
        await eventually(lambda: len(engine.requests()) == 2 and engine.requests()[0].num_embedded > 0)
        kill_engine(engine)
        gate.open()
        assert await both == [expected(request), expected(other)]
        assert engine.status().restarts == 1


async def test_an_input_that_kills_the_engine_fails_its_request_alone() -> None:
    bad, good = embed("bad", (9,), (99,)), [many(f"g{number}", 3) for number in range(3)]
    async with running(client("embeds=1", "kill_on=99")) as engine:
        results = await asyncio.gather(
            vectors(engine, bad), *(vectors(engine, one) for one in good), return_exceptions=True
        )
    assert isinstance(results[0], GenerationFailed)
    assert results[1:] == [expected(one) for one in good]
