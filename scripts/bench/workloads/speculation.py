"""*speculation*: drafts on against off, where answers quote and where they do not."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from bench import schemas
from bench.asking import Ask
from bench.bench import Bench
from bench.contestants import Variant
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.stats import Rounds, ratio
from bench.workloads.batches import BatchRun, run_batch

_SERVER = ("--ctx-size", "16384")
_MEANING = (
    "a prompt to quote is a passage of random tokens three times and its beginning: language models go on "
    "with it, small or random ones begin to repeat themselves, which is a quotation too; how much was "
    "foretold the accepted tokens say"
)


class Mode(enum.Enum):
    """The value of `--speculation`."""

    ON = "auto"
    OFF = "off"

    @property
    def label(self) -> str:
        return f"--speculation {self.value}"


@dataclass(frozen=True)
class Task:
    what: str
    clients: int
    asks: Callable[[int, int], list[Ask]]
    """Of a round, with so many output tokens each."""


Runs = dict[str, BatchRun]
"""By task."""


def quoting(number: int, tokens: int, clients: int) -> list[Ask]:
    """Greedy, and long enough for a model that has learned nothing to begin to repeat itself."""
    found = []
    for i in range(clients):
        passage = random_tokens(60, "speculation", number, i)
        found.append(Ask(prompt=passage * 3 + passage[:12], max_tokens=3 * tokens, seed=i, temperature=0.0))
    return found


def filling_json(number: int, tokens: int, clients: int) -> list[Ask]:
    return [
        Ask(
            prompt=random_tokens(80, "speculation json", number, i),
            max_tokens=8 * tokens,
            seed=i,
            schema=schemas.ALL[i % len(schemas.ALL)],
        )
        for i in range(clients)
    ]


def free(number: int, tokens: int, clients: int) -> list[Ask]:
    """Sampled, so that hardly anything can be foretold."""
    return [
        Ask(prompt=random_tokens(80, "speculation free", number, i), max_tokens=tokens, seed=i)
        for i in range(clients)
    ]


TASKS = (
    Task("quotations, 1 client", 1, lambda number, tokens: quoting(number, tokens, 1)),
    Task("quotations, 4 clients", 4, lambda number, tokens: quoting(number, tokens, 4)),
    Task("quotations, 16 clients", 16, lambda number, tokens: quoting(number, tokens, 16)),
    Task("JSON, 1 client", 1, lambda number, tokens: filling_json(number, tokens, 2)),
    Task("JSON, 8 clients", 8, lambda number, tokens: filling_json(number, tokens, 8)),
    Task("free text, 1 client", 1, lambda number, tokens: free(number, tokens, 1)),
    Task("free text, 16 clients", 16, lambda number, tokens: free(number, tokens, 16)),
)


def run(bench: Bench) -> WorkloadResult:
    tokens = 24 if bench.is_quick else 128
    runs = bench.interleaved({mode: _measured(bench, mode, tokens) for mode in Mode})
    return WorkloadResult(
        name="speculation",
        sizes=f"{len(TASKS)} tasks, answers of {tokens} tokens (quotations: {3 * tokens}; JSON: complete)",
        goals=tuple(_goal(runs, task) for task in TASKS),
        figures=tuple(figure for task in TASKS for figure in _figures(runs, task)),
        notes=(_MEANING,),
    )


def _measured(bench: Bench, mode: Mode, tokens: int) -> Callable[[int], Runs]:
    """All tasks on one server, one after the other."""

    def measure(number: int) -> Runs:
        with bench.server(Variant.WHOLE, *_SERVER, "--speculation", mode.value) as server:
            return {task.what: run_batch(server, task.asks(number, tokens), task.clients) for task in TASKS}

    return measure


def _goal(runs: dict[Mode, list[Runs]], task: Task) -> Goal:
    on, off = (_each(runs[mode], task, _speed) for mode in Mode)
    return Goal(
        what=f"{task.what}: output with drafts, against without",
        measured=ratio(on, off),
        direction=Direction.AT_LEAST,
        limit=1.0,
        unit="x",
    )


def _figures(runs: dict[Mode, list[Runs]], task: Task) -> tuple[Figure, ...]:
    on, off = runs[Mode.ON], runs[Mode.OFF]
    return (
        Figure(what=f"{task.what}: output, drafts on", rounds=_each(on, task, _speed), unit="tok/s"),
        Figure(what=f"{task.what}: output, drafts off", rounds=_each(off, task, _speed), unit="tok/s"),
        Figure(what=f"{task.what}: drafted, of the output", rounds=_each(on, task, _drafted), unit="%"),
        Figure(what=f"{task.what}: accepted, of the drafted", rounds=_each(on, task, _accepted), unit="%"),
    )


def _each(runs: list[Runs], task: Task, figure: Callable[[BatchRun], float]) -> Rounds:
    return Rounds(tuple(figure(found[task.what]) for found in runs))


def _speed(run: BatchRun) -> float:
    return run.output_tokens_per_s


def _drafted(run: BatchRun) -> float:
    return 100 * _num_drafted(run) / sum(trace.output_tokens for trace in run.traces)


def _accepted(run: BatchRun) -> float:
    """0: nothing was drafted."""
    return 100 * sum(trace.timings.draft_n_accepted for trace in run.traces) / max(_num_drafted(run), 1)


def _num_drafted(run: BatchRun) -> int:
    return sum(trace.timings.draft_n for trace in run.traces)
