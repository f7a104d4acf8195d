"""Results as tables on the terminal, JSON, and Markdown with plots."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
import rich.table
from rich.console import Console
from rich.markup import escape

from bench.contest import OURS
from bench.failures import first_line
from bench.results import Report, WorkloadResult
from bench.tables import (
    Table,
    figure_table,
    goal_table,
    line_table,
    measured,
    speed_table,
    times_table,
    use_table,
    verdict,
    wanted,
)

_ROOM = "`{room}`: tokens, as many as a workload's requests need, by its pool or by its longest request."
_NOT_SHOWN = """\
All of it is one machine, one model, one run: on other CPUs, with other quantisations and other loads the
order of the servers can be another. Clients and servers share the cores, and the connections are local: no
network, no TLS, no proxy. Weights are random unless a model was given: speed does not depend on their
values, but the answers mean nothing, so nothing here is about quality; and lengths are imposed
(`ignore_eos`) where real answers end when they like; what speculation gains on real text only
`scripts/regress.py speculation --model demo` shows, of a toy model. Requests are all alike or of two kinds,
for seconds to minutes: no lengths with a long tail, no memory in pieces after a week. The peers are of one
version, with the flags above; each has settings that would suit one of the workloads better than these.
What the machine itself allows, `scripts/regress.py steps` prints beside steps. A quick run, if this is one,
is a look, not a result: it is too short for its percentiles."""


def show(result: WorkloadResult, console: Console) -> None:
    console.print(f"\n[bold]{result.name}[/bold]: {escape(result.sizes)}", highlight=False)
    if result.failure is not None:
        console.print(f"[red]not measured:[/red] {escape(result.failure)}", highlight=False)
        return
    for table in filter(None, (line_table(result), figure_table(result))):
        console.print(_on_terminal(table))
    for goal in result.goals:
        if goal.is_met is not None:
            colour = "green" if goal.is_met else "red"
            console.print(
                f"  [{colour}]{verdict(goal)}[/{colour}]  "
                f"{escape(goal.what)}: {measured(goal)} ({wanted(goal)})"
            )
    for note in _notes(result):
        console.print(f"  {note}", highlight=False, markup=False)


def show_goals(report: Report, console: Console) -> None:
    console.print()
    console.print(_on_terminal(goal_table(report)))
    console.print(_load(report))


def show_models(reports: Mapping[str, Report], folder: Path, console: Console) -> None:
    """Print the speeds with several models, and write them to `models.md`. Raises OSError."""
    tables = (speed_table(reports), times_table(reports, OURS, "llama-server"))
    for table in tables:
        console.print(_on_terminal(table))
    (folder / "models.md").write_text("\n\n".join(map(_in_markdown, tables)) + "\n", encoding="utf-8")


def write(report: Report, folder: Path, pictures: Mapping[str, Sequence[str]]) -> None:
    """Write `report.json` and `report.md`. `pictures`: files in the folder by workload. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    (folder / "report.md").write_text(markdown(report, pictures), encoding="utf-8")


def markdown(report: Report, pictures: Mapping[str, Sequence[str]]) -> str:
    where = report.circumstances
    size = "quick" if where.is_quick else "full"
    parts = [
        "# Benchmark",
        f"{where.started}, commit {where.commit or 'unknown'}, model {where.model}; {where.cpu}, "
        f"{where.num_cpus} CPUs, {where.memory_bytes / 2**30:.0f} GiB; {size} sizes, "
        f"{where.rounds} rounds. {_load(report)}",
    ]
    if where.servers:
        parts.append("\n".join(f"- {label}: `{command}`" for label, command in where.servers.items()))
        parts.append(_ROOM)
    if where.absent:
        parts.append(f"Not here, so not measured: {', '.join(where.absent)}.")
    for result in report.results:
        parts += _section(result, pictures.get(result.name, ()))
    parts += ["## Goals", _in_markdown(goal_table(report))]
    parts += ["## What the numbers do not show", _NOT_SHOWN]
    return "\n\n".join(parts) + "\n"


def _section(result: WorkloadResult, pictures: Sequence[str]) -> Iterator[str]:
    yield f"## {result.name}"
    yield f"{result.sizes} ({result.seconds:.0f} s)"
    if result.failure is not None:
        yield f"Not measured: {result.failure}"
        return
    for table in filter(None, (line_table(result), figure_table(result))):
        yield _in_markdown(table)
    for picture in pictures:
        yield f"![{result.name}]({picture})"
    if notes := _notes(result):
        yield "\n".join(f"- {note}" for note in notes)
    if uses := use_table(result):
        yield _in_markdown(uses)


def _notes(result: WorkloadResult) -> list[str]:
    failures = [f"{label} failed: {first_line(why)}" for label, why in result.failures.items()]
    return [*failures, *result.notes]


def _load(report: Report) -> str:
    before, after = ("/".join(f"{x:.1f}" for x in load) for load in (report.load_before, report.load_after))
    return f"Load average (1, 5, 15 min) before {before}, after {after}."


def _on_terminal(table: Table) -> rich.table.Table:
    drawn = rich.table.Table(*map(escape, table.heads))
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _in_markdown(table: Table) -> str:
    lines = [table.heads, tuple("---" for _ in table.heads), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
