"""Clients that name nobody take turns by their addresses, and a proxy's users by those that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.serving import num_live
from tests.server_process import ServerProcess
from tests.tiny_model import tiny_model_path
from tests.waiting import wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

PROXY, STRANGER = "127.0.0.1", "127.0.0.2"
NUM_QUEUED = 12
BODY = {"prompt": "a", "max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def fair() -> Iterator[ServerProcess]:
    options = ("--max-seqs", "1", "--api-key", "root", "--trusted-proxy", PROXY)
    with ServerProcess("--model", str(tiny_model_path()), *options) as process:
        yield process


def http(server: ServerProcess, address: str, user: str = "") -> httpx.AsyncClient:
    """Comes from this address of the machine; a proxy says for whom it speaks."""
    headers = {"x-api-key": "root", **({"x-forwarded-for": user} if user else {})}
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=None))
    return httpx.AsyncClient(base_url=server.url, transport=transport, headers=headers, timeout=None)


async def num_done_before(
    greedy: httpx.AsyncClient, other: httpx.AsyncClient, server: ServerProcess, *, has_names: bool = False
) -> int:
    """How many of the greedy one's many requests were done before the other's only one. `has_names`: each has
    a user of its own."""
    bodies = [{**BODY, "user": f"user{number}"} if has_names else BODY for number in range(NUM_QUEUED)]
    tasks = [asyncio.create_task(greedy.post("/v1/completions", json=body)) for body in bodies]
    await asyncio.to_thread(wait_until, lambda: num_live(server) >= NUM_QUEUED // 2)
    done_at_first = sum(task.done() for task in tasks)
    assert (await other.post("/v1/completions", json=BODY)).status_code == 200
    done = [task for task in tasks if task.done()]
    for task in tasks:
        task.cancel()  # who leaves frees the server for the next test
    assert {task.result().status_code for task in done} <= {200}
    await asyncio.gather(*tasks, return_exceptions=True)
    return len(done) - done_at_first


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("greedy", "other", "has_names", "waits"),
    [
        ((PROXY, ""), (STRANGER, ""), False, False),
        ((PROXY, "198.51.100.1"), (PROXY, "198.51.100.2"), False, False),
        ((PROXY, ""), (STRANGER, ""), True, False),  # a new user for each request is no new client
        ((STRANGER, "198.51.100.1"), (STRANGER, "198.51.100.2"), False, True),  # what it says is not believed
    ],
    ids=["addresses", "a proxy's users", "users", "a stranger"],
)
async def test_one_client_does_not_wait_behind_all_of_another_and_nobody_is_many(
    fair: ServerProcess, greedy: tuple[str, str], other: tuple[str, str], has_names: bool, waits: bool
) -> None:
    async with http(fair, *greedy) as many, http(fair, *other) as one:
        before = await num_done_before(many, one, fair, has_names=has_names)
    assert (before > NUM_QUEUED // 3) == waits
