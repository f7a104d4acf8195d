"""Loads for the real scheduler in virtual time, with the same numbers on every machine.

chat     32 x 250 + 48 tokens at once in 16 slots
arrivals 48 of the same, one each 0.7 s
quotes   16 x 250 + 96 in 2 slots, most of the output stands in the prompt
mixed    16 x 400 + 100 batch in 12 slots, an interactive 100 + 24 every 1.5 s, which is measured
long     4,000 tokens beside 8 streams: its first token, and the streams
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.figures import quantile
from simulation.replica import Live, Machine, SimReplica

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Step

_SLOWNESS, _NOISE = 1.2, 0.1
"""Real step times in times of the scheduler's curve, and their noise, so that all that it learns matters."""


@dataclass
class Client:
    live: Live
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return 1000 * (self.token_times[0] - self.live.arrived_s)

    @property
    def worst_gap_ms(self) -> float:
        return 1000 * max((b - a for a, b in itertools.pairwise(self.token_times)), default=0.0)


@dataclass(frozen=True)
class Load:
    slots: int
    streams: list[Client]
    newcomers: list[Client]
    others: list[Client] = field(default_factory=list)

    @property
    def stall_ms(self) -> float:
        return max(one.worst_gap_ms for one in self.streams)

    def ttft_ms(self, share: float) -> float:
        return quantile([one.ttft_ms for one in self.newcomers], share)

    def serve(
        self, *, options: EngineOptions, told: CostCurve, step_ms: Callable[[Step, int], float]
    ) -> float:
        """Serve all, and return the tokens per second. `step_ms` gets a step, and the cells in the pool."""
        everybody = sorted([*self.others, *self.streams], key=lambda one: one.live.arrived_s)
        arriving, now_s = list(everybody), 0.0
        machine = Machine(
            told,
            lambda step, cells: _SLOWNESS * step_ms(step, cells),
            has_drafts=True,
            num_slots=self.slots,
            cache_blocks=4_096,
            noise=_NOISE,
            stride=1,
        )
        replica = SimReplica("one", machine, options, seed=7)
        while replica.has_work or arriving:
            if not replica.has_work:
                now_s = max(now_s, arriving[0].live.arrived_s)
            while arriving and arriving[0].live.arrived_s <= now_s:
                replica.submit(arriving.pop(0).live, now_s)
            now_s = replica.begin_step(now_s)
            replica.end_step(now_s)
            for one in everybody:
                one.token_times += [now_s] * (len(one.live.output) - len(one.token_times))
        return sum(len(one.token_times) for one in everybody) / now_s


def loads() -> dict[str, Load]:
    chat = [_client(f"c{n}", 250, 48, seed=n) for n in range(32)]
    arrivals = [_client(f"c{n}", 250, 48, seed=n, arrives_ms=700 * n) for n in range(48)]
    quotes = [_client(f"q{n}", 250, 96, seed=n, quoted=0.7) for n in range(16)]
    batch = [_client(f"b{n}", 400, 100, seed=n, priority=Priority.BATCH) for n in range(16)]
    people = [_client(f"i{n}", 100, 24, seed=90 + n, arrives_ms=1500 * (n + 1)) for n in range(20)]
    streams = [_client(f"s{n}", 50, 300, seed=n) for n in range(8)]
    long = _client("long", 4000, 16, seed=99, arrives_ms=5000)
    return {
        "chat": Load(16, chat, chat),
        "arrivals": Load(16, arrivals, arrivals),
        "quotes": Load(2, quotes, quotes),
        "mixed": Load(12, people, people, batch),
        "long": Load(16, streams, [long], [long]),
    }


def _client(
    name: str,
    prompt: int,
    output: int,
    *,
    seed: int,
    quoted: float = 0.0,
    priority: Priority = Priority.INTERACTIVE,
    arrives_ms: float = 0.0,
) -> Client:
    choice = random.Random(seed)
    tokens = [choice.randrange(10, 30_000) for _ in range(prompt)]
    text: list[int] = []
    while len(text) < output:
        at = choice.randrange(prompt - 12)
        is_quote = choice.random() < quoted
        text += tokens[at : at + 12] if is_quote else [choice.randrange(10, 30_000) for _ in range(12)]
    request = GenerationRequest(
        id=name, tokens=tuple(tokens), max_tokens=output, sampling=Sampling(seed=1), priority=priority
    )
    return Client(Live(request, tuple(text[:output]), (), arrives_ms / 1000, name, 0))
