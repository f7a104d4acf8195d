"""A circuit breaker queries a failing service rarely, logs each change once, and limits waits."""

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


class Unavailable(Exception):
    pass


class Service:
    def __init__(self) -> None:
        self.num_calls = 0
        self.error: Exception | None = None
        self.hangs = False

    async def work(self) -> int:
        self.num_calls += 1
        if self.hangs:
            await anyio.sleep_forever()
        if self.error is not None:
            raise self.error
        return self.num_calls


def breaker_of(clock: Clock, *, answer_s: float | None = None, pause_s: float = PAUSE_S) -> CircuitBreaker:
    return CircuitBreaker(
        fails="it fails: %s",
        back="it is back",
        failure=lambda error: str(error) if isinstance(error, Unavailable) else None,
        answer_s=answer_s,
        pause_s=pause_s,
        clock=clock,
    )


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="openai_cpu_server")
    return caplog


async def test_a_failing_service_is_not_called_for_a_while(log: pytest.LogCaptureFixture) -> None:
    clock, service = Clock(), Service()
    breaker = breaker_of(clock)
    assert await breaker.ask(service.work) == 1
    service.error = Unavailable("gone")
    for clock.now_s in (0.0, 1.0, PAUSE_S - 0.1):
        with pytest.raises(NotAnswering):
            await breaker.ask(service.work)
        assert await breaker.attempt(service.work) is None
    assert service.num_calls == 2
    clock.now_s = PAUSE_S
    assert await breaker.attempt(service.work) is None  # which begins another pause
    assert await breaker.attempt(service.work) is None
    assert service.num_calls == 3
    assert log.messages == ["it fails: gone"]


async def test_a_recovered_service_is_logged_once_and_called_at_once(log: pytest.LogCaptureFixture) -> None:
    clock, service = Clock(), Service()
    breaker = breaker_of(clock)
    for _ in range(2):
        service.error = Unavailable("gone")
        assert await breaker.attempt(service.work) is None
        service.error = None
        clock.now_s += PAUSE_S
        assert await breaker.attempt(service.work) is not None
        assert await breaker.attempt(service.work) is not None
    assert log.messages == ["it fails: gone", "it is back"] * 2


async def test_insist_calls_the_service_during_a_pause(log: pytest.LogCaptureFixture) -> None:
    clock, service = Clock(), Service()
    breaker = breaker_of(clock)
    service.error = Unavailable("gone")
    for _ in range(2):
        with pytest.raises(NotAnswering):
            await breaker.insist(service.work, None)
    service.error = None
    assert await breaker.insist(service.work, None) == 3
    assert await breaker.ask(service.work) == 4
    assert log.messages == ["it fails: gone", "it is back"]


async def test_without_a_pause_the_service_is_called_each_time(log: pytest.LogCaptureFixture) -> None:
    service = Service()
    breaker = breaker_of(Clock(), pause_s=0.0)
    service.error = Unavailable("gone")
    for _ in range(3):
        assert await breaker.attempt(service.work) is None
    assert service.num_calls == 3
    assert log.messages == ["it fails: gone"]


async def test_a_hanging_service_fails(log: pytest.LogCaptureFixture) -> None:
    service = Service()
    breaker = breaker_of(Clock(), answer_s=0.01)
    service.hangs = True
    assert await breaker.attempt(service.work) is None
    assert await breaker.attempt(service.work) is None
    assert service.num_calls == 1
    assert log.messages == ["it fails: no answer in time"]


@pytest.mark.parametrize("error", [ValueError("ours"), TimeoutError("its own")])
async def test_other_errors_are_raised_to_the_caller(error: Exception, log: pytest.LogCaptureFixture) -> None:
    service = Service()
    breaker = breaker_of(Clock(), answer_s=60)
    service.error = error
    with pytest.raises(type(error)):
        await breaker.attempt(service.work)
    service.error = None
    assert await breaker.ask(service.work) == 2
    assert not log.messages


async def test_a_cancelled_caller_does_not_open_the_breaker(log: pytest.LogCaptureFixture) -> None:
    service = Service()
    breaker = breaker_of(Clock(), answer_s=60)
    service.hangs = True
    task = asyncio.create_task(breaker.ask(service.work))
    await anyio.lowlevel.checkpoint()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    service.hangs = False
    assert await breaker.ask(service.work) == 2
    assert not log.messages
