"""Simulations for the report: the goal, sizes, faults, a day; and their figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions
from simulation.fleet import ROUTINGS, Fault, Machine, Outcome, Plan, simulate
from simulation.turns import Mix, Turn, day_curve, trace

_SIZES = (1, 2, 4, 8, 12, 15, 16, 17, 24, 32, 48, 64, 128, 256)
_BILLION = (41.2, 45.8, 54.5, 66.3, 81.0, 96.7, 96.9, 102.3, 121.2, 161.8, 200.2, 253.7, 461.1, 882.4)
_SMOLLM2 = (8.29, 8.70, 9.95, 12.5, 15.9, 18.5, 19.3, 20.1, 25.3, 31.8, 39.1, 47.7, 88.6, 134.9)
CURVES = {
    "1b": CostCurve(step_ms=tuple(zip(_SIZES, _BILLION, strict=True)), attended_ms=0.000872),
    "smollm2": CostCurve(step_ms=tuple(zip(_SIZES, _SMOLLM2, strict=True)), attended_ms=0.000629),
}
"""Measured at the start (`--calibrate start`) on two cores of an AMD EPYC (Zen 4) with our kernels: 1.04
billion parameters in Q4_K_M, and SmolLM2 135M in Q4_0."""


class _CurveFile(msgspec.Struct):
    value: CostCurve


def read_curve(name: str) -> CostCurve:
    """Return one of `CURVES`, or that of a server's cache file `curve-*.json`."""
    if name in CURVES:
        return CURVES[name]
    return msgspec.json.decode(Path(name).read_bytes(), type=_CurveFile).value


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Row of a table. Times are virtual, except the router's own."""

    name: str
    num_replicas: int
    requests: int
    ttft_p50_s: float
    ttft_p95_s: float
    gap_p95_s: float
    tokens_per_s: float
    hit_rate: float
    imbalance: float
    """Busiest replica's computing time, as a multiple of the mean."""
    busy: float
    choosing_p50_us: float
    choosing_p95_us: float
    """Real CPU microseconds of a choice: hashing the prompt's blocks, choosing, and the accounts."""
    moved: int = 0
    replica_hours: float = 0.0


def figures(plan: Plan, outcome: Outcome) -> Figures:
    people = [one for one in outcome.requests if one.request.priority is Priority.INTERACTIVE]
    firsts = [one.first_s - one.arrived_s for one in people if one.first_s is not None]
    busy = [replica.busy_s for replica in outcome.replicas]
    prompt_tokens = sum(replica.prompt_tokens for replica in outcome.replicas)
    return Figures(
        name=plan.routing,
        num_replicas=plan.num_replicas,
        requests=len(outcome.requests),
        ttft_p50_s=quantile(firsts, 0.5),
        ttft_p95_s=quantile(firsts, 0.95),
        gap_p95_s=quantile([one.longest_pause_s for one in people], 0.95),
        tokens_per_s=sum(replica.output_tokens for replica in outcome.replicas) / outcome.seconds,
        hit_rate=sum(r.cached_tokens for r in outcome.replicas) / max(1, prompt_tokens),
        imbalance=max(busy) / (sum(busy) / len(busy)),
        busy=sum(busy) / outcome.replica_s,
        choosing_p50_us=1e6 * quantile(outcome.choosing_s, 0.5),
        choosing_p95_us=1e6 * quantile(outcome.choosing_s, 0.95),
        moved=len(outcome.moved),
        replica_hours=outcome.replica_s / 3600,
    )


