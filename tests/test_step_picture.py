"""The picture of the steps of a run."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from bench.step_picture import Person, step_picture
from bench.timeline import Part, Step

_SVG = "{http://www.w3.org/2000/svg}"


def step(started_s: float, *parts: Part, interrupted: bool = False) -> Step:
    return Step(started_s=started_s, elapsed_ms=100, padding=0, interrupted=interrupted, spans=parts)


def part(name: str, priority: str = "batch", *, decodes: bool = True) -> Part:
    return Part(id=name, priority=priority, tokens=1, decodes=decodes)


STEPS = [
    step(5.0, part("a"), part("b")),
    step(5.1, part("a"), part("b"), interrupted=True),
    step(5.2, part("me", "interactive", decodes=False), part("a")),
    step(5.3, part("me", "interactive"), part("a")),
]


def bars(picture: str) -> dict[str, list[tuple[float, float]]]:
    """The corners of the bars of each look."""
    root = ElementTree.fromstring(picture)
    return {
        path.get("class", ""): [
            (float(x), float(y)) for x, y in re.findall(r"M([\d.]+) (\d+)h", path.get("d", ""))
        ]
        for path in root.iter(f"{_SVG}path")
    }


def test_each_sequence_has_a_bar_in_each_step_that_was_applied_people_above_and_time_to_the_right() -> None:
    found = bars(step_picture(STEPS, []))
    jobs, (reads,), (decodes,) = (
        found[look] for look in ("batch-decodes", "interactive-reads", "interactive-decodes")
    )
    assert len(jobs) == 4
    assert len({y for _, y in jobs}) == 2
    assert reads[1] == decodes[1] < min(y for _, y in jobs)
    assert jobs[0][0] < reads[0] < decodes[0]


def test_it_says_how_long_people_waited_but_not_of_those_who_came_later() -> None:
    picture = step_picture(STEPS, [Person(5.05, 0.25), Person(9.0, 7.5)])
    assert "first token: 0.25 s" in picture
    assert "7.5" not in picture
