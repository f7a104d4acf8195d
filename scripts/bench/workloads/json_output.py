"""*json*: cost of answers that follow a schema, against free text of the same lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass

import jsonschema
import msgspec

from bench import schemas
from bench.asking import Ask, JsonSchema, Trace
from bench.bench import Bench
from bench.contestants import Contestant, Room, Variant
from bench.prompts import RandomPrompts
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.stats import Rounds
from bench.workloads.batches import BatchRun, questions, run_batch

_POOL_TOKENS = 16384
_LONGEST = 800
"""More tokens than any of the schemas allows in words, and several times the usual number."""
_COMPARED = (
    "compared are equal prompts and equal numbers of output tokens, not equal texts: free text cannot be "
    "made to say the same. Overhead: the free requests' tokens per second over the constrained ones', less 1"
)
_LEFT_OUT = "servers whose text completions know no JSON Schema are left out"


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    prompt_tokens: int

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + _LONGEST)


FULL = Size(requests=16, clients=16, prompt_tokens=120)
QUICK = Size(requests=8, clients=8, prompt_tokens=40)


@dataclass(frozen=True)
class JsonRun:
    bound: BatchRun
    free: BatchRun

    @property
    def lengths(self) -> list[int]:
        return [trace.output_tokens for trace in in_order(self.bound.traces)]

    @property
    def overhead_percent(self) -> float:
        return 100 * (self.free.output_tokens_per_s / self.bound.output_tokens_per_s - 1)

    @property
    def forced_percent(self) -> float:
        forced = sum(trace.timings.forced_tokens for trace in self.bound.traces)
        return 100 * forced / self.bound.output_tokens

    @property
    def mean_tokens(self) -> float:
        return sum(self.lengths) / len(self.lengths)

    @property
    def valid_percent(self) -> float:
        return 100 * sum(map(is_valid, self.bound.traces)) / len(self.bound.traces)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> JsonRun:
        with bench.start(who, size.room) as server:
            bound = run_batch(server, constrained_asks(size, number), size.clients)
        lengths = [trace.output_tokens for trace in in_order(bound.traces)]
        with bench.start(who, size.room) as server:  # afresh: nothing of the same prompts is known
            return JsonRun(bound, run_batch(server, free_asks(size, number, lengths), size.clients))

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


def constrained_asks(size: Size, number: int) -> list[Ask]:
    lengths = [_LONGEST] * size.requests
    return schemas.following(questions(RandomPrompts(), size.prompt_tokens, lengths, "json", number))


def free_asks(size: Size, number: int, lengths: list[int]) -> list[Ask]:
    pairs = zip(constrained_asks(size, number), lengths, strict=True)
    return [msgspec.structs.replace(ask, schema=None, max_tokens=length) for ask, length in pairs]


def in_order(traces: list[Trace]) -> list[Trace]:
    return sorted(traces, key=lambda trace: trace.ask.seed)


def is_valid(trace: Trace) -> bool:
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


def _goals(runs: list[JsonRun]) -> tuple[Goal, ...]:
    return (
        Goal.at_most(
            "overhead of answers that follow a schema, against free ones of the same lengths",
            Rounds.of(runs, lambda run: run.overhead_percent),
            0,
            "%",
        ),
        Goal.at_least(
            "answers that are JSON and fit their schema, in the worst round",
            Rounds((min(run.valid_percent for run in runs),)),
            100,
            "%",
        ),
    )


def _figures(runs: list[JsonRun]) -> tuple[Figure, ...]:
    forced = Rounds.of(runs, lambda run: run.forced_percent)
    return (Figure(what="ours: forced tokens, of the output", rounds=forced, unit="%"),)


def _wrong_answers(runs: list[JsonRun]) -> tuple[str, ...]:
    return tuple(
        f"round {number + 1}: not valid ({trace.finish_reason}): {trace.text[:200]!r}"
        for number, run in enumerate(runs)
        for trace in run.bound.traces
        if not is_valid(trace)
    )
