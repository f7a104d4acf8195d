"""Runs mixed traffic against a server of its own, prints figures, and fails if memory grows or 5xx come.

    scripts/soak.py --model PATH [--minutes 20] [--clients 8] [--max-growth 0.1]

Memory is the process tree's. What a server fills once (prefix cache, allocators) it has filled by the end of
the warm-up, a quarter of the time; what grows behind that is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import httpx
import psutil
from bench.contestants import Variant, ours
from bench.process_tree import TreeUse
from bench.servers import Server, ServerFailed, ServerSpec, running
from soaking.traffic import Client

_MIB = 2**20
_OPTIONS = ("--ctx-size", "8192", "--cache-mb", "8", "--calibrate", "never")
_SETTLE_S = 2.0
"""Seconds behind the last request, before memory is read."""


def main() -> int:
    arguments = _arguments()
    uses: list[tuple[str, TreeUse]] = []
    try:
        with tempfile.TemporaryDirectory() as folder, running(_spec(arguments.model, folder), uses) as server:
            return asyncio.run(_Soak(server, arguments).run())
    except ServerFailed as error:
        print(error, file=sys.stderr)
        return 1


def _spec(model: Path, folder: str) -> ServerSpec:
    """The server. Its jobs are in a file: in memory they would count as growth."""
    return ours(Variant.WHOLE, model, *_OPTIONS, "--jobs-db", str(Path(folder) / "jobs.db"))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--model", type=Path, required=True, help="GGUF file; a small one makes many requests"
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8, help="at once")
    parser.add_argument("--max-growth", type=float, default=0.1, help="share of the memory after warm-up")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class _Soak:
    def __init__(self, server: Server, arguments: argparse.Namespace) -> None:
        self._process = psutil.Process(server.pid)
        self._url = f"http://127.0.0.1:{server.port}"
        self._seconds: float = 60 * arguments.minutes
        self._num_clients: int = arguments.clients
        self._max_growth: float = arguments.max_growth
        self._seed: int = arguments.seed
        self._counts: Counter[str] = Counter()

    async def run(self) -> int:
        """The exit code."""
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as http:
            start = self._tree_bytes()
            await self._busy(http, self._seconds / 4, self._seed)
            warm = self._tree_bytes()
            await self._busy(http, 3 * self._seconds / 4, self._seed + 1000)
            end = self._tree_bytes()
            restarts = (await http.get("/health")).json()["restarts"]
        self._print(restarts, start, warm, end)
        growth = end / warm - 1
        is_good = growth <= self._max_growth and not (
            self._counts["5xx"] or self._counts["errors"] or restarts
        )
        print("good" if is_good else "NOT GOOD")
        return 0 if is_good else 1

    async def _busy(self, http: httpx.AsyncClient, seconds: float, seed: int) -> None:
        end_s = time.monotonic() + seconds
        await asyncio.gather(*(self._client(http, seed + i, end_s) for i in range(self._num_clients)))
        await asyncio.sleep(_SETTLE_S)

    async def _client(self, http: httpx.AsyncClient, seed: int, end_s: float) -> None:
        client = Client(http, self._counts, seed)
        while time.monotonic() < end_s:
            await client.visit()

    def _tree_bytes(self) -> int:
        tree = [self._process, *self._process.children(recursive=True)]
        return sum(process.memory_info().rss for process in tree)

    def _print(self, restarts: int, start: int, warm: int, end: int) -> None:
        for name, number in sorted(self._counts.items()):
            print(f"{name:30} {number}")
        print(f"{'restarts of the engine':30} {restarts}")
        for name, size in (("start", start), ("after warm-up", warm), ("end", end)):
            print(f"{'memory, ' + name:30} {size / _MIB:.1f} MiB")
        print(f"{'growth behind the warm-up':30} {end / warm - 1:+.1%}")


if __name__ == "__main__":
    sys.exit(main())
