"""Workloads by the names of `--workloads`, in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from bench.bench import Bench
from bench.results import WorkloadResult
from bench.workloads import (
    batches,
    clients,
    heads,
    json_output,
    long_prompt,
    memory,
    mixed,
    pictures,
    throughput,
    turns,
)

WORKLOADS: Mapping[str, Callable[[Bench], WorkloadResult]] = {
    "throughput": throughput.run,
    "clients": clients.run,
    "chat": batches.chat,
    "prefix": batches.prefix,
    "mixed": mixed.run,
    "turns": turns.run,
    **{f"prompt-{size}": partial(long_prompt.run_alone, size) for size in (2000, 8000, 16000)},
    "long-prompt": long_prompt.run,
    "long-prompt-16": long_prompt.run_beside_16,
    "bursts": batches.bursts,
    "unequal": batches.unequal,
    "json": json_output.run,
    "pictures": partial(pictures.run, "pictures", pictures.FULL, pictures.QUICK),
    "pictures-large": partial(pictures.run, "pictures-large", pictures.LARGE, pictures.QUICK),
    "sound": partial(pictures.run, "sound", pictures.SOUND, pictures.QUICK_SOUND),
    "heads": partial(heads.run, "heads", "dense-head", heads.FULL),
    "heads-4b": partial(heads.run, "heads-4b", "dense-head-4b", heads.LARGE),
    "memory": memory.run,
}

QUICK = ("throughput", "chat", "prefix", "mixed", "long-prompt", "bursts", "json", "memory")
