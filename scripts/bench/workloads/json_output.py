"""*json*: what it costs that answers follow a schema, against free text of the same lengths."""

from __future__ import annotations

import enum
import json
from collections.abc import Callable
from dataclasses import dataclass

import jsonschema
import msgspec

from bench import schemas
from bench.asking import Ask, JsonSchema, Trace
from bench.bench import Bench
from bench.prompts import random_tokens
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.servers import Variant
from bench.stats import Rounds, ratio
from bench.workloads.batches import BatchRun, run_batch

_SERVER = ("--ctx-size", "16384")
_LONGEST = 800
"""Tokens: more than any of the schemas allows in words, and several times what is usual."""
_COMPARED = (
    "compared are equal prompts and equal numbers of output tokens, not equal texts: free text cannot be "
    "made to say the same. Overhead: the free requests' tokens per second over the constrained ones', less 1"
)


class Kind(enum.Enum):
    """The order matters: free requests get the lengths of the constrained ones before them."""

    CONSTRAINED = "constrained"
    FREE = "free"

    @property
    def label(self) -> str:
        return self.value


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int


FULL = Size(requests=16, clients=16, prompt_tokens=120)
QUICK = Size(requests=8, clients=8, prompt_tokens=40)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    lengths: dict[int, list[int]] = {}

    def constrained(number: int) -> BatchRun:
        found = _measure(bench, constrained_asks(size, number), size)
        lengths[number] = [trace.output_tokens for trace in in_order(found.traces)]
        return found

    def free(number: int) -> BatchRun:
        return _measure(bench, free_asks(size, number, lengths[number]), size)

    runs = bench.interleaved({Kind.CONSTRAINED: constrained, Kind.FREE: free})
    bound, unbound = runs[Kind.CONSTRAINED], runs[Kind.FREE]
    return WorkloadResult(
        name="json",
        sizes=f"{size.requests} requests that follow {len(schemas.ALL)} schemas, {size.clients} clients, "
        f"{size.prompt_tokens} prompt tokens; then free ones of the same lengths",
        goals=_goals(bound, unbound),
        figures=_figures(bound, unbound),
        notes=(_COMPARED, *_wrong_answers(bound)),
    )


def _measure(bench: Bench, asks: list[Ask], size: Size) -> BatchRun:
    with bench.server(Variant.WHOLE, *_SERVER) as server:
        return run_batch(server, asks, size.clients)


def constrained_asks(size: Size, number: int) -> list[Ask]:
    """Of one round; the schemas take turns."""
    return [
        Ask(
            prompt=random_tokens(size.prompt_tokens, "json", number, i),
            max_tokens=_LONGEST,
            seed=i,
            schema=schemas.ALL[i % len(schemas.ALL)],
        )
        for i in range(size.requests)
    ]


def free_asks(size: Size, number: int, lengths: list[int]) -> list[Ask]:
    """The same without schemas, each of its length."""
    pairs = zip(constrained_asks(size, number), lengths, strict=True)
    return [msgspec.structs.replace(ask, schema=None, max_tokens=length) for ask, length in pairs]


def in_order(traces: list[Trace]) -> list[Trace]:
    """As asked for; clients take what is next when they are free."""
    return sorted(traces, key=lambda trace: trace.ask.seed)


def is_valid(trace: Trace) -> bool:
    """Whether the answer is whole, is JSON, and fits its schema."""
    assert trace.ask.schema is not None
    try:
        answer = json.loads(trace.text)
    except ValueError:
        return False
    return trace.finish_reason == "stop" and _fits(answer, trace.ask.schema)


def _fits(answer: object, schema: JsonSchema) -> bool:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    fits: bool = jsonschema.Draft202012Validator(schema, format_checker=checker).is_valid(answer)
    return fits


def _goals(bound: list[BatchRun], unbound: list[BatchRun]) -> tuple[Goal, ...]:
    return (
        Goal(
            what="overhead of answers that follow a schema, against free ones of the same lengths",
            measured=100 * (ratio(_each(unbound, _speed), _each(bound, _speed)) - 1),
            direction=Direction.AT_MOST,
            limit=0,
            unit="%",
        ),
        Goal(
            what="answers that are JSON and fit their schema, in the worst round",
            measured=min(map(_valid_percent, bound)),
            direction=Direction.AT_LEAST,
            limit=100,
            unit="%",
        ),
    )


def _figures(bound: list[BatchRun], unbound: list[BatchRun]) -> tuple[Figure, ...]:
    overheads = (_overhead_percent(*pair) for pair in zip(bound, unbound, strict=True))
    return (
        Figure(what="constrained: output", rounds=_each(bound, _speed), unit="tok/s"),
        Figure(what="free: output", rounds=_each(unbound, _speed), unit="tok/s"),
        Figure(what="overhead", rounds=Rounds(tuple(overheads)), unit="%"),
        Figure(what="forced tokens, of the output", rounds=_each(bound, _forced_percent), unit="%"),
        Figure(what="constrained: tokens of an answer", rounds=_each(bound, _mean_tokens)),
        Figure(what="constrained: TTFT p50", rounds=_each(bound, _median_ttft_s), unit="s"),
        Figure(what="free: TTFT p50", rounds=_each(unbound, _median_ttft_s), unit="s"),
        Figure(what="constrained: valid answers", rounds=_each(bound, _valid_percent), unit="%"),
    )


def _overhead_percent(bound: BatchRun, unbound: BatchRun) -> float:
    return 100 * (_speed(unbound) / _speed(bound) - 1)


def _speed(run: BatchRun) -> float:
    return run.output_tokens_per_s


def _forced_percent(run: BatchRun) -> float:
    forced = sum(trace.timings.forced_tokens for trace in run.traces)
    return 100 * forced / sum(trace.output_tokens for trace in run.traces)


def _mean_tokens(run: BatchRun) -> float:
    return sum(trace.output_tokens for trace in run.traces) / len(run.traces)


def _median_ttft_s(run: BatchRun) -> float:
    return run.ttft_s(50)


def _valid_percent(run: BatchRun) -> float:
    return 100 * sum(map(is_valid, run.traces)) / len(run.traces)


def _wrong_answers(runs: list[BatchRun]) -> list[str]:
    return [
        f"round {number + 1}: not valid ({trace.finish_reason}): {trace.text[:200]!r}"
        for number, run in enumerate(runs)
        for trace in run.traces
        if not is_valid(trace)
    ]


def _each(runs: list[BatchRun], figure: Callable[[BatchRun], float]) -> Rounds:
    return Rounds(tuple(map(figure, runs)))
