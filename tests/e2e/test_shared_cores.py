"""Two real engine processes with the tiny model that share the cores, each with a dispatcher of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import pytest

from openai_cpu_server.contract.messages import EngineOptions, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.shared_cores import CoresPartner, SharedCores
from openai_cpu_server.engine_client.supervisor import Supervisor
from tests.engine_client.test_client import collect, running
from tests.tiny_model import tiny_model_path
from tests.waiting import eventually

pytestmark = [pytest.mark.native, pytest.mark.anyio]

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
COMMAND = (
    *(sys.executable, "-m", "openai_cpu_server.kernels.front"),
    *("openai_cpu_server.engine.process", "console"),
)


def engine(partner: CoresPartner, *, repack: bool | None = None) -> EngineClient:
    options = EngineOptions(
        model_path=str(tiny_model_path()), kv_tokens=8192, max_seqs=8, threads=1, repack=repack
    )
    return EngineClient(Supervisor(COMMAND, options, partner=partner), max_queue=1000)


def asked(name: str, output: int, priority: Priority = INTERACTIVE) -> GenerationRequest:
    sampling = Sampling(seed=1, temperature=0.0, ignore_eos=True)
    tokens = tuple(10 + (i * 7 + len(name)) % 90 for i in range(60))
    return GenerationRequest(id=name, tokens=tokens, max_tokens=output, sampling=sampling, priority=priority)


def num_tokens(events: list[TokenEvent]) -> int:
    finish = events[-1].finish
    assert finish.reason is FinishReason.LENGTH
    return finish.output_tokens


async def test_a_stream_beside_another_models_batch_work_whose_engine_is_killed() -> None:
    cores = SharedCores(batch_floor=0.5)
    one, other = cores.join("one"), cores.join("other")
    async with running(engine(one)) as a, running(engine(other)) as b:
        rows = [asyncio.create_task(collect(b, asked(f"row{i}", 200, BATCH))) for i in range(4)]
        await eventually(lambda: cores.holder == other.name and b.status().running["batch"] > 0)
        stream = asyncio.create_task(collect(a, asked("person", 200)))
        await eventually(lambda: one.used_s(INTERACTIVE) > 0)
        assert b.engine_pid is not None
        os.kill(b.engine_pid, signal.SIGKILL)
        assert num_tokens(await stream) == 200
        assert [num_tokens(events) for events in await asyncio.gather(*rows)] == [200] * 4
        assert (a.status().restarts, b.status().restarts) == (0, 1)
        await eventually(lambda: cores.holder is None)
