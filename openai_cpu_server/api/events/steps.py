"""Steps as a listener is told of them. Many short ones become few. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from openai_cpu_server.api.events.hub import Seen
from openai_cpu_server.api.events.objects import Step, StepPart
from openai_cpu_server.api.events.sight import Sight, summed

MOST_STEPS = 50
"""Steps in one event. That is a column each two pixels of a picture of a minute."""


def told_steps(seen: Sequence[Seen], sight: Sight, *, wall_s: float) -> list[Step]:
    """Those of models that the key may see. `wall_s`: the Unix time at zero of the monotonic clock."""
    steps = [_step(one, sight, wall_s) for one in seen if sight.has_model(one.model.names)]
    size = -(-len(steps) // MOST_STEPS)
    return steps if size <= 1 else [_merged(group) for group in _groups(steps, size)]


def _step(seen: Seen, sight: Sight, wall_s: float) -> Step:
    figures = seen.figures
    return Step(
        model=seen.model.name,
        at=round(wall_s + seen.ended_s - figures.elapsed_ms / 1000, 4),
        ms=round(figures.elapsed_ms, 3),
        predicted_ms=round(figures.predicted_ms, 3),
        tokens=figures.tokens,
        padding=figures.padding,
        interrupted=figures.is_interrupted,
        preemptions=figures.preemptions,
        adapter=sight.adapter(seen.shown.adapter, seen.model.names),
        parts=sight.parts(seen.shown.parts),
    )


def _groups(steps: Sequence[Step], size: int) -> Iterator[list[Step]]:
    """Up to so many in a row, all of one model."""
    for _, of_model in groupby(steps, key=lambda step: step.model):
        row = list(of_model)
        yield from (row[start : start + size] for start in range(0, len(row), size))


def _merged(steps: Sequence[Step]) -> Step:
    first = steps[0]
    if len(steps) == 1:
        return first
    parts: dict[tuple[str | None, str], list[StepPart]] = {}
    for step in steps:
        for part in step.parts:
            parts.setdefault((part.id, part.priority), []).append(part)
    return Step(
        model=first.model,
        at=first.at,
        ms=round(sum(step.ms for step in steps), 3),
        predicted_ms=round(sum(step.predicted_ms for step in steps), 3),
        tokens=sum(step.tokens for step in steps),
        padding=sum(step.padding for step in steps),
        merged=len(steps),
        interrupted=any(step.interrupted for step in steps),
        preemptions=sum(step.preemptions for step in steps),
        adapter=first.adapter,
        parts=[summed(of_one) for of_one in parts.values()],
    )
