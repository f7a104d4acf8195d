"""Draws who was in each step, as SVG: a row for each sequence, a column for each step."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

import msgspec

from bench.timeline import Part, Step

_WIDTH, _LEFT, _TOP, _ROW, _GAP = 900, 96, 64, 20, 2
_RIGHT = 14
_LABEL = 140
"""Room for the words beside an arrival."""
_TITLE = "Batch jobs keep the server full. Who asks goes first."
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: #1b2430 }
.small { font-size: 11.5px; fill: #51606f }
.title { font-size: 15px; font-weight: 600 }
.page { fill: #fff } .axis { stroke: #aab4be }
.interactive-decodes { fill: #c1121f } .interactive-reads { fill: #ec9aa0 }
.batch-decodes { fill: #1d5d9b } .batch-reads { fill: #9cbcdb }
.arrival { stroke: #c1121f; stroke-width: 1.5; stroke-dasharray: 3 3 }
.wait { fill: #c1121f; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e9ee } .small { fill: #a7b3bf } .page { fill: #12171d } .axis { stroke: #46525e }
  .interactive-decodes { fill: #f0525c } .interactive-reads { fill: #8f3a40 }
  .batch-decodes { fill: #4b8fd0 } .batch-reads { fill: #2d5378 }
  .arrival { stroke: #f0525c } .wait { fill: #ff8087 }
}"""
_LOOKS = {
    "interactive-reads": "person: prompt",
    "interactive-decodes": "person: answer",
    "batch-reads": "batch job: prompt",
    "batch-decodes": "batch job: answer",
}


class Person(msgspec.Struct, frozen=True):
    """An interactive request: when it came, on the clock of the steps, and how long its first token took."""

    arrival_s: float
    wait_s: float


class _Scale(msgspec.Struct, frozen=True):
    begin_s: float
    end_s: float

    def x(self, seconds: float) -> float:
        share = (seconds - self.begin_s) / (self.end_s - self.begin_s)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)


def step_picture(steps: Sequence[Step], people: Sequence[Person]) -> str:
    """The picture. Interrupted steps are left out; `people` who came outside of the steps are, too."""
    done = [step for step in steps if not step.interrupted]
    scale = _Scale(done[0].started_s, _end_s(done[-1]))
    rows = _rows(done)
    bottom = _TOP + (max(rows.values()) + 1) * _ROW
    inside = [person for person in people if scale.begin_s <= person.arrival_s < scale.end_s]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {bottom + 74}" role="img" '
            'aria-label="Who is in each step: batch jobs run, and people who ask go first">',
            f"<style>{_STYLE}\n</style>",
            f'<rect class="page" width="{_WIDTH}" height="{bottom + 74}" rx="8"/>',
            f'<text class="title" x="{_LEFT}" y="26">{_TITLE}</text>',
            *_bars(done, rows, scale),
            *_names(done, rows),
            *(line for person in inside for line in _arrival(person, scale, bottom)),
            *_axis(scale, bottom),
            *_legend(bottom + 56),
            "</svg>\n",
        ]
    )


def _end_s(step: Step) -> float:
    return step.started_s + step.elapsed_ms / 1000


def _rows(steps: Sequence[Step]) -> dict[str, int]:
    """Row of each sequence, people above batch jobs. A row that is free is used again."""
    people = _first_free(steps, "interactive", 0)
    return people | _first_free(steps, "batch", max(people.values(), default=-1) + 1)


def _first_free(steps: Sequence[Step], priority: str, first: int) -> dict[str, int]:
    ends = {part.id: _end_s(step) for step in steps for part in step.spans if part.priority == priority}
    rows: dict[str, int] = {}
    free_from: dict[int, float] = {}
    for step in steps:
        for part in step.spans:
            if part.priority == priority and part.id not in rows:
                free = (row for row, end in sorted(free_from.items()) if end <= step.started_s + 1e-6)
                rows[part.id] = next(free, first + len(free_from))
                free_from[rows[part.id]] = ends[part.id]
    return rows


def _bars(steps: Sequence[Step], rows: dict[str, int], scale: _Scale) -> Iterator[str]:
    """One path for each look keeps the file small."""
    paths: dict[str, list[str]] = {look: [] for look in _LOOKS}
    for step in steps:
        left, right = scale.x(step.started_s), scale.x(_end_s(step))
        for part in step.spans:
            top, width = _TOP + rows[part.id] * _ROW, round(max(right - left - 1, 0.5), 1)
            paths[_look(part)].append(f"M{left} {top}h{width}v{_ROW - _GAP}h-{width}z")
    yield from (f'<path class="{look}" d="{"".join(shapes)}"/>' for look, shapes in paths.items() if shapes)


def _look(part: Part) -> str:
    return f"{part.priority}-{'decodes' if part.decodes else 'reads'}"


def _names(steps: Sequence[Step], rows: dict[str, int]) -> Iterator[str]:
    priorities = {part.id: part.priority for step in steps for part in step.spans}
    for priority, name in (("interactive", "people"), ("batch", "batch jobs")):
        taken = {row for id_, row in rows.items() if priorities[id_] == priority}
        if taken:
            middle = _TOP + (min(taken) + max(taken) + 1) * _ROW / 2 + 4
            yield f'<text x="{_LEFT - 12}" y="{middle:g}" text-anchor="end">{name}</text>'


def _arrival(person: Person, scale: _Scale, bottom: int) -> Iterator[str]:
    x = scale.x(person.arrival_s)
    yield f'<path class="arrival" d="M{x} 52V{bottom}"/>'
    if x + _LABEL < _WIDTH:
        yield f'<text class="wait" x="{x + 5:g}" y="56">first token: {person.wait_s:.2f} s</text>'


def _axis(scale: _Scale, bottom: int) -> Iterator[str]:
    yield f'<path class="axis" d="M{_LEFT} {bottom + 4}H{_WIDTH - _RIGHT}"/>'
    for half in range(math.ceil((scale.end_s - scale.begin_s) * 2)):
        x = scale.x(scale.begin_s + half / 2)
        yield f'<text class="small" x="{x}" y="{bottom + 20}" text-anchor="middle">{half / 2:g} s</text>'
    yield (
        f'<text class="small" x="{_WIDTH - _RIGHT}" y="{bottom + 36}" text-anchor="end">'
        "each column is one step of the engine</text>"
    )


def _legend(y: int) -> Iterator[str]:
    for number, (look, name) in enumerate(_LOOKS.items()):
        x = _LEFT + number * 160
        yield f'<rect class="{look}" x="{x}" y="{y - 11}" width="14" height="14" rx="2"/>'
        yield f'<text x="{x + 20}" y="{y + 1}">{escape(name)}</text>'
