"""Limits of a key: over time, at once, in headers, and while the storage is down."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest
from limits.aio.storage import MemoryStorage
from limits.errors import StorageError

from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.errors import RequestsLimited, StartupError, TokensLimited
from openai_cpu_server.http.keys import Allowance, Key
from openai_cpu_server.http.limits import Meter, Period, Quota, RateLimits, Unit
from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.storage.breaker import PAUSE_S
from tests.api.asgi import exchange
from tests.api.fake_engine import FakeEngine
from tests.api.keys import key_ring, of
from tests.api.serving import client, locked_api, new_engine, num_live, running
from tests.api.talking import MESSAGES, chat, error_of
from tests.clock import Clock
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

ANN = of("ann")


def key(**limits: int) -> Key:
    return Key(name="ann", digest=b"", allowance=Allowance(**limits))


@asynccontextmanager
async def limited(engine: Engine, folder: Path, limits: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client(locked_api(engine, key_ring(folder, ann=limits, bob="")), ANN) as http:
        yield http


async def test_requests_per_minute(engine: FakeEngine, tmp_path: Path) -> None:
    async with limited(engine, tmp_path, "requests_per_minute = 2") as http:
        first, second, third = [await chat(http, **fields) for fields in ({}, {"messages": 1}, {})]
        assert [first.status_code, second.status_code, third.status_code] == [200, 400, 429]
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        remaining = [answer.headers["x-ratelimit-remaining-requests"] for answer in (first, second, third)]
        assert remaining == ["1", "0", "0"]
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        error = error_of(third)
        assert (error["type"], error["code"], error["param"]) == ("requests", "rate_limit_exceeded", None)
        assert "requests per min (RPM): Limit 2, Requested 1" in str(error["message"])
        wait_s = int(third.headers["retry-after"])
        assert 1 <= wait_s <= 120
        assert wait_s - 1 < int(third.headers["retry-after-ms"]) / 1000 <= wait_s
        assert (await http.get("/v1/models")).status_code == 200  # not metered
        assert (await chat(http, messages=1)).status_code == 429  # before anything is read
        bob = await http.post("/v1/chat/completions", json={}, headers=of("bob"))
        assert bob.status_code == 400
        assert not any(name.startswith("x-ratelimit") for name in bob.headers)


async def test_only_used_tokens_are_charged(tmp_path: Path) -> None:
    async with limited(FakeEngine(text="Hello"), tmp_path, "tokens_per_minute = 100") as http:
        first = await chat(http, max_tokens=60)
        usage = first.json()["usage"]
        assert usage["completion_tokens"] < 60
        remaining = 100 - usage["prompt_tokens"] - 60
        assert first.headers["x-ratelimit-limit-tokens"] == "100"
        assert first.headers["x-ratelimit-remaining-tokens"] == str(remaining)
        second = await chat(http, max_tokens=1)
        remaining_later = 100 - usage["total_tokens"] - second.json()["usage"]["prompt_tokens"] - 1
        assert second.headers["x-ratelimit-remaining-tokens"] == str(remaining_later)


async def test_tokens_that_do_not_fit(engine: FakeEngine, tmp_path: Path) -> None:
    async with limited(engine, tmp_path, "tokens_per_day = 1000\ntokens_per_minute = 50") as http:
        assert (await chat(http, max_tokens=30, ignore_eos=True)).status_code == 200
        refused = await chat(http, max_tokens=30)
        error = error_of(refused)
        assert (refused.status_code, error["type"], error["code"]) == (429, "tokens", "rate_limit_exceeded")
        assert "tokens per min (TPM): Limit 50" in str(error["message"])
        assert int(refused.headers["retry-after"]) >= 1
        assert "x-should-retry" not in refused.headers
        never = await chat(http, max_tokens=30, n=2)
        assert never.status_code == 429
        assert "retry-after" not in never.headers
        assert never.headers["x-should-retry"] == "false"


async def test_a_stream_is_charged_and_frees_its_place_at_its_end(engine: FakeEngine, tmp_path: Path) -> None:
    async with limited(engine, tmp_path, "tokens_per_minute = 100\nconcurrent = 1") as http:
        first = await chat(http, max_tokens=20, ignore_eos=True, stream=True)
        assert first.headers["x-ratelimit-remaining-tokens"] == str(100 - 5 - 20)
        second = await chat(http, max_tokens=20, ignore_eos=True, stream=True)
        assert second.headers["x-ratelimit-remaining-tokens"] == str(100 - 5 - 20 - 5 - 20)


async def test_calls_at_once(engine: FakeEngine, tmp_path: Path) -> None:
    engine.goes_on.clear()
    app = locked_api(engine, key_ring(tmp_path, ann="concurrent = 1", bob=""))
    async with client(app, ANN) as http:
        async with exchange(app, "/v1/chat/completions", {"messages": MESSAGES}, ANN) as first:
            await eventually(lambda: num_live(engine) == 1)
            refused = await chat(http)
            assert refused.status_code == 429
            assert "concurrent requests: Limit 1" in str(error_of(refused)["message"])
            first.disconnect()
        engine.goes_on.set()
        assert (await chat(http)).status_code == 200


async def test_running_outputs_reserve_their_tokens() -> None:
    limits, ann = RateLimits(Meter.open(None)), key(tokens_per_minute=100)
    async with limits.reservation(ann) as first:
        await first.reserve(prompt_tokens=10, output_tokens=60)
        async with limits.reservation(ann) as second:
            with pytest.raises(TokensLimited, match="Used 70, Requested 31"):
                await second.reserve(prompt_tokens=1, output_tokens=30)
            await second.reserve(prompt_tokens=10, output_tokens=20)
    async with limits.reservation(ann) as third:
        assert third.headers["x-ratelimit-remaining-tokens"] == "80"


async def test_a_refused_call_gets_its_tokens_back() -> None:
    limits, ann = RateLimits(Meter.open(None)), key(tokens_per_minute=100, tokens_per_day=500)
    async with limits.reservation(ann) as reservation:
        await reservation.reserve(prompt_tokens=30, output_tokens=60)
        assert reservation.headers["x-ratelimit-remaining-tokens"] == "10"
        await reservation.refund()
        assert reservation.headers["x-ratelimit-remaining-tokens"] == "100"
    async with limits.reservation(ann) as reservation:
        await reservation.reserve(prompt_tokens=100, output_tokens=0)
        assert reservation.headers["x-ratelimit-remaining-tokens"] == "0"


async def test_a_full_queue_costs_no_tokens(tmp_path: Path) -> None:
    body = {"messages": MESSAGES, "ignore_eos": True}
    async with running(new_engine("step_s=0.05", max_seqs=1, max_queue=1)) as engine:
        app = locked_api(engine, key_ring(tmp_path, ann="tokens_per_minute = 1000", bob=""))
        bob = of("bob")
        path = "/v1/chat/completions"
        async with exchange(app, path, body, bob) as first, client(app) as http:
            http.headers.update(ANN)
            await eventually(lambda: engine.status().running["interactive"] == 1)
            async with exchange(app, path, body, bob) as second:
                await eventually(lambda: engine.status().waiting["interactive"] == 1)
                refused = [await chat(http) for _ in range(2)]
                assert {error_of(answer)["code"] for answer in refused} == {"queue_full"}
                assert {answer.headers["x-ratelimit-remaining-tokens"] for answer in refused} == {"1000"}
                second.disconnect()
            first.disconnect()


async def test_an_output_longer_than_the_rest_uses_up_the_rest() -> None:
    limits, ann = RateLimits(Meter.open(None)), key(tokens_per_minute=100)
    async with limits.reservation(ann) as reservation:
        await reservation.reserve(prompt_tokens=90, output_tokens=0)
        reservation.output_tokens = 50
    async with limits.reservation(ann) as reservation:
        assert reservation.headers["x-ratelimit-remaining-tokens"] == "0"
        with pytest.raises(TokensLimited):
            await reservation.reserve(prompt_tokens=1, output_tokens=0)


async def test_concurrent_requests_do_not_exceed_the_limits() -> None:
    limits, ann = RateLimits(Meter.open(None)), key(tokens_per_minute=100, requests_per_minute=50)
    num_passed = 0

    async def request() -> None:
        nonlocal num_passed
        try:
            async with limits.reservation(ann) as reservation:
                await reservation.reserve(prompt_tokens=5, output_tokens=5)
                reservation.output_tokens = 5
                num_passed += 1
        except (RequestsLimited, TokensLimited):
            return

    await asyncio.gather(*(request() for _ in range(80)))
    assert num_passed == 10


async def test_this_process_counts_while_the_storage_is_down(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    limits = RateLimits(Meter.open(f"redis://:hunter2@127.0.0.1:{port}/0"))
    ann = key(requests_per_minute=3, tokens_per_minute=20, tokens_per_day=20)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            async with limits.reservation(ann) as reservation:
                await reservation.reserve(prompt_tokens=5, output_tokens=5)
                reservation.output_tokens = 5
        assert reservation.headers["x-ratelimit-remaining-tokens"] == "0"
        async with limits.reservation(ann) as reservation:
            with pytest.raises(TokensLimited):
                await reservation.reserve(prompt_tokens=5, output_tokens=5)
        with pytest.raises(RequestsLimited):
            await limits.reservation(ann).__aenter__()
    (record,) = caplog.records
    assert "counts alone" in record.getMessage()
    assert "ConnectionError" in record.getMessage()
    assert "hunter2" not in caplog.text


async def refuse_connection() -> None:
    raise StorageError(ConnectionRefusedError())


class SharedStorage(MemoryStorage):
    """Stand in for the Redis that two servers share."""

    fault: Callable[[], Awaitable[None]] | None = None

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        if self.fault is not None:
            await self.fault()
        return await super().acquire_sliding_window_entry(key, limit, expiry, amount)


@pytest.mark.parametrize("fault", [refuse_connection, anyio.sleep_forever])
async def test_without_the_storage_each_server_counts_alone_and_with_it_together_again(
    fault: Callable[[], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    clock, quota, storage = Clock(), Quota(Unit.TOKENS, Period.DAY, 2), SharedStorage()
    meters = [Meter(storage, clock) for _ in range(2)]

    async def take() -> list[bool]:
        return [await meter.take(quota, "ann", 1) for meter in meters]

    with caplog.at_level(logging.INFO):
        assert [await take() for _ in range(2)] == [[True, True], [False, False]]
        storage.fault = fault
        assert [await take() for _ in range(3)] == [[True, True], [True, True], [False, False]]
        storage.fault = None
        await storage.reset()
        assert await take() == [False, False]  # the storage is tried again after the pause only
        clock.now_s += PAUSE_S
        assert [await take() for _ in range(2)] == [[True, True], [False, False]]
    assert ["counts alone" in record.getMessage() for record in caplog.records] == [True] * 2 + [False] * 2


@pytest.mark.parametrize("url", ["mysql://:hunter2@x", "x", "redis://:hunter2@host:port:1"])
def test_a_url_that_is_wrong_is_not_repeated(url: str) -> None:
    with pytest.raises(StartupError, match="--limits-url") as error:
        Meter.open(url)
    assert "hunter2" not in str(error.value)


# -- routes that count ------------------------------------------------------------------------------------

COUNTED = [
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/chat/completions/input_tokens"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/v1/files"),
    ("GET", "/v1/responses/resp_1"),
    ("DELETE", "/v1/responses/resp_1"),
    ("GET", "/v1/responses/resp_1/input_items"),
]
UNCOUNTED = [
    ("POST", "/v1/responses/resp_1/cancel"),  # it frees resources for other requests
    ("GET", "/v1/models"),
    ("GET", "/v1/requests"),
    ("DELETE", "/v1/requests/x"),
    ("GET", "/health"),
]


@pytest.mark.parametrize("route", [*COUNTED, *UNCOUNTED])
async def test_counted_routes(engine: FakeEngine, jobs: Jobs, tmp_path: Path, route: tuple[str, str]) -> None:
    app = locked_api(engine, key_ring(tmp_path, ann="requests_per_minute = 2", bob=""), jobs=jobs)
    async with client(app, ANN) as http:
        answers = [await http.request(*route, json={} if route[0] == "POST" else None) for _ in range(3)]
    is_counted = route in COUNTED
    assert [answer.status_code == 429 for answer in answers] == [False, False, is_counted]
    assert ("x-ratelimit-remaining-requests" in answers[0].headers) is is_counted


async def test_polling_a_response_takes_no_place(engine: FakeEngine, jobs: Jobs, tmp_path: Path) -> None:
    """A key with one place may poll and cancel its background response, but may not tokenize meanwhile."""
    engine.goes_on.clear()
    app = locked_api(engine, key_ring(tmp_path, ann="concurrent = 1", bob=""), jobs=jobs)
    async with client(app, ANN) as http:
        response = (await http.post("/v1/responses", json={"input": "a", "background": True})).json()
        assert (await http.get(f"/v1/responses/{response['id']}")).status_code == 200
        assert (await http.post("/tokenize", json={"content": "a"})).status_code == 429
        assert (await http.post(f"/v1/responses/{response['id']}/cancel")).status_code == 200
        assert (await http.post("/tokenize", json={"content": "a"})).status_code == 200
        assert num_live(engine) == 0


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize", "/v1/responses/resp_1"])
async def test_an_unknown_method_costs_nothing_and_needs_the_key(tmp_path: Path, path: str) -> None:
    async with limited(FakeEngine(), tmp_path, "requests_per_minute = 1") as http:
        for status in (200, 429):
            wrong = await http.patch(path)
            assert (wrong.status_code, error_of(wrong)["code"]) == (405, "method_not_allowed")
            assert (await chat(http)).status_code == status
        assert (await http.patch(path, headers=of("nobody"))).status_code == 401
        assert error_of(await http.patch("/v1/cache"))["code"] == "missing_scope"
