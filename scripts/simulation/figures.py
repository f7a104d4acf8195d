"""Figures of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from openai_cpu_server.contract.request import Priority
from simulation.fleet import Outcome, Plan


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a table. Times are virtual, except the router's own."""

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
    """Real microseconds of CPU for a choice: hashing the prompt's blocks, choosing, and the accounts."""
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


_HEADS = (
    "routing",
    "TTFT p50 s",
    "p95 s",
    "longest pause p95 s",
    "tokens/s",
    "hit rate",
    "imbalance",
    "busy",
    "choice p50 µs",
    "p95 µs",
)


def table(rows: Sequence[Figures]) -> str:
    lines = [" | ".join(("", *_HEADS, "")), "|".join(("", "---", *("---:" for _ in _HEADS[1:]), ""))]
    lines += [" | ".join(("", *_cells(row), "")) for row in rows]
    return "\n".join(line.strip() for line in lines)


def _cells(row: Figures) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.ttft_p50_s:.2f}",
        f"{row.ttft_p95_s:.2f}",
        f"{row.gap_p95_s:.2f}",
        f"{row.tokens_per_s:,.0f}",
        f"{row.hit_rate:.3f}",
        f"{row.imbalance:.2f}",
        f"{row.busy:.0%}",
        f"{row.choosing_p50_us:.0f}",
        f"{row.choosing_p95_us:.0f}",
    )
