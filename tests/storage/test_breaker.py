"""What may be away: asked now and then, told of once, and nobody waits for long."""

from __future__ import annotations

import asyncio
import logging

import anyio
import anyio.lowlevel
import pytest

from openai_cpu_server.storage.breaker import CircuitBreaker, NotAnswering
from tests.clock import Clock

pytestmark = pytest.mark.anyio

PAUSE_S = 5.0


class Away(Exception):
    pass


class Elsewhere:
    def __init__(self) -> None:
        self.asked = 0
        self.error: Exception | None = None
        self.hangs = False

    async def work(self) -> int:
        self.asked += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        return self.asked


def breaker_of(clock: Clock, *, answer_s: float | None = None, pause_s: float = PAUSE_S) -> CircuitBreaker:
    return CircuitBreaker(
        fails="it fails: %s",
        back="it is back",
        failure=lambda error: str(error) if isinstance(error, Away) else None,
        answer_s=answer_s,
        pause_s=pause_s,
        clock=clock,
    )


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="openai_cpu_server")
    return caplog


async def test_what_fails_is_left_alone_for_a_while(said: pytest.LogCaptureFixture) -> None:
    clock, elsewhere = Clock(), Elsewhere()
    breaker = breaker_of(clock)
    assert await breaker.ask(elsewhere.work) == 1
    elsewhere.error = Away("gone")
    for clock.now_s in (0.0, 1.0, PAUSE_S - 0.1):
        with pytest.raises(NotAnswering):
            await breaker.ask(elsewhere.work)
        assert await breaker.attempt(elsewhere.work) is None
    assert elsewhere.asked == 2
    clock.now_s = PAUSE_S
    assert await breaker.attempt(elsewhere.work) is None  # and again for a while
    assert await breaker.attempt(elsewhere.work) is None
    assert elsewhere.asked == 3
    assert said.messages == ["it fails: gone"]


async def test_what_is_back_is_told_of_once_and_asked_at_once(said: pytest.LogCaptureFixture) -> None:
    clock, elsewhere = Clock(), Elsewhere()
    breaker = breaker_of(clock)
    for _ in range(2):
        elsewhere.error = Away("gone")
        assert await breaker.attempt(elsewhere.work) is None
        elsewhere.error = None
        clock.now_s += PAUSE_S
        assert await breaker.attempt(elsewhere.work) is not None
        assert await breaker.attempt(elsewhere.work) is not None
    assert said.messages == ["it fails: gone", "it is back"] * 2


async def test_who_insists_asks_at_once(said: pytest.LogCaptureFixture) -> None:
    clock, elsewhere = Clock(), Elsewhere()
    breaker = breaker_of(clock)
    elsewhere.error = Away("gone")
    for _ in range(2):
        with pytest.raises(NotAnswering):
            await breaker.insist(elsewhere.work, None)
    elsewhere.error = None
    assert await breaker.insist(elsewhere.work, None) == 3
    assert await breaker.ask(elsewhere.work) == 4
    assert said.messages == ["it fails: gone", "it is back"]


async def test_without_a_pause_it_is_asked_each_time(said: pytest.LogCaptureFixture) -> None:
    elsewhere = Elsewhere()
    breaker = breaker_of(Clock(), pause_s=0.0)
    elsewhere.error = Away("gone")
    for _ in range(3):
        assert await breaker.attempt(elsewhere.work) is None
    assert elsewhere.asked == 3
    assert said.messages == ["it fails: gone"]


async def test_what_hangs_fails(said: pytest.LogCaptureFixture) -> None:
    elsewhere = Elsewhere()
    breaker = breaker_of(Clock(), answer_s=0.01)
    elsewhere.hangs = True
    assert await breaker.attempt(elsewhere.work) is None
    assert await breaker.attempt(elsewhere.work) is None
    assert elsewhere.asked == 1
    assert said.messages == ["it fails: no answer in time"]


@pytest.mark.parametrize("error", [ValueError("ours"), TimeoutError("its own")])
async def test_other_errors_are_the_callers(error: Exception, said: pytest.LogCaptureFixture) -> None:
    elsewhere = Elsewhere()
    breaker = breaker_of(Clock(), answer_s=60)
    elsewhere.error = error
    with pytest.raises(type(error)):
        await breaker.attempt(elsewhere.work)
    elsewhere.error = None
    assert await breaker.ask(elsewhere.work) == 2
    assert not said.messages


async def test_a_caller_that_is_cancelled_says_nothing_of_it(said: pytest.LogCaptureFixture) -> None:
    elsewhere = Elsewhere()
    breaker = breaker_of(Clock(), answer_s=60)
    elsewhere.hangs = True
    task = asyncio.create_task(breaker.ask(elsewhere.work))
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    elsewhere.hangs = False
    assert await breaker.ask(elsewhere.work) == 2
    assert not said.messages