def quantile(values: Iterable[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


_COLUMNS: dict[str, Callable[[Figures], str]] = {
    "routing": lambda row: row.name,
    "TTFT p50 s": lambda row: f"{row.ttft_p50_s:.2f}",
    "p95 s": lambda row: f"{row.ttft_p95_s:.2f}",
    "longest pause p95 s": lambda row: f"{row.gap_p95_s:.2f}",
    "tokens/s": lambda row: f"{row.tokens_per_s:,.0f}",
    "hit rate": lambda row: f"{row.hit_rate:.3f}",
    "imbalance": lambda row: f"{row.imbalance:.2f}",
    "busy": lambda row: f"{row.busy:.0%}",
    "choice p50 µs": lambda row: f"{row.choosing_p50_us:.0f}",
    "choice p95 µs": lambda row: f"{row.choosing_p95_us:.0f}",
}


def table(rows: Iterable[Figures]) -> Iterator[str]:
    yield f"| replicas | {' | '.join(_COLUMNS)} |"
    yield f"|---:|---|{'---:|' * (len(_COLUMNS) - 1)}"
    for row in rows:
        yield f"| {row.num_replicas} | {' | '.join(cell(row) for cell in _COLUMNS.values())} |"


PER_REPLICA = Mix(chats=0.06, questions=0.03, batch_rows=0.08)
"""Two thirds of the time of one replica with a model of 10^9 parameters on two cores."""
PREFIXES = Mix(chats=0.07, questions=0.05)
"""Nearly every prompt begins with a shared prefix."""


_MOST_SLOTS = 250
"""A step of 256 tokens has room for one of each."""


_MANY = 1000


def one_instead(plan: Plan) -> Plan:
    """Return one replica as fast as the whole plan, with the memory of all."""
    num, machine = plan.num_replicas, plan.machine
    giant = replace(
        machine,
        curve=faster(machine.curve, num),
        num_slots=min(_MOST_SLOTS, num * machine.num_slots),
        kv_tokens=num * machine.kv_tokens,
        cache_blocks=num * machine.cache_blocks,
    )
    return replace(plan, machine=giant, num_replicas=1, routing="round robin")


def goal(curve: CostCurve, seconds: float, seed: int) -> Iterator[str]:
    turns = trace(scaled(PREFIXES, 4), seconds, seed)
    plan = Plan(Machine(curve), 4, seed=seed)
    one, rows = run(one_instead(plan), turns), [*compared(plan, turns)]
    yield f"One replica, as fast as all: hit rate {one.hit_rate:.3f}, TTFT p95 {one.ttft_p95_s:.2f} s\n"
    yield from table(rows)
    share, imbalance = rows[-1].hit_rate / one.hit_rate, rows[-1].imbalance
    yield f"\nOurs: hit rate {share:.3f} of one replica's (goal: 0.95), imbalance {imbalance:.2f} (1.25)"


def sizes(curve: CostCurve, counts: Sequence[int], seconds: float, seed: int) -> Iterator[Figures]:
    for count in counts:
        # A thousand take ten minutes of one core as it is.
        until_s = seconds if count < _MANY else seconds / 6
        turns = trace(scaled(PER_REPLICA, count), until_s, seed)
        plan = Plan(
            Machine(curve),
            count,
            # A router for 100 replicas: there are several in front of more, which know of each other nothing.
            num_routers=max(1, count // 100),
            news_s=0.25 if count < _MANY else 1.0,
            until_s=until_s,
            seed=seed,
        )
        yield from compared(plan, turns)


def compared(plan: Plan, turns: Sequence[Turn]) -> Iterator[Figures]:
    for name in ROUTINGS:
        yield run(replace(plan, routing=name), turns)


def run(plan: Plan, turns: Sequence[Turn]) -> Figures:
    return figures(plan, simulate(plan, turns))


def faults(curve: CostCurve, seconds: float, seed: int) -> Iterator[str]:
    yield "| story | TTFT p50 s | p95 s | moved | their longest pause s | answers not whole |"
    yield "|---|---:|---:|---:|---:|---:|"
    turns = trace(scaled(PER_REPLICA, 4), seconds, seed)
    plan = Plan(Machine(curve), 4, seed=seed)
    stories = {
        "nothing happens": (),
        "one of four dies": (Fault(seconds / 2, 1),),
        "one of four is drained": (Fault(seconds / 2, 1, is_drain=True),),
    }
    for name, struck in stories.items():
        outcome = simulate(replace(plan, faults=struck), turns)
        row = figures(plan, outcome)
        lost = sum(tuple(one.output) != one.answer for one in outcome.requests)
        pause_s = max((one.longest_pause_s for one in outcome.moved), default=0.0)
        times = f"{row.ttft_p50_s:.2f} | {row.ttft_p95_s:.2f} | {row.moved} | {pause_s:.2f}"
        yield f"| {name} | {times} | {lost} |"


def day(curve: CostCurve, seconds: float, seed: int, most: int = 8) -> Iterator[str]:
    """Run a day in less time: twice the mean at noon, next to nothing at night, with bursts."""
    busiest, day_s = scaled(PER_REPLICA, 0.45 * most), 24 * seconds
    turns = trace(replace(busiest, batch_rows=0.0), day_s, seed, day_curve(day_s))
    options = AutoscaleOptions(min_replicas=1, max_replicas=most)
    plan = Plan(Machine(curve), 1, autoscale=options, seed=seed)
    outcome = simulate(plan, turns)
    largest = max(serving for _, serving, _ in outcome.sizes)
    fixed = run(replace(plan, autoscale=None, num_replicas=largest), turns)
    yield f"At most {largest} replicas served.\n"
    yield "| replicas | replica hours | TTFT p50 s | p95 s | requests |\n|---|---:|---:|---:|---:|"
    for name, row in (("autoscaled", figures(plan, outcome)), (f"always {largest}", fixed)):
        times = f"{row.replica_hours:.1f} | {row.ttft_p50_s:.2f} | {row.ttft_p95_s:.2f}"
        yield f"| {name} | {times} | {row.requests} |"


def scaled(mix: Mix, factor: float) -> Mix:
    return replace(
        mix, chats=factor * mix.chats, questions=factor * mix.questions, batch_rows=factor * mix.batch_rows
    )


def faster(curve: CostCurve, factor: float) -> CostCurve:
    steps = tuple((num, ms / factor) for num, ms in curve.step_ms)
    return CostCurve(step_ms=steps, attended_ms=curve.attended_ms / factor)
