"""*neighbours*: interactive requests of one model beside batch work of another, and beside its own.

Two engine processes with the same model share the cores, each behind a dispatcher, without HTTP: so the same
load is computed, and only the turns between them differ.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench.bench import Bench
from bench.load import LoadFailed, poisson_arrivals
from bench.prompts import about, random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.stats import Rounds, percentile, ratios
from openai_cpu_server.config.folders import tune_engines, user_cache_dir
from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.scheduling import BY_DEFAULT
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.shared_cores import SharedCores
from openai_cpu_server.engine_client.supervisor import Supervisor

_COMMAND = (
    *(sys.executable, "-m", "openai_cpu_server.kernels.front"),
    *("openai_cpu_server.engine.process", "console"),
)
_START_S = 600.0
_POLL_S = 0.05
_LEAST_REQUESTS = 8
"""On average so many interactive requests come within a window; on a slow machine it is longer for that."""
_FLOOR = BY_DEFAULT.batch_floor


@dataclass(frozen=True)
class Size:
    ramp_s: float
    """Seconds with batch work alone before the first interactive request."""
    window_s: float
    num_idle: int = 8
    """Interactive requests one after the other, which say what one takes alone."""
    pace: float = 3.0
    """The mean interval between interactive requests, in times that a lone one takes. They come at random
    (Poisson)."""
    batch_clients: int = 8
    batch_prompt: int = 300
    batch_output: int = 60
    short_prompt: int = 33
    short_output: int = 12


FULL = Size(ramp_s=4.0, window_s=25.0)
QUICK = Size(ramp_s=0.5, window_s=3.0, num_idle=3)


@dataclass
class Phase:
    """What was seen beside one kind of company."""

    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    batch_tokens: int = 0
    """Batch output within the window."""
    seconds: float = 1.0

    @property
    def batch_per_s(self) -> float:
        return self.batch_tokens / self.seconds


@dataclass(frozen=True)
class Round:
    idle: Phase
    own: Phase
    others: Phase
    streams: Phase
    """Beside interactive requests of the other model, one after the other."""


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    rounds = []
    for number in range(bench.rounds):
        bench.say(f"round {number + 1} of {bench.rounds}: two models")
        rounds.append(asyncio.run(_round(bench.model, size, number, bench.say)))
    own, others = _p95(rounds, lambda r: r.own), _p95(rounds, lambda r: r.others)
    return WorkloadResult(
        name="neighbours",
        sizes=f"{size.batch_clients} batch clients, about {size.batch_prompt} + {size.batch_output} tokens; "
        f"interactive {size.short_prompt} + {size.short_output} tokens every {size.pace:g} times what "
        "one takes alone, on average; "
        f"windows of {size.window_s:g} s at least; two engines of the same model, no HTTP",
        goals=(
            Goal(
                what="interactive TTFT p95 beside another model's batch work, against beside its own",
                rounds=ratios(others, own),
                direction=Direction.AT_MOST,
                limit=1.0,
                unit="x",
            ),
        ),
        figures=tuple(_figures(rounds)),
    )


def _p95(rounds: list[Round], phase: Callable[[Round], Phase]) -> Rounds:
    return Rounds.of(rounds, lambda one: percentile(phase(one).ttft_s, 95))


def _figures(rounds: list[Round]) -> Iterator[Figure]:
    phases: dict[str, Callable[[Round], Phase]] = {
        "nobody": lambda one: one.idle,
        "its own batch work": lambda one: one.own,
        "another model's batch work": lambda one: one.others,
        "another model's interactive requests": lambda one: one.streams,
    }
    for name, phase in phases.items():
        for percent in (50, 95):
            yield _figure(rounds, f"interactive TTFT p{percent} beside {name}", "s", phase, _ttft(percent))
        yield _figure(rounds, f"inter-token latency p95 beside {name}", "s", phase, _gap)
    for name in ("its own batch work", "another model's batch work"):
        yield _figure(rounds, f"batch output: {name}", "tok/s", phases[name], lambda p: p.batch_per_s)


def _figure(
    rounds: list[Round],
    what: str,
    unit: str,
    phase: Callable[[Round], Phase],
    value: Callable[[Phase], float],
) -> Figure:
    return Figure(what=what, rounds=Rounds.of(rounds, lambda one: value(phase(one))), unit=unit)


def _ttft(percent: float) -> Callable[[Phase], float]:
    return lambda phase: percentile(phase.ttft_s, percent)


def _gap(phase: Phase) -> float:
    return percentile(phase.gaps_s, 95)


async def _round(model: Path, size: Size, number: int, say: Callable[[str], None]) -> Round:
    async with _engines(model) as (one, other):
        say("  idle")
        load = _Load(size, number)
        idle = await load.idle(one)
        say("  beside its own batch work")
        own = await load.phase("own", one, one)
        say("  beside another model's batch work")
        others = await load.phase("others", one, other)
        say("  beside another model's interactive requests")
        streams = await load.phase("streams", one, other, priority=Priority.INTERACTIVE, clients=1)
    return Round(idle, own, others, streams)


@contextlib.asynccontextmanager
async def _engines(model: Path) -> AsyncIterator[tuple[EngineClient, EngineClient]]:
    tune_engines()
    cores = SharedCores(batch_floor=_FLOOR)
    options = EngineOptions(
        model_path=str(model), kv_tokens=8192, calibrate="start", cost_dir=str(user_cache_dir() / "measured")
    )
    both = []
    async with contextlib.AsyncExitStack() as stack:
        for name in (
            "one",
            "other",
        ):  # one after the other: the second finds the costs that the first has kept
            engine = EngineClient(Supervisor(_COMMAND, options, partner=cores.join(name)), max_queue=1000)
            await stack.enter_async_context(_running(engine))
            both.append(engine)
        yield both[0], both[1]


@contextlib.asynccontextmanager
async def _running(engine: EngineClient) -> AsyncIterator[None]:
    task = asyncio.create_task(engine.run())
    try:
        deadline_s = time.monotonic() + _START_S
        while engine.state is not EngineState.READY:
            if task.done():
                await task
            if time.monotonic() > deadline_s:
                raise LoadFailed(f"an engine was not ready after {_START_S:.0f} s")
            await asyncio.sleep(_POLL_S)
        yield
    finally:
        await engine.close()
        await task


class _Load:
    """The load of one round."""

    def __init__(self, size: Size, number: int) -> None:
        self._size = size
        self._number = number
        self._every_s = 1.0

    async def idle(self, asked: EngineClient) -> Phase:
        """Requests one after the other. They set the pace of the phases that follow."""
        phase, begin_s = Phase(), time.perf_counter()
        for i in range(self._size.num_idle):
            await self._ask(asked, f"idle-{i}", time.perf_counter(), phase)
        self._every_s = self._size.pace * (time.perf_counter() - begin_s) / self._size.num_idle
        return phase

    async def phase(
        self,
        name: str,
        asked: EngineClient,
        company: EngineClient,
        *,
        priority: Priority = Priority.BATCH,
        clients: int | None = None,
    ) -> Phase:
        """Ask `asked` interactive requests while `clients` ask `company` without pause."""
        size, phase = self._size, Phase()
        jobs = self._jobs(name, priority)
        loops = [
            asyncio.create_task(self._ask_on(company, jobs, phase))
            for _ in range(clients or size.batch_clients)
        ]
        try:
            await asyncio.sleep(size.ramp_s)
            begin_s, phase.batch_tokens = time.perf_counter(), 0
            window_s = max(size.window_s, _LEAST_REQUESTS * self._every_s)
            arrivals = poisson_arrivals(1 / self._every_s, window_s, seed=self._number)
            await asyncio.gather(
                *[
                    self._ask(asked, f"{name}-{i}", begin_s + offset_s, phase)
                    for i, offset_s in enumerate(arrivals)
                ]
            )
            phase.seconds = time.perf_counter() - begin_s
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.gather(*loops, return_exceptions=True)
        if not phase.ttft_s:
            raise LoadFailed("no interactive request came within the window")
        return phase

    async def _ask(self, engine: EngineClient, name: str, at_s: float, phase: Phase) -> None:
        await asyncio.sleep(max(0.0, at_s - time.perf_counter()))
        size = self._size
        last_s = time.perf_counter()
        is_first = True
        request = self._request(name, size.short_prompt, size.short_output, Priority.INTERACTIVE)
        async with engine.generate([request]) as generation:
            async for event in generation:
                if event.tokens:
                    now_s = time.perf_counter()
                    (phase.ttft_s if is_first else phase.gaps_s).append(now_s - last_s)
                    last_s, is_first = now_s, False

    async def _ask_on(self, engine: EngineClient, jobs: Iterator[GenerationRequest], phase: Phase) -> None:
        for job in jobs:
            async with engine.generate([job]) as generation:
                async for event in generation:
                    phase.batch_tokens += len(event.tokens)

    def _jobs(self, name: str, priority: Priority) -> Iterator[GenerationRequest]:
        size = self._size
        for i in itertools.count():
            prompt, output = about(size.batch_prompt, "batch", i), about(size.batch_output, "output", i)
            yield self._request(f"{name}-job{i}", prompt, output, priority)

    def _request(self, name: str, prompt: int, output: int, priority: Priority) -> GenerationRequest:
        """Its prompt is like no other's."""
        return GenerationRequest(
            id=f"{name}/{self._number}",
            tokens=random_tokens(prompt, name, self._number),
            max_tokens=output,
            sampling=Sampling(seed=self._number, ignore_eos=True),
            priority=priority,
        )
