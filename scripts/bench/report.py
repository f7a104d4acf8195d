"""Shows results: a table on the terminal, JSON, Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from bench.results import Figure, Goal, Report, WorkloadResult

_GOAL_HEADS = ("workload", "goal", "measured", "limit", "")
_FIGURE_HEADS = ("figure", "median", "spread", "rounds")
_USE_HEADS = ("server", "peak RSS", "CPU", "cores used")


def show(result: WorkloadResult, console: Console) -> None:
    """One workload, as soon as it is measured."""
    console.print(f"\n[bold]{result.name}[/bold]: {result.sizes}")
    if result.failure is not None:
        console.print(f"[red]not measured:[/red] {result.failure}", highlight=False)
        return
    console.print(_table(_FIGURE_HEADS, [_figure_row(figure) for figure in result.figures]))
    for goal in result.goals:
        colour = "green" if goal.is_met else "red"
        console.print(
            f"  [{colour}]{_verdict(goal)}[/{colour}]  {goal.what}: {_measured(goal)} ({_limit(goal)})"
        )
    for note in result.notes:
        console.print(f"  {note}", highlight=False, markup=False)


def show_goals(report: Report, console: Console) -> None:
    console.print()
    console.print(_table(_GOAL_HEADS, list(_goal_rows(report))))
    console.print(_load(report))


def write(report: Report, folder: Path) -> None:
    """`report.json` and `report.md`. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (folder / "report.md").write_text(markdown(report), encoding="utf-8")


def markdown(report: Report) -> str:
    where = report.circumstances
    size = "quick" if where.is_quick else "full"
    parts = [
        "# Benchmark",
        f"{where.started}, commit {where.commit or 'unknown'}, model {where.model}; {where.cpu}, "
        f"{where.num_cpus} CPUs, {where.memory_bytes / 2**30:.0f} GiB; {size} sizes, "
        f"{where.rounds} rounds. {_load(report)}",
        _markdown_table(_GOAL_HEADS, list(_goal_rows(report))),
    ]
    for result in report.results:
        parts += _section(result)
    return "\n\n".join(parts) + "\n"


def _section(result: WorkloadResult) -> Iterator[str]:
    yield f"## {result.name}"
    yield f"{result.sizes} ({result.seconds:.0f} s)"
    if result.failure is not None:
        yield f"Not measured: {result.failure}"
        return
    yield _markdown_table(_FIGURE_HEADS, [_figure_row(figure) for figure in result.figures])
    if result.uses:
        yield _markdown_table(_USE_HEADS, list(_use_rows(result)))
    if result.notes:
        yield "\n".join(f"- {note}" for note in result.notes)


def _goal_rows(report: Report) -> Iterator[tuple[str, ...]]:
    for result in report.results:
        if result.failure is not None:
            yield (result.name, result.failure.splitlines()[0], "", "", "not measured")
        for goal in result.goals:
            yield (result.name, goal.what, _measured(goal), _limit(goal), _verdict(goal))


def _use_rows(result: WorkloadResult) -> Iterator[tuple[str, ...]]:
    for label, use in result.uses:
        cores = use.cpu_s / use.wall_s if use.wall_s else 0.0
        yield (label, f"{use.peak_rss_bytes / 1e6:.0f} MB", f"{use.cpu_s:.1f} s", f"{cores:.2f}")


def _figure_row(figure: Figure) -> tuple[str, ...]:
    rounds = figure.rounds
    values = " ".join(_number(value) for value in rounds.values)
    return (figure.what, _with_unit(rounds.median, figure.unit), f"{100 * rounds.spread:.0f} %", values)


def _verdict(goal: Goal) -> str:
    return "pass" if goal.is_met else "miss"


def _measured(goal: Goal) -> str:
    return _with_unit(goal.measured, goal.unit)


def _limit(goal: Goal) -> str:
    return f"{goal.direction.value} {goal.limit:g}{' ' if goal.unit else ''}{goal.unit}"


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    """Three figures that count; counts as they are."""
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"


def _load(report: Report) -> str:
    before, after = ("/".join(f"{x:.1f}" for x in load) for load in (report.load_before, report.load_after))
    return f"Load average (1, 5, 15 min) before {before}, after {after}."


def _table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    table = Table(*heads)
    for row in rows:
        table.add_row(*row)
    return table


def _markdown_table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
