"""Reads the logs of a training run. Steps that a continued run has done again count once."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo_model.logs import STEPS_LOG, TRIALS_LOG


@dataclass(frozen=True)
class Point:
    step: int
    tokens: int
    """The tokens that were trained on so far."""
    seconds: float
    loss: float
    """The loss in nats per token."""


@dataclass(frozen=True)
class RunLog:
    steps: list[Point]
    trials: list[Point]
    """Losses on held-out documents: of tokens that the model is to write, the mean of all kinds."""
    kinds: dict[str, float]
    """The last trial's loss of each kind."""


def read_run(folder: Path) -> RunLog:
    """Read a run's logs. Raises OSError without logs, and ValueError for empty ones."""
    steps, trials = _lines(folder / STEPS_LOG), _lines(folder / TRIALS_LOG)
    if not steps or not trials:
        raise ValueError(f"{folder}: nothing was logged")
    return RunLog(
        [_point(fields, fields["loss"]) for fields in steps],
        [_point(fields, fields["losses"]["all"]) for fields in trials],
        {kind: loss for kind, loss in trials[-1]["losses"].items() if kind != "all"},
    )


def _lines(path: Path) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        while kept and kept[-1]["step"] >= fields["step"]:
            kept.pop()
        kept.append(fields)
    return kept


def _point(fields: dict[str, Any], loss: float) -> Point:
    return Point(fields["step"], fields["tokens"], fields["seconds"], loss)
