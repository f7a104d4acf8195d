"""Clients take turns by their addresses, and users of a trusted proxy by the addresses that it forwards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from tests.e2e.serving import num_live, tiny_server
from tests.gates import suspended
from tests.server_process import ServerProcess
from tests.waiting import DEADLINE_S, wait_until

pytestmark = [pytest.mark.native, pytest.mark.thorough]

PROXY, STRANGER = "127.0.0.1", "127.0.0.2"
NUM_QUEUED = 12


@pytest.fixture(scope="module")
def fair() -> Iterator[ServerProcess]:
    options = ("--max-seqs", "1", "--api-key", "root", "--trusted-proxy", PROXY, "--hang-seconds", "0")
    with tiny_server(*options) as process:
        yield process


def http(server: ServerProcess, address: str, user: str = "") -> httpx.AsyncClient:
    """Return a client with this local address. A proxy forwards the address of its user."""
    headers = {"x-api-key": "root", **({"x-forwarded-for": user} if user else {})}
    transport = httpx.AsyncHTTPTransport(local_address=address, limits=httpx.Limits(max_connections=None))
    return httpx.AsyncClient(base_url=server.url, transport=transport, headers=headers, timeout=DEADLINE_S)


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("greedy", "other", "has_users", "must_wait"),
    [
        ((PROXY, ""), (STRANGER, ""), False, False),
        ((PROXY, "198.51.100.1"), (PROXY, "198.51.100.2"), False, False),
        ((PROXY, ""), (STRANGER, ""), True, False),  # a new `user` in each request makes no new client
        ((STRANGER, "198.51.100.1"), (STRANGER, "198.51.100.2"), False, True),  # its header is not trusted
    ],
    ids=["addresses", "a proxy's users", "users", "a stranger"],
)
async def test_one_client_does_not_wait_behind_all_requests_of_another(
    fair: ServerProcess, greedy: tuple[str, str], other: tuple[str, str], has_users: bool, must_wait: bool
) -> None:
    """The engine is suspended until all requests are queued. The log has their ends in order."""
    body = {"prompt": "a", "max_tokens": 8, "ignore_eos": True}
    first_line = len(fair.lines)
    async with http(fair, *greedy) as many, http(fair, *other) as other_client:

        async def ask(client: httpx.AsyncClient, name: str) -> httpx.Response:
            fields = {**body, "user": name} if has_users else body
            return await client.post("/v1/completions", json=fields, headers={"x-request-id": name})

        with suspended(fair.engine.pid):
            tasks = [asyncio.create_task(ask(many, f"greedy-{number}")) for number in range(NUM_QUEUED)]
            await asyncio.to_thread(wait_until, lambda: num_live(fair) == NUM_QUEUED)
            tasks.append(asyncio.create_task(ask(other_client, "other")))
            await asyncio.to_thread(wait_until, lambda: num_live(fair) == NUM_QUEUED + 1)
        assert {answer.status_code for answer in await asyncio.gather(*tasks)} == {200}

    def ends() -> list[str]:
        return [line for line in fair.lines[first_line:] if " status=200 " in line]

    await asyncio.to_thread(wait_until, lambda: len(ends()) == NUM_QUEUED + 1)
    (place,) = (number for number, line in enumerate(ends()) if "id=other " in line)
    assert (place > NUM_QUEUED // 2) == must_wait, ends()
