"""The same trace on a real server, beside the simulation of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.asking import Ask, Priority
from bench.load import Clients

from simulation.figures import quantile
from simulation.fleet import Plan, simulate
from simulation.turns import Texts, Turn, prompts

_FIRST_TOKEN = 300


class Summary(NamedTuple):
    ttft_p50_s: float
    ttft_p95_s: float
    latency_p50_s: float
    latency_p95_s: float
    hit_rate: float
    seconds: float

    @classmethod
    def of(cls, firsts: list[float], wholes: list[float], hit_rate: float, seconds: float) -> Summary:
        times = (quantile(some, share) for some in (firsts, wholes) for share in (0.5, 0.95))
        return cls(*times, hit_rate, seconds)


def simulated(plan: Plan, turns: Sequence[Turn]) -> Summary:
    outcome = simulate(plan, turns)
    done = outcome.requests
    return Summary.of(
        [(one.first_s or 0.0) - one.arrived_s for one in done],
        [(one.ended_s or 0.0) - one.arrived_s for one in done],
        sum(one.cached_tokens for one in done) / sum(len(one.request.tokens) for one in done),
        outcome.seconds,
    )


async def real(port: int, model: str, turns: Sequence[Turn], seed: int) -> Summary:
    """Send the first turn of each session at its time to a server on this machine. Later turns are left
    out, because they would begin with an answer that the model has not given."""
    clients, texts = Clients(port), Texts(seed)
    began = time.perf_counter()
    asks = [_ask(model, turn, texts) for turn in turns]
    await clients.open_loop(asks, [turn.at_s for turn in turns])
    clients.check()
    usages = [trace.usage for trace in clients.traces if trace.usage]
    return Summary.of(
        [trace.ttft_s for trace in clients.traces if trace.ttft_s is not None],
        [trace.end - trace.arrival for trace in clients.traces if trace.end is not None],
        sum(usage.cached_tokens for usage in usages) / sum(usage.prompt_tokens for usage in usages),
        time.perf_counter() - began,
    )


def _ask(model: str, turn: Turn, texts: Texts) -> Ask:
    ((prompt, _),) = prompts([turn], texts)
    return Ask(
        prompt=tuple(_FIRST_TOKEN + token for token in prompt),
        max_tokens=turn.output,
        temperature=0.0,
        priority=Priority.BATCH if turn.batch else Priority.INTERACTIVE,
        model=model,
    )
