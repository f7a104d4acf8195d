"""*speculation*: drafts on against off, where answers quote and where they do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from bench.bench import Bench
from bench.results import Contest, Direction, Goal, Line, WorkloadResult, ratios
from bench.servers import Contestant, Room, ServerSpec, Variant, ours
from bench.workloads.batches import BatchRun, run_batch

from regressions.speculation_tasks import TASKS, Task, draft_model, tasks

_ROOM = Room(pool_tokens=16384, request_tokens=1024)
_MEANING = (
    "a prompt to quote is a passage of random tokens three times and its beginning: language models go on "
    "with it, small or random ones begin to repeat themselves, which is a quotation too; how much was "
    "foretold the accepted tokens say"
)
_CONVERSATIONS = (
    "conversations are requests made of word lists, in the model's chat template; the model ends its answers "
    "itself, stories are sampled at temperature 0.8, the others greedy"
)


_OFF = "drafts off"
Runs = dict[str, BatchRun]


def workload(bench: Bench) -> WorkloadResult:
    tokens = 24 if bench.is_quick else 128
    asked = tasks(bench.model)

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, _ROOM) as server:
            return {task.what: run_batch(server, task.asks(number, tokens), task.clients) for task in asked}

    contest = bench.contest(_contestants(bench.model), measure)
    outputs = {
        task.what: _line(contest, task, "output", "tok/s", lambda run: run.output_tokens_per_s)
        for task in asked
    }
    return WorkloadResult(
        name="speculation",
        sizes=f"{len(asked)} tasks; random tokens: answers of {tokens} tokens (quotations: {3 * tokens}; "
        "JSON: complete)",
        goals=tuple(_goals(contest, outputs)),
        lines=tuple(
            line
            for task in asked
            for line in (
                outputs[task.what],
                _line(contest, task, "drafted, of the output", "%", _drafted),
                _line(contest, task, "accepted, of the drafted", "%", _accepted),
            )
        ),
        failures=contest.failures,
        notes=(_MEANING, _CONVERSATIONS) if len(asked) > len(TASKS) else (_MEANING,),
    )


def _contestants(model: Path) -> list[Contestant]:
    modes = {_OFF: ("--speculation", "off"), "drafts that quote": ("--speculation", "auto")}
    if (draft := draft_model(model)) is not None:
        modes["draft model too"] = ("--speculation", "auto", "--draft-model", str(draft))
    return [
        Contestant(key=label, label=label, spec=partial(_spec, label, options), is_peer=False)
        for label, options in modes.items()
    ]


def _spec(label: str, options: tuple[str, ...], model: Path, room: Room) -> ServerSpec:
    made = ours(Variant.WHOLE, model, "--ctx-size", str(room.pool_tokens), *options)
    return replace(made, label=label)


def _line(
    contest: Contest[Runs], task: Task, what: str, unit: str, figure: Callable[[BatchRun], float]
) -> Line:
    return contest.line(
        f"{task.what}: {what}", unit, Direction.AT_LEAST, lambda runs: figure(runs[task.what])
    )


def _goals(contest: Contest[Runs], outputs: dict[str, Line]) -> Iterator[Goal]:
    labels = [who.label for who in contest.runs if who.label != _OFF]
    for what, line in outputs.items():
        for label in labels:
            speeds = line.servers
            gain = ratios(speeds[label], speeds[_OFF]) if {label, _OFF} <= speeds.keys() else None
            yield Goal.at_least(f"{what}: output, '{label}' against without", gain, 1.0, "x")


def _drafted(run: BatchRun) -> float:
    return 100 * _num_drafted(run) / run.output_tokens


def _accepted(run: BatchRun) -> float:
    return 100 * sum(trace.timings.draft_n_accepted for trace in run.traces) / max(_num_drafted(run), 1)


def _num_drafted(run: BatchRun) -> int:
    return sum(trace.timings.draft_n for trace in run.traces)
