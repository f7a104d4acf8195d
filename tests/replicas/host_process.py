"""A replica's side as a process of its own, with the fake backend: it is told its address and `lease_s`.

Its first line says where it is, in JSON; then one comes with the number of its requests, when that changes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys

import msgspec

from openai_cpu_server.replicas.host.host import ReplicaDoor
from tests.replicas.test_host import hosting
from tests.waiting import eventually


async def main(address: str, lease_s: float) -> None:
    async with hosting("step_s=0.01", lease_s=lease_s) as host:
        door = ReplicaDoor(host, sending_s=60.0)
        _say(json.dumps(msgspec.to_builtins(await door.open(address))))
        told = 0
        while True:
            with contextlib.suppress(AssertionError):  # nothing has changed for a minute
                await eventually(lambda: host.num_live != told)  # noqa: B023 (called at once)
            told = host.num_live
            _say(str(told))


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], float(sys.argv[2])))
