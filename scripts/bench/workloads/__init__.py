"""The workloads, by the names that `--workloads` takes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.bench import Bench
from bench.results import WorkloadResult
from bench.workloads import (
    bursts,
    chat,
    clients,
    cpu,
    embeddings,
    json_output,
    long_prompt,
    memory,
    mixed,
    neighbours,
    other_cells,
    pool_pressure,
    prefix,
    priority,
    schedule,
    speculation,
    throughput,
    unequal,
)

WORKLOADS: Mapping[str, Callable[[Bench], WorkloadResult]] = {
    "throughput": throughput.run,
    "clients": clients.run,
    "chat": chat.run,
    "prefix": prefix.run,
    "mixed": mixed.run,
    "long-prompt": long_prompt.run,
    "bursts": bursts.run,
    "unequal": unequal.run,
    "priority": priority.run,
    "cpu": cpu.run,
    "json": json_output.run,
    "speculation": speculation.run,
    "memory": memory.run,
    "schedule": schedule.run,
    "pool-pressure": pool_pressure.run,
    "other-cells": other_cells.run,
    "neighbours": neighbours.run,
    "embeddings": embeddings.run,
}

OURS_ALONE = frozenset(
    {"speculation", "priority", "schedule", "pool-pressure", "other-cells", "neighbours", "embeddings"}
)
"""The workloads that measure no other server, and no variant that can be named."""

QUICK = ("throughput", "chat", "prefix", "mixed", "long-prompt", "bursts", "json", "memory", "schedule")
"""The workloads for which three minutes are enough."""
