"""A cable is pulled between an API process and a replica: network namespaces, so the kernel's own TCP is what
waits for answers. Takes root; run with `-m slow`.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import anyio
import msgspec
import pytest

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.replicas.wire import DoorAddress
from tests.engine_client.test_client import expected_text
from tests.replicas.test_host import hosting, until
from tests.replicas.test_stream import link, opened, remote
from tests.scheduler.driver import request
from tests.waiting import DEADLINE_S

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

LEASE_S = 2.0
SPACE, OUR_END, ITS_END = "ocs-partition", "ocs-here", "ocs-there"
OUR_ADDRESS, ITS_ADDRESS = "10.207.31.1", "10.207.31.2"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def cable() -> Iterator[None]:
    """Between this machine and a namespace that is only reached by it."""
    if not shutil.which("ip") or os.geteuid() != 0:
        pytest.skip("network namespaces take iproute2 and root")
    if subprocess.run(["ip", "netns", "add", SPACE], capture_output=True).returncode:
        pytest.skip("the system makes no network namespaces here")
    try:
        ip("link", "add", OUR_END, "type", "veth", "peer", "name", ITS_END, "netns", SPACE)
        ip("address", "add", f"{OUR_ADDRESS}/30", "dev", OUR_END)
        ip("-n", SPACE, "address", "add", f"{ITS_ADDRESS}/30", "dev", ITS_END)
        ip("link", "set", OUR_END, "up")
        ip("-n", SPACE, "link", "set", ITS_END, "up")
        yield
    finally:
        ip("netns", "delete", SPACE)  # with its end the other one goes


class Far:
    """A replica behind the cable. What it prints comes over a pipe, which stays."""

    def __init__(self, process: asyncio.subprocess.Process, plate: DoorAddress) -> None:
        self._process = process
        self.plate = plate
        self._told: list[int] = []

    async def has(self, num_requests: int) -> None:
        """Wait until it computes so many."""
        with anyio.fail_after(DEADLINE_S):
            while self._told[-1:] != [num_requests]:
                self._told.append(int(await self._process.stdout.readline()))


@asynccontextmanager
async def far() -> AsyncIterator[Far]:
    inside = ["ip", "netns", "exec", SPACE, sys.executable, "-m", "tests.replicas.host_process"]
    process = await asyncio.create_subprocess_exec(
        *inside, ITS_ADDRESS, str(LEASE_S), stdout=asyncio.subprocess.PIPE
    )
    try:
        told = json.loads(await process.stdout.readline())
        yield Far(process, msgspec.convert(told, DoorAddress))
    finally:
        process.kill()
        await process.wait()


@pytest.mark.usefixtures("cable")
async def test_a_pulled_cable_is_a_pause_and_the_lost_half_ends_by_itself() -> None:
    one = request("a", output=300)
    async with (
        far() as lost,
        remote(lost.plate, lease_s=LEASE_S) as engine,
        hosting("step_s=0.01") as near,
        opened(near) as plate,
    ):
        text, is_cut = "", False
        async with engine.generate([one]) as generation:
            async for event in generation:
                text += event.text
                if len(text) >= 5 and not is_cut:
                    is_cut = True
                    ip("link", "set", OUR_END, "down")
                    engine.replicas_are({"r0": link(lost.plate), "r1": link(plate)})
        assert text == expected_text(one)
        assert engine.status().restarts == 1
        await lost.has(1)
        await lost.has(0)
        ip("link", "set", OUR_END, "up")
        engine.replicas_are({"r0": link(lost.plate)})
        await until(engine, EngineState.READY)
        async with engine.generate([request("b", output=2000)]) as generation:
            assert await anext(aiter(generation))
            await lost.has(1)
