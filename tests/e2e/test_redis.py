"""Rate limits in Redis: two servers count together; without it each counts alone."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.serving import key_file, tiny_server
from tests.gates import suspended
from tests.redis_server import RedisServer
from tests.server_process import ServerProcess
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def two_servers(
    redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    """Counted together for the holders of these keys, each test's with one of its own."""
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    few = "requests_per_minute = 2"
    limits = {"requests": "requests_per_minute = 5", "tokens": "tokens_per_minute = 100"}
    key_file(keys, {**limits, "away": few, "hangs": few})
    options = ("--api-keys", str(keys), "--limits-url", redis.url)
    with tiny_server(*options) as one, tiny_server(*options) as two:
        yield one, two


def ask(server: ServerProcess, key: str, max_tokens: int = 2) -> httpx.Response:
    body = {"prompt": "x", "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    return server.post("/v1/completions", json=body, headers={"x-api-key": key})


def remaining(answer: httpx.Response, unit: str) -> int:
    return int(answer.headers[f"x-ratelimit-remaining-{unit}"])


def assert_each_counts_alone(two_servers: tuple[ServerProcess, ServerProcess], key: str) -> None:
    """Each of them lets two requests pass; where a minute ends meanwhile, one more."""
    statuses = [[ask(server, key).status_code for server in two_servers] for _ in range(4)]
    assert statuses[:2] == [[200, 200]] * 2
    assert [429, 429] in statuses[2:]


def is_back(server: ServerProcess) -> bool:
    """Whether it has said so; it looks only when it is asked."""
    assert ask(server, "away").status_code in (200, 429)
    return any("storage of rate limits is back" in line for line in server.lines)


def test_requests_are_counted_together(two_servers: tuple[ServerProcess, ServerProcess]) -> None:
    answers = [ask(two_servers[number % 2], "requests") for number in range(7)]
    assert [answer.status_code for answer in answers] == [200] * 5 + [429] * 2
    assert [remaining(answer, "requests") for answer in answers] == [4, 3, 2, 1, 0, 0, 0]
    for refused in answers[5:]:
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert int(refused.headers["retry-after"]) > 0


def test_tokens_are_counted_together(two_servers: tuple[ServerProcess, ServerProcess]) -> None:
    one, two = two_servers
    used = [ask(server, "tokens", max_tokens=30).json()["usage"]["total_tokens"] for server in (one, two)]
    third = ask(one, "tokens", max_tokens=1)
    assert third.status_code == 200
    prompt = third.json()["usage"]["prompt_tokens"]
    assert remaining(third, "tokens") == 100 - sum(used) - prompt - 1
    refused = ask(two, "tokens", max_tokens=60)
    assert (refused.status_code, refused.json()["error"]["type"]) == (429, "tokens")


def test_without_redis_each_server_counts_alone_and_with_it_together_again(
    two_servers: tuple[ServerProcess, ServerProcess], redis: RedisServer
) -> None:
    redis.kill()
    assert_each_counts_alone(two_servers, "away")
    for server in two_servers:
        server.wait_for("(counts alone)")
    redis.start()
    for server in two_servers:  # each asks again some seconds after a failure
        wait_until(lambda server=server: is_back(server))  # type: ignore[misc]
    assert ask(two_servers[0], "away").status_code == ask(two_servers[1], "away").status_code == 429


def test_a_redis_that_hangs_is_as_one_that_is_away(
    two_servers: tuple[ServerProcess, ServerProcess], redis: RedisServer
) -> None:
    with suspended(redis.process.pid):
        assert_each_counts_alone(two_servers, "hangs")
