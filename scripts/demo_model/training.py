"""The training run: steps until the budget is spent, checkpoints, held-out losses, logs."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import torch

from demo_model import checkpoint
from demo_model.batches import Batch, Batches
from demo_model.checkpoint import Position
from demo_model.model import Llama
from demo_model.optimise import Optimiser, Rates
from demo_model.report import Report, Step
from demo_model.rows import Rows
from demo_model.shapes import Shape
from demo_model.trials import Trials
from demo_model.workers import Workers

_SAVE_EVERY_S = 120.0


@dataclass(frozen=True)
class Budget:
    """The limit of a run: one of the two."""

    seconds: float | None = None
    tokens: int | None = None

    def spent(self, position: Position) -> float:
        """The spent share of the budget, 0 to 1."""
        if self.seconds is not None:
            return min(1.0, position.seconds / self.seconds)
        assert self.tokens is not None
        return min(1.0, position.tokens / self.tokens)


@dataclass(frozen=True)
class Plan:
    shape: Shape
    data: Path
    output: Path
    budget: Budget
    rates: Rates = field(default_factory=Rates)
    step_tokens: int = 8192
    batch_tokens: int = 2048
    prompt_weight: float = 0.1
    seed: int = 1
    device: str = "cpu"
    low: bool = True
    """Whether matrices are multiplied in bfloat16; the weights themselves stay in float32."""
    threads: int = 2
    trials_every_s: float = 300.0


def train(plan: Plan) -> Position:
    """Go on from the output folder's checkpoint, if any, until the budget is spent or a signal comes."""
    plan.output.mkdir(parents=True, exist_ok=True)
    run = Run(plan)
    with Report(plan.output, plan.shape) as report, _Signals() as stopping:
        while run.progress < 1.0 and not stopping.asked:
            report.step(run.step())
            if run.due_trials() or run.progress >= 1.0:
                report.trials(run.position, run.trials())
            if run.due_checkpoint():
                run.save()
    run.save()
    run.close()
    return run.position


class Run:
    def __init__(self, plan: Plan) -> None:
        torch.manual_seed(plan.seed)
        self._plan = plan
        self._device = torch.device(plan.device)
        self._model = Llama(plan.shape).to(self._device)
        self._optimiser = Optimiser(self._model, plan.rates)
        self.position = checkpoint.restore(plan.output, self._model, self._optimiser)
        self._workers = Workers(self._model, threads=plan.threads, low=plan.low, device=self._device)
        rows = Rows.open(plan.data / "train")
        self._batches = Batches(
            rows, tokens=plan.batch_tokens, seed=plan.seed, prompt_weight=plan.prompt_weight
        )
        held_out = Rows.open(plan.data / "held_out")
        self._trials = Trials(held_out, per_kind=12, device=self._device)
        self._tried_s = self._saved_s = self.position.seconds

    @property
    def progress(self) -> float:
        return self._plan.budget.spent(self.position)

    def step(self) -> Step:
        """One step: gradients of batches until the step's tokens are reached, then the optimiser."""
        began_s = time.monotonic()
        done = self._workers.learn(self._next_batches())
        weight = sum(learnt.weight for learnt in done)
        tokens = sum(learnt.tokens for learnt in done)
        self._optimiser.scale_gradients(1.0 / weight)
        self._optimiser.step(self.progress)
        seconds = time.monotonic() - began_s
        self._advance(tokens, seconds)
        loss = sum(learnt.loss for learnt in done) / weight
        return Step(self.position, self.progress, loss, tokens, seconds)

    def trials(self) -> dict[str, float]:
        began_s = time.monotonic()
        self._model.eval()
        losses = self._trials.losses(self._model, low=self._plan.low)
        self._model.train()
        self.position.seconds += time.monotonic() - began_s
        self._tried_s = self.position.seconds
        return losses

    def save(self) -> None:
        checkpoint.save(self._plan.output, self._model, self._optimiser, self.position)
        self._saved_s = self.position.seconds

    def close(self) -> None:
        self._workers.close()

    def due_trials(self) -> bool:
        return self.position.seconds - self._tried_s >= self._plan.trials_every_s

    def due_checkpoint(self) -> bool:
        return self.position.seconds - self._saved_s >= _SAVE_EVERY_S

    def _next_batches(self) -> list[Batch]:
        """The next batches, as many as come nearest to a step's tokens."""
        batches: list[Batch] = []
        missing = self._plan.step_tokens
        while missing > self._plan.batch_tokens / 2:
            batches.append(self._batches[self.position.batch])
            missing -= batches[-1].num_tokens
            self.position.batch += 1
        return batches

    def _advance(self, tokens: int, seconds: float) -> None:
        self.position.step += 1
        self.position.tokens += tokens
        self.position.seconds += seconds


class _Signals:
    """Ctrl-C and SIGTERM ask for an end after the current step; a second one ends at once."""

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> _Signals:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("stopping after this step; the same command goes on", file=sys.stderr, flush=True)
