"""Mixed traffic for a long time, also with models that come and go: no answer is lost, memory stays flat."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import psutil

from chaos_parts.server import Server
from chaos_parts.traffic import Client

_LOOK_S = 0.5
_SETTLE_S = 2.0
_LOADS = re.compile(r"^ocs_model_(\w+)_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Soak:
    """`memory_mib`: limit of several models together."""

    minutes: float
    clients: int
    pause_s: float
    kill_every_s: float | None
    """Interval, or None if nothing is killed and no engine may restart."""
    memory_mib: int | None
    max_growth: float
    seed: int


@dataclass
class SoakFigures:
    visits: Counter[str]
    """By kind and failure; `requests`, `errors` and `5xx` in all."""
    loads: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    restarts: int = 0
    start_mib: float = 0.0
    warm_mib: float = 0.0
    end_mib: float = 0.0
    growth: float = 0.0
    engines_most_mib: float = 0.0
    """Resident; pages of a file that two of them map count twice."""
    is_good: bool = False


def run_soak(models: Sequence[str], folder: Path, soak: Soak, options: Sequence[str]) -> SoakFigures:
    """Jobs are in a file, because in memory they would count as growth."""
    given = (*options, "--jobs-db", str(folder / "jobs.db"))
    if soak.memory_mib is not None:
        given = (*given, "--memory", str(soak.memory_mib))
    with Server(models, folder / "soak.log", *given) as server:
        return asyncio.run(_Run(server, soak).run())


class _Run:
    def __init__(self, server: Server, soak: Soak) -> None:
        self._server = server
        self._soak = soak
        self._chance = random.Random(soak.seed)
        self._figures = SoakFigures(visits=Counter({"errors": 0, "5xx": 0}))

    async def run(self) -> SoakFigures:
        found, soak = self._figures, self._soak
        limits = httpx.Limits(max_connections=soak.clients + 1)
        async with httpx.AsyncClient(base_url=self._server.url, timeout=300, limits=limits) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            kinds = {model["id"]: model["kind"] for model in listed}
            others = [asyncio.create_task(self._watch_memory()), asyncio.create_task(self._kill_on())]
            found.start_mib = self._tree_mib()
            # What a server fills once (prefix cache, allocators) it has filled after a quarter of the time.
            await self._busy(http, kinds, 60 * soak.minutes / 4, soak.seed)
            found.warm_mib = self._tree_mib()
            await self._busy(http, kinds, 60 * soak.minutes * 3 / 4, soak.seed + 1000)
            found.end_mib = self._tree_mib()
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            found.restarts = (await http.get("/health")).json()["restarts"]
            for what, count in _LOADS.findall((await http.get("/metrics")).text):
                found.loads[what] += int(float(count))
        found.kills, found.growth = self._server.kills, found.end_mib / found.warm_mib - 1
        found.is_good = self._is_good()
        return found

    def _is_good(self) -> bool:
        found, soak = self._figures, self._soak
        if found.visits["5xx"] or found.visits["errors"]:
            return False
        if soak.memory_mib is not None:
            return found.engines_most_mib <= soak.memory_mib
        return found.growth <= soak.max_growth and found.restarts <= found.kills

    async def _busy(self, http: httpx.AsyncClient, kinds: dict[str, str], seconds: float, seed: int) -> None:
        end_s = time.monotonic() + seconds

        async def visit_until(seed: int) -> None:
            client = Client(http, kinds, self._figures.visits, seed)
            while time.monotonic() < end_s:
                await client.visit()
                if self._soak.pause_s:
                    await asyncio.sleep(self._chance.expovariate(1 / self._soak.pause_s))

        await asyncio.gather(*(visit_until(seed + number) for number in range(self._soak.clients)))
        await asyncio.sleep(_SETTLE_S)

    async def _watch_memory(self) -> None:
        while True:
            engines = sum(map(_resident, self._server.engines())) / 2**20
            self._figures.engines_most_mib = max(self._figures.engines_most_mib, engines)
            await asyncio.sleep(_LOOK_S)

    async def _kill_on(self) -> None:
        while self._soak.kill_every_s is not None:
            await asyncio.sleep(self._soak.kill_every_s * self._chance.uniform(0.5, 1.5))
            self._server.kill_engine()

    def _tree_mib(self) -> float:
        process = psutil.Process(self._server.pid)
        return sum(map(_resident, [process, *process.children(recursive=True)])) / 2**20


def _resident(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
