"""Writes what the person at the terminal sees."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from openai_cpu_server.commands.tune.search import Row, Value, winner
from openai_cpu_server.commands.tune.workload import FEW, MANY, Goal
from openai_cpu_server.llama.measure.profile import Profile

_COLUMNS = ("prompt", "1 alone", f"{FEW} together", f"{MANY} together", "gain")


def progress_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


def table(rows: Sequence[Row], goal: Goal) -> Table:
    """A table of all measurements: tokens per second, and how much faster than the first setting each is."""
    best = winner(rows)
    table = Table(title=f"tokens per second, and the gain in {goal.value}")
    table.add_column("setting", no_wrap=True)
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    for row in rows:
        mark = "best" if row is best else "better" if row.is_better else row.note
        table.add_row(_setting(row), *_numbers(row, rows[0]), mark, style="bold green" if row is best else "")
    return table


def summary(rows: Sequence[Row]) -> str:
    """The winning options as one would write them, and what they gain."""
    best = winner(rows)
    return f"{options(best.profile)}\n{_gain(best, rows[0])} times the speed of the defaults"


def options(profile: Profile) -> str:
    flags = (
        ("threads", str(profile.threads)),
        ("threads-batch", str(profile.threads_batch)),
        ("repack", _word(profile.repack)),
        ("prefill-tokens", str(profile.prefill_tokens)),
        ("kv-type", profile.kv_type),
        ("flash-attention", _word(profile.flash_attention)),
    )
    return " ".join(f"--{name} {value}" for name, value in flags)


def _setting(row: Row) -> str:
    if row.factor is None:
        return "defaults"
    assert row.value is not None
    return f"{row.factor.replace('_', '-')} {_word(row.value)}"


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _numbers(row: Row, first: Row) -> tuple[str, ...]:
    timings = row.timings
    if timings is None:
        return ("-",) * len(_COLUMNS)
    per_token = (timings.prefill_ms, timings.decode_one_ms, timings.decode_few_ms, timings.decode_many_ms)
    return (*(f"{1000 / ms:.1f}" if ms else "-" for ms in per_token), f"{_gain(row, first)}x")


def _gain(row: Row, first: Row) -> str:
    assert row.cost_ms is not None
    assert first.cost_ms is not None
    return f"{first.cost_ms / row.cost_ms:.2f}"
