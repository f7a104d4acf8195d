"""Tables of results, for every kind of output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from bench.failures import first_line
from bench.results import Figure, Goal, Line, Report, WorkloadResult, gains
from bench.stats import Rounds


class Table(NamedTuple):
    heads: tuple[str, ...]
    rows: list[tuple[str, ...]]


def line_table(result: WorkloadResult) -> Table | None:
    labels = list(dict.fromkeys(label for line in result.lines for label in line.servers))
    if not labels:
        return None
    heads = ("median (spread)", "unit", *labels)
    return Table(heads, [tuple(_line_row(line, labels)) for line in result.lines])


def figure_table(result: WorkloadResult) -> Table | None:
    if not result.figures:
        return None
    return Table(("figure", "median", "spread", "rounds"), [_figure_row(figure) for figure in result.figures])


def use_table(result: WorkloadResult) -> Table | None:
    rows = list(_use_rows(result))
    return Table(("server", "ready after", "peak RSS", "CPU", "cores used"), rows) if rows else None


def goal_table(report: Report) -> Table:
    return Table(("workload", "goal", "measured", "limit", ""), list(_goal_rows(report)))


def speed_table(reports: Mapping[str, Report]) -> Table:
    heads = _speeds(reports)
    rows = []
    for model, report in reports.items():
        lines = {line.what: line.servers for line in report.lines}
        for label in dict.fromkeys(label for head in heads for label in lines.get(head, ())):
            found = (lines.get(head, {}).get(label) for head in heads)
            rows.append((model, label, *("" if one is None else _number(one.median) for one in found)))
    return Table(("model", "server", *heads), rows)


def times_table(reports: Mapping[str, Report], ours: str, rival: str) -> Table:
    """Return the ratio of our speed to a rival's with several models. Labels that begin with the rival's
    are the same server with other flags, and the better one counts."""
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


def verdict(goal: Goal) -> str:
    return {True: "pass", False: "miss", None: "not measured"}[goal.is_met]


def measured(goal: Goal) -> str:
    if goal.rounds is None:
        return ""
    values = goal.rounds.values
    spread = f" ({_number(min(values))} to {_number(max(values))})" if len(values) > 1 else ""
    return _with_unit(goal.rounds.median, goal.unit) + spread


def wanted(goal: Goal) -> str:
    return f"{goal.direction.value} {goal.limit:g}{' ' if goal.unit else ''}{goal.unit}"


def _line_row(line: Line, labels: list[str]) -> Iterator[str]:
    yield line.what
    yield line.unit
    for label in labels:
        yield _cell(line.servers.get(label))


def _cell(rounds: Rounds | None) -> str:
    if rounds is None:
        return ""
    spread = f" ({100 * rounds.spread:.0f} %)" if len(rounds.values) > 1 else ""
    return _number(rounds.median) + spread


def _figure_row(figure: Figure) -> tuple[str, ...]:
    rounds = figure.rounds
    values = " ".join(_number(value) for value in rounds.values)
    return (figure.what, _with_unit(rounds.median, figure.unit), f"{100 * rounds.spread:.0f} %", values)


def _use_rows(result: WorkloadResult) -> Iterator[tuple[str, ...]]:
    for label, use in result.uses:
        cores = use.cpu_s / use.wall_s if use.wall_s else 0.0
        yield (
            label,
            f"{use.ready_s:.1f} s",
            f"{use.peak_rss_bytes / 1e6:.0f} MB",
            f"{use.cpu_s:.1f} s",
            f"{cores:.2f}",
        )


def _goal_rows(report: Report) -> Iterator[tuple[str, ...]]:
    for result in report.results:
        if result.failure is not None:
            yield (result.name, first_line(result.failure), "", "", "not measured")
        for goal in result.goals:
            yield (result.name, goal.what, measured(goal), wanted(goal), verdict(goal))


def _with_unit(value: float, unit: str) -> str:
    return f"{_number(value)} {unit}".rstrip()


def _number(value: float) -> str:
    if value == int(value) if abs(value) < 1e15 else False:
        return f"{int(value)}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:#.3g}"
