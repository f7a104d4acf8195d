"""Workloads by the names that `--workloads` takes, in the order in which they run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bench.bench import Bench
from bench.results import WorkloadResult
from bench.workloads import (
    bursts,
    chat,
    clients,
    json_output,
    long_prompt,
    memory,
    mixed,
    pictures,
    prefix,
    throughput,
    turns,
    unequal,
)

WORKLOADS: Mapping[str, Callable[[Bench], WorkloadResult]] = {
    "throughput": throughput.run,
    "clients": clients.run,
    "chat": chat.run,
    "prefix": prefix.run,
    "mixed": mixed.run,
    "turns": turns.run,
    "prompt": long_prompt.run_alone,
    "long-prompt": long_prompt.run,
    "long-prompt-16": long_prompt.run_beside_16,
    "bursts": bursts.run,
    "unequal": unequal.run,
    "json": json_output.run,
    "pictures": pictures.run,
    "pictures-large": pictures.run_large,
    "sound": pictures.run_sound,
    "memory": memory.run,
}

QUICK = ("throughput", "chat", "prefix", "mixed", "long-prompt", "bursts", "json", "memory")
