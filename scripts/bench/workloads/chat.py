"""*chat*: many short conversations at once; what tile filling and mixed steps bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.asking import Ask
from bench.bench import Bench
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Variant
from bench.stats import Rounds, ratio
from bench.workloads.batches import BatchRun, run_batch

_SERVER = ("--ctx-size", "8192")


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int
    output_tokens: int


FULL = Size(requests=32, clients=16, prompt_tokens=173, output_tokens=48)
QUICK = Size(requests=16, clients=8, prompt_tokens=87, output_tokens=24)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    variants = (Variant.WHOLE, Variant.PLAIN_STEPS)
    runs = bench.interleaved({variant: partial(_measure, bench, size, variant) for variant in variants})
    whole, plain = runs[Variant.WHOLE], runs[Variant.PLAIN_STEPS]
    speed = ratio(_each(whole, _speed), _each(plain, _speed))
    return WorkloadResult(
        name="chat",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.prompt_tokens} + {size.output_tokens} tokens",
        goals=(
            Goal(
                what="output tokens/s, against the same server without tile filling and mixed steps",
                measured=speed,
                direction=Direction.AT_LEAST,
                limit=1.3,
                unit="x",
            ),
        ),
        figures=tuple(figure for variant in variants for figure in _figures(variant, runs[variant])),
    )


def _measure(bench: Bench, size: Size, variant: Variant, number: int) -> BatchRun:
    with bench.server(variant, *_SERVER) as server:
        return run_batch(server, asks(size, number), size.clients)


def asks(size: Size, number: int) -> list[Ask]:
    """Of one round; every server gets the same."""
    return [
        Ask(
            prompt=random_tokens(size.prompt_tokens, "chat", number, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.requests)
    ]


def _figures(variant: Variant, runs: list[BatchRun]) -> list[Figure]:
    label = variant.label
    return [
        Figure(what=f"{label}: output", rounds=_each(runs, _speed), unit="tok/s"),
        Figure(what=f"{label}: TTFT p50", rounds=_each(runs, lambda run: run.ttft_s(50)), unit="s"),
        Figure(what=f"{label}: worst stall", rounds=_each(runs, lambda run: run.worst_stall_s), unit="s"),
    ]


def _speed(run: BatchRun) -> float:
    return run.output_tokens_per_s


def _each(runs: list[BatchRun], figure: Callable[[BatchRun], float]) -> Rounds:
    return Rounds(tuple(map(figure, runs)))
