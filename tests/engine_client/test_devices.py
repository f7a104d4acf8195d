"""The client when a device beside the CPU takes the engine with it: the CPU serves, and nobody is blamed."""

from __future__ import annotations

import signal

import pytest

from openai_cpu_server.contract.offload import Offload
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.deaths import Death
from openai_cpu_server.errors import GenerationFailed
from tests.engine_client.test_client import client, collect, is_served, running
from tests.scheduler.driver import request

pytestmark = pytest.mark.anyio

ALL = Offload(gpu_layers="all")


def why_not(engine: EngineClient) -> str | None:
    info = engine.info
    return None if info.placement is None else info.placement.why


async def test_a_device_that_ends_the_process_while_the_model_is_loaded_is_left_alone() -> None:
    async with running(client("device_kills=load", offload=ALL)) as engine:
        assert "crashed in native code (SIGABRT)" in (why_not(engine) or "")
        assert await is_served(engine, request("a", output=20))


async def test_a_device_that_is_lost_costs_no_request_anything() -> None:
    one = request("a", tokens=(2, 3, 300), output=30)
    async with running(client("device_kills=300", offload=ALL)) as engine:
        assert why_not(engine) is None
        assert await is_served(engine, one)
        assert "crashed in native code" in (why_not(engine) or "")
        assert engine.status().restarts == 1


async def test_a_request_that_kills_the_engine_without_it_too_does_not_cost_the_device() -> None:
    async with running(client("kill_on=300", offload=ALL)) as engine:
        with pytest.raises(GenerationFailed, match="died each time"):
            await collect(engine, request("poison", tokens=(2, 3, 300), output=5))
        assert await is_served(engine, request("a", output=20))
        assert engine.status().restarts == 2
        assert why_not(engine) is None


@pytest.mark.parametrize(
    ("death", "may_be"),
    [
        (Death.of(-signal.SIGABRT, hang_s=None), True),
        (Death.of(1, hang_s=None), True),
        (Death.of(-signal.SIGKILL, hang_s=9.0), True),
        (Death.of(-signal.SIGKILL, hang_s=None), False),
        (Death.of(-signal.SIGKILL, hang_s=None, ran_out_of_memory=True), False),
        (Death.not_started(OSError("no memory")), False),
        (Death.of_bad_message("truncated"), False),
    ],
    ids=lambda value: getattr(value, "message", None),
)
def test_which_deaths_a_device_may_have_caused(death: Death, may_be: bool) -> None:
    assert death.may_be_device == may_be
