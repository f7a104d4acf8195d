"""Loads that the real scheduler serves in virtual time: nothing depends on this machine, so the same numbers
come out everywhere.

    chat     32 x 250 + 48 tokens at once in 16 slots
    arrivals 48 of the same, one each 0.7 s
    quotes   16 x 250 + 96 in 2 slots, most of the output stands in the prompt
    mixed    16 x 400 + 100 batch in 12 slots, an interactive 100 + 24 every 1.5 s: what these feel
    long     4,000 tokens beside 8 streams: its first token, what the streams feel
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Drafted, Sample, Span, Step, StepResult, num_right
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator
from regressions.schedule import new_scheduler

_SLOWNESS, _NOISE = 1.2, 0.1
"""Steps take so many times what the scheduler is told, with noise: everything that it learns from matters."""


@dataclass
class Client:
    request: GenerationRequest
    text: list[int]
    arrives_ms: float = 0.0
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return self.token_times[0] - self.arrives_ms

    @property
    def worst_gap_ms(self) -> float:
        return max((b - a for a, b in itertools.pairwise(self.token_times)), default=0.0)


@dataclass(frozen=True)
class Load:
    slots: int
    streams: list[Client]
    """Whose rates and stalls count."""
    newcomers: list[Client]
    """Whose first tokens count."""
    others: list[Client] = field(default_factory=list)

    @property
    def everybody(self) -> list[Client]:
        return [*self.others, *self.streams]

    @property
    def stall_ms(self) -> float:
        return max(one.worst_gap_ms for one in self.streams)

    def ttft_ms(self, share: float) -> float:
        ordered = sorted(one.ttft_ms for one in self.newcomers)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def serve(
        self, *, options: EngineOptions, told: CostCurve, step_ms: Callable[[Step, int], float]
    ) -> float:
        """Serve them all; returns the tokens a second. `step_ms` gets a step, and the cells in the pool."""
        noise = random.Random(7)

        def true_ms(step: Step, cells: int) -> float:
            return step_ms(step, cells) * _SLOWNESS * math.exp(noise.gauss(0, _NOISE))

        total_ms = _serve(self.everybody, slots=self.slots, options=options, told=told, true_ms=true_ms)
        return 1000 * sum(len(one.token_times) for one in self.everybody) / total_ms


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
    """`quoted`: share of the output that repeats runs of twelve tokens of the prompt."""
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
    return Client(request, text[:output], arrives_ms)


def _serve(
    clients: list[Client],
    *,
    slots: int,
    options: EngineOptions,
    told: CostCurve,
    true_ms: Callable[[Step, int], float],
) -> float:
    """The milliseconds that it takes."""
    scheduler = new_scheduler(
        num_slots=slots,
        kv_tokens=16_384,
        cache_blocks=4_096,
        told=told,
        options=options,
        speculator=Speculator(LookupDrafter(frozenset({0}))),
    )
    by_name = {one.request.id: one for one in clients}
    arriving = sorted(clients, key=lambda one: one.arrives_ms)
    now_ms = 0.0
    while scheduler.has_work or arriving:
        if not scheduler.has_work:
            now_ms = max(now_ms, arriving[0].arrives_ms)
        while arriving and arriving[0].arrives_ms <= now_ms:
            scheduler.sequences.submit(arriving.pop(0).request, now_s=now_ms / 1000)
        step = scheduler.schedule()
        elapsed_ms = true_ms(step, 16 * scheduler.kv_stats.pool_blocks_used)
        now_ms += elapsed_ms
        names = {s.slot: s.request.id for s in scheduler.participants(step)}
        result = _executed(step, {slot: by_name[name] for slot, name in names.items()})
        for advance in scheduler.apply(step, result, elapsed_ms):
            served = by_name[advance.sequence.request.id]
            served.token_times += [now_ms] * len(advance.samples)
            if advance.sequence.remaining == 0:
                scheduler.sequences.complete(advance.sequence)
    return now_ms


def _executed(step: Step, clients: dict[int, Client]) -> StepResult:
    outputs = {s.slot: _output(s, clients[s.slot]) for s in step.spans if s.sample}
    return StepResult(
        samples={slot: tokens[0] for slot, tokens in outputs.items()},
        further={slot: tokens[1:] for slot, tokens in outputs.items() if tokens[1:]},
        drafted={
            span.slot: Drafted(len(span.draft), len(outputs[span.slot]) - 1)
            for span in step.spans
            if span.draft
        },
        padding=step.padding,
    )


def _output(span: Span, client: Client) -> tuple[Sample, ...]:
    """What comes behind the span: a token, and one more for each draft token that was right."""
    at = span.start + len(span.tokens) - len(client.request.tokens)
    coming = client.text[at:]
    return tuple(Sample(token) for token in coming[: num_right(span.draft, coming) + 1])
