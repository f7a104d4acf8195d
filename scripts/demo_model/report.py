"""Reports a training run: a bar or lines on stderr, and two logs of one JSON object per line."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from demo_model.checkpoint import Position
from demo_model.logs import STEPS_LOG, TRIALS_LOG
from demo_model.shapes import Shape

_LOG_EVERY = 10
_LINE_EVERY_S = 15.0


@dataclass(frozen=True)
class Step:
    """The figures of one step of the optimiser."""

    position: Position
    progress: float
    loss: float
    """The mean loss by weight, prompts included."""
    tokens: int
    seconds: float


class Report:
    """Writes every tenth step's means, and each trial."""

    def __init__(self, folder: Path, shape: Shape) -> None:
        self._steps = (folder / STEPS_LOG).open("a", encoding="utf-8")
        self._trials = (folder / TRIALS_LOG).open("a", encoding="utf-8")
        self._name = shape.name
        self._seen: list[Step] = []
        self._said_s: float | None = None
        self._bar: Progress | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=Console(stderr=True))
            self._task = self._bar.add_task(shape.name, total=1.0)

    def __enter__(self) -> Report:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        self._steps.close()
        self._trials.close()

    def step(self, step: Step) -> None:
        self._seen.append(step)
        if len(self._seen) < _LOG_EVERY:
            return
        seconds = sum(seen.seconds for seen in self._seen)
        speed = sum(seen.tokens for seen in self._seen) / seconds
        loss = sum(seen.loss for seen in self._seen) / len(self._seen)
        self._seen.clear()
        _write(self._steps, {**_facts(step.position), "loss": round(loss, 4), "tokens_per_s": round(speed)})
        self._show(step, loss, speed)

    def trials(self, position: Position, losses: dict[str, float]) -> None:
        rounded = {kind: round(loss, 4) for kind, loss in losses.items()}
        _write(self._trials, {**_facts(position), "losses": rounded})
        self._say("held out: " + "  ".join(f"{kind} {loss:.3f}" for kind, loss in losses.items()))

    def _show(self, step: Step, loss: float, speed: float) -> None:
        position = step.position
        left_s = position.seconds / max(step.progress, 1e-9) * (1.0 - step.progress)
        text = (
            f"{self._name} step {position.step}  {position.tokens / 1e6:.2f} M tokens  loss {loss:.3f}"
            f"  {speed:.0f} tokens/s  {left_s / 60:.1f} min left"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=step.progress, description=text)
        elif self._said_s is None or position.seconds - self._said_s >= _LINE_EVERY_S:
            self._said_s = position.seconds
            self._say(text)

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(text)
        else:
            print(text, file=sys.stderr, flush=True)


def _facts(position: Position) -> dict[str, float]:
    return {
        "step": position.step,
        "tokens": position.tokens,
        "seconds": round(position.seconds, 1),
    }


def _write(file: object, fields: dict[str, object]) -> None:
    print(json.dumps(fields), file=file, flush=True)  # type: ignore[call-overload]
