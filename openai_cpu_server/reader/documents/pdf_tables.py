"""Tables of a page, by the places of its texts, because programs may draw cells in any order. Columns of a
newspaper keep their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean
from typing import NamedTuple

_MOST_RUNS = 2_000
"""Limit of the work. Pages with more runs hardly have tables."""
_GAP = 1.0
"""Least distance of cells, in line heights. Words of justified lines are nearer."""
_LONGEST_MEAN = 20
"""Mean characters in a table's narrowest column. Newspaper columns have more."""
_FARTHEST_ROW = 2.5
"""In line heights."""


class TextRun(NamedTuple):
    """Unbroken text on one line."""

    left: float
    bottom: float
    right: float
    top: float
    start: int
    """Index into the page's text."""
    end: int

    @property
    def height(self) -> float:
        return self.top - self.bottom

    @property
    def middle(self) -> float:
        return (self.top + self.bottom) / 2


_Cell = tuple[TextRun, ...]
_Line = list[_Cell]
_Span = tuple[float, float]


def text_with_tables(text: str, runs: Sequence[TextRun]) -> str:
    """Replace tables by rows. `runs`: in the text's order."""
    if len(runs) > _MOST_RUNS:
        return text
    tables = {min(run.start for run in _runs(table)): table for table in _tables(_lines(runs), text)}
    parts, at = [], 0
    in_tables = {run: start for start, table in tables.items() for run in _runs(table)}
    for run in runs:
        if run not in in_tables:
            continue
        parts.append(text[at : run.start].strip(" "))
        at = max(at, run.end)
        if run.start in tables:
            parts.append("\n" + "\n".join(_rows(tables[run.start], text)) + "\n")
    parts.append(text[at:])
    lines = "".join(parts).split("\n")
    return "\n".join(filter(str.strip, lines)) if tables else text


def _runs(table: Sequence[_Line]) -> Iterator[TextRun]:
    return (run for line in table for cell in line for run in cell)


def _lines(runs: Sequence[TextRun]) -> list[_Line]:
    """Return lines from the top, with cells from the left."""
    found: list[list[TextRun]] = []
    for run in sorted(runs, key=lambda run: -run.middle):
        if found and abs(found[-1][0].middle - run.middle) < 0.4 * min(found[-1][0].height, run.height):
            found[-1].append(run)
        else:
            found.append([run])
    return [_cells(sorted(line)) for line in found]


def _cells(line: Sequence[TextRun]) -> _Line:
    cells: list[list[TextRun]] = [[line[0]]]
    for before, run in pairwise(line):
        if run.left - before.right < _GAP * max(before.height, run.height):
            cells[-1].append(run)
        else:
            cells.append([run])
    return [tuple(cell) for cell in cells]


def _tables(lines: Sequence[_Line], text: str) -> Iterator[list[_Line]]:
    """Yield near lines with cells in at least two columns."""
    table: list[_Line] = []
    columns: list[_Span] = []
    for line in lines:
        if table and not _continues(table[-1], columns, line):
            yield from _whole(table, text)
            table, columns = [], []
        if table or len(line) > 1:
            table.append(line)
            columns = _columns([line], columns)
    yield from _whole(table, text)


def _continues(last: _Line, columns: Sequence[_Span], line: _Line) -> bool:
    """`columns`: those of the table that `last` ends."""
    before, run = last[0][0], line[0][0]
    is_near = before.middle - run.middle < _FARTHEST_ROW * max(before.height, run.height)
    return is_near and len(_columns([line], columns)) >= max(2, len(columns) - (len(line) > 1))


def _whole(table: list[_Line], text: str) -> Iterator[list[_Line]]:
    while table and len(table[-1]) < 2:
        table.pop()
    if sum(len(line) > 1 for line in table) < 2:
        return
    lengths = [
        mean([len(_cell_text(cell, text)) for cell in cells])
        for column in _columns(table)
        if (cells := [cell for line in table for cell in line if _is_in(cell, column)])
    ]
    if min(lengths) <= _LONGEST_MEAN:
        yield table


def _columns(table: Sequence[_Line], earlier: Sequence[_Span] = ()) -> list[_Span]:
    """`earlier`: columns of the lines before."""
    spans = sorted([*earlier, *((cell[0].left, cell[-1].right) for line in table for cell in line)])
    columns: list[_Span] = []
    for left, right in spans:
        if columns and left <= columns[-1][1]:
            columns[-1] = (columns[-1][0], max(right, columns[-1][1]))
        else:
            columns.append((left, right))
    return columns


def _is_in(cell: _Cell, column: _Span) -> bool:
    return column[0] <= cell[0].left <= column[1]


def _rows(table: Sequence[_Line], text: str) -> Iterator[str]:
    columns = _columns(table)
    for line in table:
        cells = (" ".join(_cell_text(x, text) for x in line if _is_in(x, column)) for column in columns)
        yield " | ".join(cells).rstrip(" |") or ""


def _cell_text(cell: _Cell, text: str) -> str:
    parts, before = [], None
    for run in cell:
        if before is not None and run.left - before.right > 0.15 * run.height:
            parts.append(" ")
        parts.append(text[run.start : run.end])
        before = run
    return " ".join("".join(parts).split())
