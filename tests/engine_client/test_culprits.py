"""Requests and devices that kill engines. They count against the account of the request, or the device."""

from __future__ import annotations

import contextlib
import signal

import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.offload import Offload
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.engine_client.calls import GenerationAnswer
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.culprits import LIMIT, AbsentSuspects, CulpritLedger
from openai_cpu_server.engine_client.deaths import Death
from openai_cpu_server.engine_client.live import AcceptedRequest
from openai_cpu_server.errors import CulpritsLimited, GenerationFailed
from tests.clock import Clock
from tests.engine_client.test_client import Ticks, client, collect, is_served, running, until
from tests.scheduler.driver import request
from tests.waiting import eventually

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

POISON = 300


def killer(name: str, account: str = "key:evil") -> GenerationRequest:
    return request(name, tokens=(2, 3, POISON), output=5, account=account)


def good(name: str, account: str = "key:good") -> GenerationRequest:
    return request(name, output=20, account=account)


def test_two_calls_within_ten_minutes_are_too_many() -> None:
    clock = Clock(1000.0)
    culprits = CulpritLedger(clock)
    for call in ("a", "b"):
        culprits.check("key:a")
        culprits.book("key:a", call)
        clock.now_s += 200
    with pytest.raises(CulpritsLimited) as caught:
        culprits.check("key:a")
    assert caught.value.retry_after_s == 200
    culprits.check("key:b")
    clock.now_s += 200
    culprits.check("key:a")
    culprits.book("key:a", "c")
    with pytest.raises(CulpritsLimited):
        culprits.check("key:a")


def test_sequences_of_one_call_count_once_and_calls_without_an_account_never() -> None:
    culprits = CulpritLedger(Clock())
    for number in range(9):
        culprits.book("key:a", "one")
        culprits.book("", str(number))
    culprits.check("key:a")
    culprits.check("")


def suspect(name: str, account: str) -> AcceptedRequest:
    one = good(f"{name}/0", account)
    live = AcceptedRequest(one, GenerationAnswer([one], cancel=lambda _: None, clock=Clock()), 0.0)
    live.suspicion = 3
    return live


@pytest.mark.parametrize("accounts", [("key:a",), ("key:a", "key:b")])
def test_one_absent_suspect_is_to_blame_when_all_others_are_cleared(accounts: tuple[str, ...]) -> None:
    culprits, present = CulpritLedger(Clock()), suspect("present", "key:c")
    culprits.book("key:a", "before")
    absent = AbsentSuspects(culprits)
    absent.left(suspect(account, account) for account in accounts)
    absent.conclude([present])
    culprits.check("key:a")
    present.suspicion = 0
    absent.conclude([present])
    with pytest.raises(CulpritsLimited) if len(accounts) == 1 else contextlib.nullcontext():
        culprits.check("key:a")
    for account in ("key:b", "key:c"):
        culprits.check(account)


async def test_an_account_that_keeps_killing_the_engine_is_refused_and_others_are_served() -> None:
    """The last three calls have no account and are not refused. Ten deaths in a minute are not too many."""
    async with running(client("kill_on=300", clock=Ticks())) as engine:
        for number in range(LIMIT + 3):
            with pytest.raises(GenerationFailed if number < LIMIT else CulpritsLimited):
                await collect(engine, killer(f"bad{number}/0"))
        for number in range(3):
            with pytest.raises(GenerationFailed, match="died each time"):
                await collect(engine, killer(f"unknown{number}/0", account=""))
        assert engine.status().restarts == 2 * LIMIT + 6
        assert await is_served(engine, good("good/0"))
        assert engine.state is EngineState.READY


async def test_a_killer_is_found_even_if_its_client_hangs_up() -> None:
    async with running(client("kill_on=300")) as engine:
        for number in range(LIMIT):
            await hang_up(engine, killer(f"bad{number}/0"))
        with pytest.raises(CulpritsLimited):
            await collect(engine, killer("bad/0"))
        for number in range(4):
            await hang_up(engine, killer(f"unknown{number}/0", account=""))
        assert await is_served(engine, good("good/0"))


async def hang_up(engine: EngineClient, one: GenerationRequest) -> None:
    deaths = engine.status().restarts
    async with engine.generate([one]):
        await eventually(lambda: engine.status().restarts > deaths)
    await until(engine, EngineState.READY)


ALL = Offload(gpu_layers="all")


def device_failure(engine: EngineClient) -> str | None:
    info = engine.info
    return None if info.placement is None else info.placement.why


async def test_a_device_that_kills_the_process_while_the_model_loads_is_not_used_again() -> None:
    async with running(client("device_kills=load", offload=ALL)) as engine:
        assert "crashed in native code (SIGABRT)" in (device_failure(engine) or "")
        assert await is_served(engine, request("a", output=20))


async def test_a_device_that_is_lost_fails_no_request() -> None:
    one = request("a", tokens=(2, 3, 300), output=30)
    async with running(client("device_kills=300", offload=ALL)) as engine:
        assert device_failure(engine) is None
        assert await is_served(engine, one)
        assert "crashed in native code" in (device_failure(engine) or "")
        assert engine.status().restarts == 1


async def test_a_device_stays_in_use_if_the_request_kills_the_engine_without_it_too() -> None:
    async with running(client("kill_on=300", offload=ALL)) as engine:
        with pytest.raises(GenerationFailed, match="died each time"):
            await collect(engine, request("poison", tokens=(2, 3, 300), output=5))
        assert await is_served(engine, request("a", output=20))
        assert engine.status().restarts == 2
        assert device_failure(engine) is None


@pytest.mark.parametrize(
    ("death", "possible"),
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
def test_deaths_that_a_device_may_have_caused(death: Death, possible: bool) -> None:
    assert death.may_be_device == possible
