"""*json*: cost of answers that follow a schema, against free text of equal lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jsonschema
import msgspec

from bench import schemas
from bench.bench import Bench
from bench.prompts import RandomPrompts
from bench.results import Direction, Figure, Goal, Rounds, WorkloadResult
from bench.servers import Contestant, Variant
from bench.traffic import Trace
from bench.workloads.batches import BatchRun, Size, run_batch

_LONGEST = 800
"""Limit above any of the schemas, several times the usual number."""
_COMPARED = (
    "compared are equal prompts and equal numbers of output tokens, not equal texts: free text cannot be "
    "made to say the same. Overhead: the free requests' tokens per second over the constrained ones', less 1"
)
_LEFT_OUT = "servers whose text completions know no JSON Schema are left out"


@dataclass(frozen=True)
class JsonRun:
    bound: BatchRun
    free: BatchRun

    @property
    def overhead_percent(self) -> float:
        return 100 * (self.free.output_tokens_per_s / self.bound.output_tokens_per_s - 1)

    @property
    def forced_percent(self) -> float:
        forced = sum(trace.timings.forced_tokens for trace in self.bound.traces)
        return 100 * forced / self.bound.output_tokens

    @property
    def mean_tokens(self) -> float:
        return self.bound.output_tokens / len(self.bound.traces)

    @property
    def valid_percent(self) -> float:
        return 100 * sum(map(is_valid, self.bound.traces)) / len(self.bound.traces)


def run(bench: Bench) -> WorkloadResult:
    size = Size(8, 8, 40, _LONGEST) if bench.is_quick else Size(16, 16, 120, _LONGEST)

    def measure(who: Contestant, number: int) -> JsonRun:
        requests = schemas.following(size.bench_requests(RandomPrompts(), "json", number))
        with bench.start(who, size.room) as server:
            bound = run_batch(server, requests, size.clients)
        lengths = {trace.request.seed: trace.output_tokens for trace in bound.traces}
        free = [
            msgspec.structs.replace(request, schema=None, max_tokens=lengths[request.seed])
            for request in requests
        ]
        with bench.start(who, size.room) as server:  # afresh: nothing of the same prompts is known
            return JsonRun(bound, run_batch(server, free, size.clients))

    contestants = [who for who in bench.contestants(Variant.WHOLE) if who.does_json]
    contest = bench.contest(contestants, measure)
    line, at_least, at_most = contest.line, Direction.AT_LEAST, Direction.AT_MOST
    return WorkloadResult(
        name="json",
        sizes=f"{size.requests} requests that follow {len(schemas.ALL)} schemas, {size.clients} clients, "
        f"{size.prompt_tokens} prompt tokens; then free ones of the same lengths",
        goals=contest.of_ours("goals", _goals),
        lines=(
            line("constrained: output", "tok/s", at_least, lambda run: run.bound.output_tokens_per_s),
            line("free: output", "tok/s", at_least, lambda run: run.free.output_tokens_per_s),
            line("overhead", "%", at_most, lambda run: run.overhead_percent),
            line("constrained: valid answers", "%", at_least, lambda run: run.valid_percent),
            line("constrained: tokens of an answer", "", at_most, lambda run: run.mean_tokens),
            line("constrained: TTFT p50", "s", at_most, lambda run: run.bound.ttft_s(50)),
            line("free: TTFT p50", "s", at_most, lambda run: run.free.ttft_s(50)),
        ),
        figures=contest.of_ours("figures", _figures),
        failures=contest.failures,
        notes=(_COMPARED, _LEFT_OUT, *contest.of_ours("answers", _wrong_answers)),
    )


def is_valid(trace: Trace) -> bool:
    assert trace.request.schema is not None
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(trace.request.schema, format_checker=checker)
    try:
        fits: bool = validator.is_valid(json.loads(trace.text))
    except ValueError:
        return False
    return fits and trace.finish_reason == "stop"


def _goals(runs: list[JsonRun]) -> tuple[Goal, ...]:
    overhead = "overhead of answers that follow a schema, against free ones of the same lengths"
    valid = "answers that are JSON and fit their schema, in the worst round"
    worst = Rounds((min(run.valid_percent for run in runs),))
    return (
        Goal.at_most(overhead, Rounds.of(runs, lambda run: run.overhead_percent), 0, "%"),
        Goal.at_least(valid, worst, 100, "%"),
    )


def _figures(runs: list[JsonRun]) -> tuple[Figure, ...]:
    rounds = Rounds.of(runs, lambda run: run.forced_percent)
    return (Figure(what="ours: forced tokens, of the output", rounds=rounds, unit="%"),)


def _wrong_answers(runs: list[JsonRun]) -> tuple[str, ...]:
    return tuple(
        f"round {number + 1}: not valid ({trace.finish_reason}): {trace.text[:200]!r}"
        for number, run in enumerate(runs)
        for trace in run.bound.traces
        if not is_valid(trace)
    )
