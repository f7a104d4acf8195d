"""*prefix*: one long prompt that all requests begin with; what computing it once brings."""

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

_SERVER = ("--ctx-size", "16384")
_VARIANTS = (Variant.WHOLE, Variant.CACHE_OFF, Variant.SEQUENTIAL)


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int


FULL = Size(requests=48, clients=16, shared_tokens=1080, own_tokens=45, output_tokens=16)
QUICK = Size(requests=24, clients=8, shared_tokens=540, own_tokens=22, output_tokens=8)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    runs = bench.interleaved({variant: partial(_measure, bench, size, variant) for variant in _VARIANTS})
    speeds = {variant: _each(runs[variant], lambda run: run.requests_per_s) for variant in _VARIANTS}
    cached = _each(runs[Variant.WHOLE], lambda run: run.cached_share)
    return WorkloadResult(
        name="prefix",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.shared_tokens} shared + {size.own_tokens} own + {size.output_tokens} output tokens",
        goals=_goals(speeds, cached),
        figures=(
            *(Figure(what=f"{v.label}: requests", rounds=speeds[v], unit="1/s") for v in _VARIANTS),
            *(_ttft(variant, runs[variant]) for variant in _VARIANTS),
            Figure(what="ours: cached share of prompt tokens", rounds=cached),
        ),
    )


def _goals(speeds: dict[Variant, Rounds], cached: Rounds) -> tuple[Goal, ...]:
    whole = speeds[Variant.WHOLE]
    return (
        _at_least(
            "requests/s, against one at a time with cache off", ratio(whole, speeds[Variant.SEQUENTIAL]), 10
        ),
        _at_least("requests/s, against cache off", ratio(whole, speeds[Variant.CACHE_OFF]), 5),
        _at_least("cached share of prompt tokens", 100 * cached.median, 90, unit="%"),
    )


def _at_least(what: str, measured: float, limit: float, unit: str = "x") -> Goal:
    return Goal(what=what, measured=measured, direction=Direction.AT_LEAST, limit=limit, unit=unit)


def _measure(bench: Bench, size: Size, variant: Variant, number: int) -> BatchRun:
    with bench.server(variant, *_SERVER) as server:
        return run_batch(server, asks(size, number), size.clients)


def asks(size: Size, number: int) -> list[Ask]:
    """Of one round; every server gets the same, and no round shares the prefix of another."""
    shared = random_tokens(size.shared_tokens, "prefix", number)
    return [
        Ask(
            prompt=shared + random_tokens(size.own_tokens, "own", number, i),
            max_tokens=size.output_tokens,
            seed=i,
        )
        for i in range(size.requests)
    ]


def _ttft(variant: Variant, runs: list[BatchRun]) -> Figure:
    rounds = _each(runs, lambda run: run.ttft_s(50))
    return Figure(what=f"{variant.label}: TTFT p50", rounds=rounds, unit="s")


def _each(runs: list[BatchRun], figure: Callable[[BatchRun], float]) -> Rounds:
    return Rounds(tuple(map(figure, runs)))
