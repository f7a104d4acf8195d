"""Runs the command: from arguments to a printed table and a profile on disk."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from openai_cpu_server.commands.tune.children import Children
from openai_cpu_server.commands.tune.report import progress_bar, summary, table
from openai_cpu_server.commands.tune.search import Row, factors, num_trials, search, winner
from openai_cpu_server.commands.tune.workload import MANY, Goal
from openai_cpu_server.config.command_line import read_settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.host.neighbours import NOISY, Neighbours
from openai_cpu_server.llama.kernels import are_kernels_expected
from openai_cpu_server.llama.loading import repacks
from openai_cpu_server.llama.measure.profile import Profile, save_profile
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.llama.model.room import Room
from openai_cpu_server.model_source import resolve_model
from openai_cpu_server.user_folders import expanded

_BUDGET_S, _BUDGET_MAX_S = 100.0, 900.0
"""Seconds for a model of up to 1 GB, and the most for any. Larger models get time in proportion."""
_PREFILL_TOKENS = (64, 128, 256, 512)
_CONTEXT = 512
_POOL_CELLS = (MANY + 1) * _CONTEXT + 1024


def tune(arguments: Sequence[str]) -> None:
    """Run the command. It writes nothing before everything is measured. Raises StartupError with one line."""
    given = _parser().parse_args(arguments)
    model, goal, console = resolve_model(given.model), Goal(given.goal), Console()
    named, neighbours = given.cache_dir, Neighbours()
    cache_dir = expanded(named) if named else read_settings([]).profile_dir
    rows = _measure(model, goal, console)
    console.print(table(rows, goal))
    _say(console, summary(rows))
    others = neighbours.share()
    if others >= NOISY and not given.force:
        _say(
            console,
            f"Not kept: other processes took {others:.0%} of the machine. Tune again when it is idle.",
        )
        return
    path = save_profile(model, cache_dir, winner(rows).profile)
    if path is not None:
        _say(console, f"kept in {path}: serve uses it from now on")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, highlight=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="openai-cpu-server tune",
        description="Measure which settings serve a model best on this machine, and keep them for serve.",
    )
    parser.add_argument("model", help="PATH, hf:OWNER/REPO[/FILE], an alias such as smollm2, or demo")
    parser.add_argument(
        "--for",
        dest="goal",
        choices=[goal.value for goal in Goal],
        default=Goal.THROUGHPUT.value,
        help="one user's answer as soon as possible, or many users' tokens (default: throughput)",
    )
    parser.add_argument("--cache-dir", type=Path, help="where the profile is kept; default: as for serve")
    parser.add_argument(
        "--force", action="store_true", help="keep the profile even if other processes have disturbed it"
    )
    return parser


def _measure(model: Path, goal: Goal, console: Console) -> list[Row]:
    header, machine = GgufHeader(model), Machine()
    start = _defaults(header, machine)
    plan = factors(goal, threads=thread_counts(machine), prefill_tokens=_PREFILL_TOKENS)
    children = Children(_options(header, machine), context=_CONTEXT, budget_s=_budget_s(header))
    rows: list[Row] = []
    with progress_bar(console) as bar:
        task = bar.add_task(f"measuring {model.name}", total=num_trials(start, plan))
        for row in search(start, plan, goal, children.measure):
            rows.append(row)
            bar.advance(task)
    if rows[0].timings is None:
        raise StartupError(rows[0].note)
    return rows


def _defaults(header: GgufHeader, machine: Machine) -> Profile:
    """The settings that `serve` uses without a profile."""
    options, threads = EngineOptions(model_path=str(header.path)), machine.num_threads()
    return Profile(
        threads=threads,
        threads_batch=threads,
        repack=repacks(options, header, our_products=are_kernels_expected()),
        prefill_tokens=options.prefill_tokens,
        kv_type=options.kv_type,
        flash_attention=options.flash_attention,
    )


def _options(header: GgufHeader, machine: Machine) -> EngineOptions:
    """The options, with a pool that has room for every KV type; f32 is the largest."""
    room = Room.of(header, None, KVType.F32, machine.free_memory())
    cells = min(_POOL_CELLS, max(room.pool_cells(None), 1024))
    return EngineOptions(model_path=str(header.path), kv_tokens=cells)


def thread_counts(machine: Machine) -> tuple[int, ...]:
    """Numbers of threads to try:
    all usable cores, all their hardware threads, half, and one less than all."""
    cores = machine.num_threads()
    return tuple(sorted({max(1, cores // 2), max(1, cores - 1), cores, machine.num_cpus()}))


def _budget_s(header: GgufHeader) -> float:
    gigabytes = total_bytes(model_files(header)) / 10**9
    return min(max(1.0, gigabytes) * _BUDGET_S, _BUDGET_MAX_S)
