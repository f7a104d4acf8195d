#!/usr/bin/env python3
"""What the scheduler's tuned constants bring: simulated workloads with each of them smaller and larger.

    .venv/bin/python scripts/sensitivity.py [NAME ...]

Steps take what a cost curve says that was measured on a real machine with kernels of our own, 1.2 times as
long as the scheduler is told, with noise; so everything that it learns from matters. Nothing depends on this
machine: the same numbers come out everywhere. Columns:

    chat    32 x 250 + 48 tokens in 16 slots: tokens/s, longest stall of a stream
    quotes  16 x 250 + 96 in 2 slots, most of the output stands in the prompt
    mixed   16 x 400 + 100 batch, an interactive 100 + 24 every 1.5 s: p95 of its first token, tokens/s of all
    long    4,000 tokens beside 8 streams: its first token, longest stall of a stream
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Drafted, Sample, Span, Step, StepResult, num_right
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator

_SLOWNESS, _NOISE = 1.2, 0.1
_VARIANTS: dict[str, tuple[float, ...]] = {
    "cost_model._WORTH_PADDING": (0.9, 1.0),
    "cost_model._HARDLY_LONGER": (1.0, 1.3),
    "cost_model._RATE_ALL": (0.01, 0.2),
    "cost_model._RATE_TERM": (0.02, 0.4),
    "cost_model._LARGEST_ERROR": (math.log(1.1), math.log(4.0)),
    "memory.HEADROOM_TOKENS": (0, 128),
    "speculation.acceptance._FORGET_ALL": (0.98, 0.9999),
    "speculation.acceptance._FORGET_OWN": (0.85, 0.99),
    "speculation.acceptance._FADE": (0.99, 1.0),
    "speculation.acceptance._PRIOR_WEIGHT": (2.0, 32.0),
    "speculation.acceptance._LEAN": (1.0, 16.0),
    "speculation.draft_lengths._WORTH": (0.85, 1.0),
    "speculation.draft_lengths._LEAST_CHANCE": (0.005, 0.1),
    "speculation.gains._FORGET": (0.9, 0.995),
    "speculation.gains._TRIAL": (8, 128),
    "speculation.gains._ENOUGH": (2, 32),
    "speculation.gains._FURTHEST": (1.5, 10.0),
    "speculation.gains._PAUSE_MS": (2_000.0, 50_000.0),
    "speculation.lookup._MAX_PLACES": (1, 16),
    "speculation.lookup.MIN_MATCH": (1, 4),
}
"""By constant, a smaller and a larger value than the package's."""


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", help="constants such as cost_model._RATE_ALL; default: all")
    names = parser.parse_args().names or list(_VARIANTS)
    heads = ("chat tok/s", "gap", "quotes tok/s", "mixed TTFT", "tok/s", "long TTFT", "gap")
    print(f"{'constant':38}{'value':>10}" + "".join(f"{head:>14}" for head in heads))
    _print("as it is", "", _measure())
    for name in names:
        for value in _VARIANTS[name]:
            with _changed(name, value):
                _print(name, f"{value:g}", _measure())


def _print(name: str, value: str, figures: tuple[float, ...]) -> None:
    print(f"{name:38}{value:>10}" + "".join(f"{figure:14.1f}" for figure in figures), flush=True)


@contextmanager
def _changed(name: str, value: float) -> Iterator[None]:
    module_name, _, constant = name.rpartition(".")
    module = importlib.import_module(f"openai_cpu_server.scheduler.{module_name}")
    before = getattr(module, constant)
    setattr(module, constant, value)
    try:
        yield
    finally:
        setattr(module, constant, before)


def _measure() -> tuple[float, ...]:
    chat = [client(f"c{n}", 250, 48, seed=n) for n in range(32)]
    chat_ms = _run(chat, slots=16)
    quotes = [client(f"q{n}", 250, 96, seed=n, quoted=0.7) for n in range(16)]
    quotes_ms = _run(quotes, slots=2)
    batch = [client(f"b{n}", 400, 100, seed=n, priority=Priority.BATCH) for n in range(16)]
    people = [client(f"i{n}", 100, 24, seed=90 + n, arrives_ms=1500 * (n + 1)) for n in range(20)]
    mixed_ms = _run(batch + people, slots=12)
    streams = [client(f"s{n}", 50, 300, seed=n) for n in range(8)]
    long = client("long", 4000, 16, seed=99, arrives_ms=5000)
    _run([*streams, long], slots=16)
    ttfts = sorted(one.ttft_ms for one in people)
    return (
        1000 * 32 * 48 / chat_ms,
        max(one.worst_gap_ms for one in chat),
        1000 * 16 * 96 / quotes_ms,
        ttfts[int(0.95 * len(ttfts))],
        1000 * (16 * 100 + 20 * 24) / mixed_ms,
        long.ttft_ms,
        max(one.worst_gap_ms for one in streams),
    )


def client(
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


def _run(clients: list[Client], *, slots: int) -> float:
    """Serve them all; returns the milliseconds that it takes."""
    truth, noise = CostModel.guess(), random.Random(7)
    return serve(
        clients,
        slots=slots,
        options=EngineOptions(model_path=""),
        told=truth.curve,
        true_ms=lambda step, cells: _true_ms(step, truth) * _SLOWNESS * math.exp(noise.gauss(0, _NOISE)),
    )


def serve(
    clients: list[Client],
    *,
    slots: int,
    options: EngineOptions,
    told: CostCurve,
    true_ms: Callable[[Step, int], float],
) -> float:
    """Serve them all; returns the milliseconds that it takes.

    The scheduler is `told` what steps cost. `true_ms` says what a step takes, also by the cells in the pool.
    """
    scheduler = _scheduler(slots, options, told)
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


def _true_ms(step: Step, truth: CostModel) -> float:
    attended = sum(attended_pairs(span.start, span.num_tokens) for span in step.spans)
    return truth.predict_ms(step.num_tokens + step.padding, attended)


def _scheduler(slots: int, options: EngineOptions, told: CostCurve) -> Scheduler:
    return Scheduler(
        limits=StepLimits(slots, 256, 256),
        ledger=KVLedger(1024, 16),
        cache=SavedPrefixes(4096),
        cost=CostModel(told),
        options=step_options(options),
        policy=PriorityPolicy(),
        speculator=Speculator(LookupDrafter(frozenset({0}))),
    )


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


if __name__ == "__main__":
    main()
