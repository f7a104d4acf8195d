"""Command that prints a table and stores a profile."""

from __future__ import annotations

import math
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Union

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from openai_cpu_server.child_processes.spawn import child_environment
from openai_cpu_server.cli.plain_text import columns, option_value, show
from openai_cpu_server.cli.tune import search
from openai_cpu_server.config.command_line import CommandParser
from openai_cpu_server.config.folders import expanded_path
from openai_cpu_server.config.parser import read_settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.host import NOISY, Machine, OtherProcesses
from openai_cpu_server.llama.measure.layout import stored_layout
from openai_cpu_server.llama.measure.measurements import Profile, save_profile
from openai_cpu_server.llama.measure.splits import SplitKey, SplitRace
from openai_cpu_server.llama.model.kv_size import HostMemory, KVType
from openai_cpu_server.llama.offload.choice import NO_DEVICE, device_for, split_planner_for
from openai_cpu_server.llama.offload.split import Split
from openai_cpu_server.model_source.resolve import resolve_model

_COLUMNS = ("prompt", "1 alone", f"{search.FEW} together", f"{search.MANY} together", "gain")


def table(rows: Sequence[search.TuneRow], goal: search.TuneGoal) -> Table:
    best = search.winner(rows)
    table = Table(title=f"tokens per second, and the gain in {goal.value}")
    table.add_column("setting", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        mark = "best" if row is best else "better" if row.is_better else row.note
        setting = f"{(row.factor or '').replace('_', '-')} {option_value(row.value)}"
        if row.factor is None:
            setting = "defaults"
        table.add_row(setting, *_numbers(row, rows[0]), mark, style="bold green" if row is best else "")
    return table


def summary(rows: Sequence[search.TuneRow]) -> str:
    best = search.winner(rows)
    options = msgspec.structs.asdict(best.profile).items()
    flags = " ".join(f"--{name.replace('_', '-')} {option_value(value)}" for name, value in options)
    return f"{flags}\n{_gain(best, rows[0])} times the speed of the defaults"


def _numbers(row: search.TuneRow, first: search.TuneRow) -> tuple[str, ...]:
    timings = row.timings
    if timings is None:
        return ("-",) * len(_COLUMNS)
    per_token = (timings.prefill_ms, timings.decode_one_ms, timings.decode_few_ms, timings.decode_many_ms)
    return (*(f"{1000 / ms:.1f}" if ms else "-" for ms in per_token), f"{_gain(row, first)}x")


def _gain(row: search.TuneRow, first: search.TuneRow) -> str:
    assert row.cost_ms is not None
    assert first.cost_ms is not None
    return f"{first.cost_ms / row.cost_ms:.2f}"


_COMMAND = (sys.executable, *("-m", "openai_cpu_server.kernels.front"), "openai_cpu_server.cli.tune.trial")
_PATIENCE = 3.0
"""Time limit of a setting, as a multiple of the first one's time."""
_GRACE_S = 20.0
"""Time by which the last setting may exceed the budget."""


class TuneProcesses:
    """Measures the first setting without regard to the budget, others while it lasts."""

    def __init__(self, options: EngineOptions, *, context: int, budget_s: float) -> None:
        self._options = options
        self._context = context
        self._budget_s = budget_s
        self._deadline = time.monotonic() + budget_s
        self._first_s: float | None = None

    def measure(
        self, profile: Profile, parts: tuple[search.WorkloadPart, ...]
    ) -> search.TuneTimings | search.TuneFailure:
        started = time.monotonic()
        left_s = self._deadline - started
        if self._first_s is None:
            limit_s = 10 * self._budget_s
        elif left_s < 0.5 * self._first_s:
            return search.TuneFailure("not measured: no time left")
        else:
            limit_s = min(max(_GRACE_S, _PATIENCE * self._first_s), left_s + _GRACE_S)
        options = profile.applied(self._options)
        answer = _run(search.TuneTrial(options=options, parts=parts, context=self._context), limit_s)
        if self._first_s is None:
            self._first_s = time.monotonic() - started
        return answer


def _run(trial: search.TuneTrial, limit_s: float) -> search.TuneTimings | search.TuneFailure:
    pipe = subprocess.PIPE
    with subprocess.Popen(
        _COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=child_environment()
    ) as child:
        try:
            output, _ = child.communicate(msgspec.json.encode(trial), timeout=limit_s)
        except subprocess.TimeoutExpired:
            child.kill()
            return search.TuneFailure(f"took longer than {limit_s:.0f} s")
        except BaseException:
            child.kill()
            raise
    if child.returncode != 0:
        return search.TuneFailure(f"crashed (exit code {child.returncode})")
    answer: search.TuneTimings | search.TuneFailure = msgspec.json.decode(
        output, type=Union[search.TuneTimings, search.TuneFailure]
    )
    return answer


_BUDGET_S, _BUDGET_MAX_S = 100.0, 900.0
"""Seconds for a model of up to 1 GB, in proportion for larger ones, and the most."""
_PREFILL_TOKENS = (64, 128, 256, 512)
_CONTEXT = 512
_POOL_CELLS = (search.MANY + 1) * _CONTEXT + 1024


def tune(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
    model, goal, console = resolve_model(options.model), search.TuneGoal(options.goal), Console()
    neighbours = OtherProcesses()
    cache_dir = expanded_path(options.cache_dir) if options.cache_dir else read_settings([]).profile_dir
    race = _raced_splits(model, goal, cache_dir) if options.gpu_layers else None
    rows = _measure(model, goal, cache_dir, console, race)
    console.print(table(rows, goal))
    show(summary(rows))
    if race is not None:
        best = race.best()
        splits = [
            (str(split), "-" if ms is None else f"{ms:,.0f} ms", "best" if split is best else "")
            for split, ms in race.measured
        ]
        show(f"\nSplits, with --gpu-layers auto (on {race.device}):\n{columns(splits)}")
    others = neighbours.share()
    if others >= NOISY and not options.force:
        show(f"Not stored: other processes took {others:.0%} of the machine. Tune again when it is idle.")
        return
    profile = search.winner(rows).profile
    if race is not None:
        race.keep_for(profile)
    path = save_profile(model, cache_dir, profile)
    if path is not None:
        show(f"stored in {path}: serve uses it from now on")


def _parser() -> CommandParser:
    parser = CommandParser(
        "tune",
        description="Measure the best settings for a model on this machine, and store them for serve.",
    )
    parser.add_argument("model", help="PATH, hf:OWNER/REPO[/FILE], an alias such as smollm2, or demo")
    parser.add_argument(
        "--for",
        dest="goal",
        choices=[goal.value for goal in search.TuneGoal],
        default=search.TuneGoal.THROUGHPUT.value,
        help="one user's answer as soon as possible, or many users' tokens (default: throughput)",
    )
    parser.add_argument(
        "--gpu-layers",
        choices=["auto"],
        help="measure first which split between CPU and device is the fastest, for serve --gpu-layers auto",
    )
    parser.add_argument("--cache-dir", type=Path, help="folder of the profile; default: as for serve")
    parser.add_argument(
        "--force",
        action="store_true",
        help="store the profile even if other processes disturbed the measurement",
    )
    return parser


def _raced_splits(model: Path, goal: search.TuneGoal, cache_dir: Path) -> SplitRace:
    header, machine = GgufHeader(model), Machine()
    engine_options = msgspec.structs.replace(
        _engine_options(header, machine), offload=Offload(gpu_layers="auto")
    )
    device = device_for(engine_options.offload)
    if device is None:
        raise StartupError(f"--gpu-layers: {NO_DEVICE}")
    candidates = split_planner_for(engine_options, device, machine.free_memory()).candidates()
    race = SplitRace(candidates, SplitKey.of(engine_options, device), cache_dir)
    start = _defaults(header, machine, cache_dir)
    race.forget()

    def cost_ms(split: Split) -> float:
        options = msgspec.structs.replace(engine_options, offload=split.offload)
        children = TuneProcesses(options, context=_CONTEXT, budget_s=_budget_s(header) / len(candidates))
        answer = children.measure(start, goal.parts)
        if isinstance(answer, search.TuneFailure):
            raise StartupError(answer.message)
        return goal.cost_ms(answer)

    race.run(cost_ms, budget_s=math.inf)
    return race


def _measure(
    model: Path, goal: search.TuneGoal, cache_dir: Path, console: Console, race: SplitRace | None
) -> list[search.TuneRow]:
    header, machine = GgufHeader(model), Machine()
    start = _defaults(header, machine, cache_dir)
    cores = machine.num_threads()
    threads = sorted({max(1, cores // 2), max(1, cores - 1), cores, machine.num_cpus()})
    plan = search.factors(goal, threads=threads, prefill_tokens=_PREFILL_TOKENS)
    options = _engine_options(header, machine)
    if race is not None:
        options = msgspec.structs.replace(options, offload=race.best().offload)
    children = TuneProcesses(options, context=_CONTEXT, budget_s=_budget_s(header))
    rows: list[search.TuneRow] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"measuring {model.name}", total=search.num_trials(start, plan))
        for row in search.search(start, plan, goal, children.measure):
            rows.append(row)
            bar.advance(task)
    if rows[0].timings is None:
        raise StartupError(rows[0].note)
    return rows


def _defaults(header: GgufHeader, machine: Machine, cache_dir: Path) -> Profile:
    options = EngineOptions(model_path=str(header.path), cost_dir=str(cache_dir))
    threads = machine.num_threads()
    return Profile(
        threads=threads,
        threads_batch=threads,
        repack=stored_layout(options, header).repacked,
        prefill_tokens=options.prefill_tokens,
        kv_type=options.kv_type,
        flash_attention=options.flash_attention,
    )


def _engine_options(header: GgufHeader, machine: Machine) -> EngineOptions:
    """Give the pool room for the largest KV type, f32."""
    host_memory = HostMemory.of(header, None, KVType.F32, machine.free_memory())
    cells = min(_POOL_CELLS, max(host_memory.pool_cells(None), 1024))
    return EngineOptions(model_path=str(header.path), kv_tokens=cells)


def _budget_s(header: GgufHeader) -> float:
    gigabytes = total_bytes(model_files(header)) / 10**9
    return min(max(1.0, gigabytes) * _BUDGET_S, _BUDGET_MAX_S)
