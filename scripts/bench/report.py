"""Results as tables, JSON and Markdown, with the facts on which they depend."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
import rich.table
from rich.console import Console
from rich.markup import escape

from bench.results import OURS, Circumstances, Goal, Line, Report, Rounds, WorkloadResult, gains
from bench.servers import Contestant, Room

_ROOT = Path(__file__).resolve().parents[2]
_ROOMS = (Room(pool_tokens=8192, request_tokens=1000), Room(pool_tokens=16384, request_tokens=2000))
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


def circumstances(
    model: Path, rounds: int, is_quick: bool, contestants: Sequence[Contestant], absent: Sequence[str]
) -> Circumstances:
    return Circumstances(
        started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        model=model.name,
        commit=_commit(),
        cpu=_cpu_name(),
        num_cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        rounds=rounds,
        is_quick=is_quick,
        servers={who.label: _command(who, model) for who in contestants},
        absent=tuple(absent),
    )


def _command(who: Contestant, model: Path) -> str:
    """Return a command with `{room}` where workloads differ, and file names instead of paths."""
    one, other = (who.spec(model, room).command for room in _ROOMS)
    command = (part if part == same else "{room}" for part, same in zip(one, other, strict=True))
    return " ".join(Path(part).name if "/" in part else part for part in command)


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty=+", "--abbrev=10"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _cpu_name() -> str:
    if (info := Path("/proc/cpuinfo")).is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Table(NamedTuple):
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def for_terminal(self) -> rich.table.Table:
        drawn = rich.table.Table(*map(escape, self.heads))
        for row in self.rows:
            drawn.add_row(*map(escape, row))
        return drawn

    def markdown(self) -> str:
        lines = [self.heads, tuple("---" for _ in self.heads), *self.rows]
        return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in lines)


def show(result: WorkloadResult, console: Console) -> None:
    console.print(f"\n[bold]{result.name}[/bold]: {escape(result.sizes)}", highlight=False)
    if result.failure is not None:
        console.print(f"[red]not measured:[/red] {escape(result.failure)}", highlight=False)
        return
    for table in _tables(result):
        console.print(table.for_terminal())
    for goal in result.goals:
        if goal.is_met is not None:
            colour = "green" if goal.is_met else "red"
            what, measured, limit, verdict = map(escape, _goal_cells(goal))
            console.print(f"  [{colour}]{verdict}[/{colour}]  {what}: {measured} ({limit})")
    for note in _notes(result):
        console.print(f"  {note}", highlight=False, markup=False)


def show_goals(report: Report, console: Console) -> None:
    console.print()
    console.print(_goal_table(report).for_terminal())
    console.print(_load(report))


def show_models(reports: Mapping[str, Report], folder: Path, console: Console) -> None:
    """Print several models' speeds, and write `models.md`. Raises OSError."""
    tables = (_speed_table(reports), _times_table(reports, OURS, "llama-server"))
    for table in tables:
        console.print(table.for_terminal())
    text = "\n\n".join(table.markdown() for table in tables) + "\n"
    (folder / "models.md").write_text(text, encoding="utf-8")


def write(report: Report, folder: Path) -> None:
    """Write `report.json` and `report.md`. Raises OSError."""
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
    ]
    if where.servers:
        parts.append("\n".join(f"- {label}: `{command}`" for label, command in where.servers.items()))
        parts.append(_ROOM)
    if where.absent:
        parts.append(f"Not here, so not measured: {', '.join(where.absent)}.")
    for result in report.results:
        parts += _section(result)
    parts += ["## Goals", _goal_table(report).markdown()]
    parts += ["## What the numbers do not show", _NOT_SHOWN]
    return "\n\n".join(parts) + "\n"


def _section(result: WorkloadResult) -> Iterator[str]:
    yield f"## {result.name}"
    yield f"{result.sizes} ({result.seconds:.0f} s)"
    if result.failure is not None:
        yield f"Not measured: {result.failure}"
        return
    yield from (table.markdown() for table in _tables(result))
    if notes := _notes(result):
        yield "\n".join(f"- {note}" for note in notes)
    if result.uses:
        heads = ("server", "ready after", "peak RSS", "CPU", "cores used")
        rows = []
        for label, use in result.uses:
            memory, cores = f"{use.peak_rss_bytes / 1e6:.0f} MB", use.cpu_s / (use.wall_s or 1)
            rows.append((label, f"{use.ready_s:.1f} s", memory, f"{use.cpu_s:.1f} s", f"{cores:.2f}"))
        yield Table(heads, rows).markdown()
        kernels = {label: use.kernels for label, use in result.uses if use.kernels}
        for label, parts in kernels.items():
            yield f"{label}: {', '.join(f'{name} {what}' for name, what in parts.items())}."


