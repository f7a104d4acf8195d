"""The workloads, by the names that `--workloads` takes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable

from bench.bench import Bench
from bench.results import WorkloadResult
from bench.workloads import (
    chat,
    json_output,
    memory,
    mixed,
    other_cells,
    pool_pressure,
    prefix,
    schedule,
)

WORKLOADS: dict[str, Callable[[Bench], WorkloadResult]] = {
    "schedule": schedule.run,
    "memory": memory.run,
    "chat": chat.run,
    "json": json_output.run,
    "mixed": mixed.run,
    "pool-pressure": pool_pressure.run,
    "prefix": prefix.run,
    "other-cells": other_cells.run,
}