def _notes(result: WorkloadResult) -> list[str]:
    return [*(f"{label} failed: {_first_line(why)}" for label, why in result.failures.items()), *result.notes]


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _load(report: Report) -> str:
    before, after = ("/".join(f"{x:.1f}" for x in load) for load in (report.load_before, report.load_after))
    return f"Load average (1, 5, 15 min) before {before}, after {after}."


def _tables(result: WorkloadResult) -> Iterator[Table]:
    if labels := list(dict.fromkeys(label for line in result.lines for label in line.servers)):
        rows = [
            (line.what, line.unit, *(_cell(line.servers.get(label)) for label in labels))
            for line in result.lines
        ]
        yield Table(("median (spread)", "unit", *labels), rows)
    if result.figures:
        rows = [
            (
                figure.what,
                _with_unit(figure.rounds.median, figure.unit),
                f"{100 * figure.rounds.spread:.0f} %",
                " ".join(map(_number, figure.rounds.values)),
            )
            for figure in result.figures
        ]
        yield Table(("figure", "median", "spread", "rounds"), rows)


def _cell(rounds: Rounds | None) -> str:
    if rounds is None:
        return ""
    spread = f" ({100 * rounds.spread:.0f} %)" if len(rounds.values) > 1 else ""
    return _number(rounds.median) + spread


def _goal_table(report: Report) -> Table:
    rows = []
    for result in report.results:
        if result.failure is not None:
            rows.append((result.name, _first_line(result.failure), "", "", "not measured"))
        rows += [(result.name, *_goal_cells(goal)) for goal in result.goals]
    return Table(("workload", "goal", "measured", "limit", ""), rows)


def _goal_cells(goal: Goal) -> tuple[str, str, str, str]:
    measured = ""
    if goal.rounds is not None:
        values = goal.rounds.values
        spread = f" ({_number(min(values))} to {_number(max(values))})" if len(values) > 1 else ""
        measured = _with_unit(goal.rounds.median, goal.unit) + spread
    limit = f"{goal.direction.value} {goal.limit:g} {goal.unit}".rstrip()
    return goal.what, measured, limit, {True: "pass", False: "miss", None: "not measured"}[goal.is_met]


def _speed_table(reports: Mapping[str, Report]) -> Table:
    heads = _speeds(reports)
    rows = []
    for model, report in reports.items():
        lines = {line.what: line.servers for line in report.lines}
        for label in dict.fromkeys(label for head in heads for label in lines.get(head, ())):
            found = (lines.get(head, {}).get(label) for head in heads)
            rows.append((model, label, *("" if one is None else _number(one.median) for one in found)))
    return Table(("model", "server", *heads), rows)


def _times_table(reports: Mapping[str, Report], ours: str, rival: str) -> Table:
    """Return ratios of our speed to a rival's with several models. Labels that begin with the rival's are the
    same server with other flags, and the better one counts."""
    heads = _speeds(reports)
    rows = []
    for model, report in reports.items():
        lines = {line.what: line for line in report.lines}
        rows.append((model, *(_times(lines.get(head), ours, rival) for head in heads)))
    return Table((f"times {rival}", *heads), rows)


def _speeds(reports: Mapping[str, Report]) -> tuple[str, ...]:
    lines = (line for report in reports.values() for line in report.lines)
    return tuple(dict.fromkeys(line.what for line in lines if line.unit == "tok/s"))


def _times(line: Line | None, ours: str, rival: str) -> str:
    own = line.servers.get(ours) if line else None
    if line is None or own is None:
        return ""
    others = [rounds for label, rounds in line.servers.items() if label.startswith(rival)]
    return f"{min(gains(own, other, line.better).median for other in others):.2f}" if others else ""


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    if abs(value) < 1e15 and value == int(value):
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
