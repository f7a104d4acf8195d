"""*pool pressure*: more requests than the KV pool can hold. None fails, and no answer changes.

An answer may change where two candidates are so close that rounding decides. How far rounding moves their
margin is measured, too: with the same prompts in other chunks and beside others, in a pool with room for all.
"""

from __future__ import annotations

import asyncio
import enum
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec
from bench.asking import Ask, Priority, ScoredToken, Trace
from bench.bench import Bench
from bench.contestants import Variant
from bench.http_client import call
from bench.load import Clients, LoadFailed
from bench.prompts import random_words
from bench.results import Direction, Figure, Goal, WorkloadResult
from bench.stats import Rounds

_ALTERNATIVES = 5
_COMPANY = 8
_SMALL_CHUNKS = ("--max-seqs", str(_COMPANY), "--prefill-tokens", "48")
"""Steps so small that attention, too, is computed in another way. (They have room for all sequences.)"""
Answers = dict[tuple[int, ...], list[ScoredToken]]
"""The answers by prompt."""
_MARGIN_TOKENS = 32
"""The tokens of each answer by which rounding is measured."""


class Verdict(enum.Enum):
    SAME = "same"
    NEAR_TIE = "near tie"
    """At the first token that differs, both runs found the other run's choice nearly as good."""
    DIFFERENT = "different"


class Comparison(msgspec.Struct, frozen=True):
    verdict: Verdict
    position: int | None = None
    """The position of the first difference; the texts behind it cannot be compared."""
    gap: float | None = None
    """The difference of the two candidates' log-probabilities, the larger of both runs;
    None: one is not among the best."""


def compare(alone: Sequence[ScoredToken], together: Sequence[ScoredToken], *, near_tie: float) -> Comparison:
    """Compare two outputs. If one is shorter, they differ at its end.

    `near_tie` is the largest gap that rounding explains.
    """
    for position, (a, b) in enumerate(zip(alone, together, strict=False)):
        if a.text != b.text:
            return _classify(position, a, b, near_tie)
    if len(alone) != len(together):
        return Comparison(Verdict.DIFFERENT, min(len(alone), len(together)))
    return Comparison(Verdict.SAME)


def _classify(position: int, alone: ScoredToken, together: ScoredToken, near_tie: float) -> Comparison:
    if together.text not in alone.top or alone.text not in together.top:
        return Comparison(Verdict.DIFFERENT, position)
    gap = max(alone.logprob - alone.top[together.text], together.logprob - together.top[alone.text])
    return Comparison(Verdict.NEAR_TIE if gap <= near_tie else Verdict.DIFFERENT, position, gap)


def margin_shifts(one: Sequence[ScoredToken], other: Sequence[ScoredToken]) -> Iterator[float]:
    """How much the margins between the same two candidates differ in two runs of the same prompt.

    There is one for each output token, up to the first that differs, if both runs have both candidates among
    their best.
    """
    for a, b in zip(one, other, strict=False):
        best, *others = sorted(a.top, key=lambda text: -a.top[text])
        if others and {best, others[0]} <= b.top.keys():
            yield abs((a.top[best] - a.top[others[0]]) - (b.top[best] - b.top[others[0]]))
        if a.text != b.text:
            return


@dataclass(frozen=True)
class Size:
    requests: int
    prompt_tokens: int
    output_tokens: int
    pool_tokens: int
    every_s: float
    """Seconds between interactive arrivals. All batch requests are there from the start."""


FULL = Size(requests=32, prompt_tokens=300, output_tokens=200, pool_tokens=2048, every_s=2.0)
QUICK = Size(requests=16, prompt_tokens=150, output_tokens=50, pool_tokens=512, every_s=0.05)


@dataclass(frozen=True)
class Rounding:
    """The effect of rounding on the margin between two candidates' log-probabilities."""

    shifts: list[float] = field(repr=False)

    @property
    def largest(self) -> float:
        return max(self.shifts)

    def __str__(self) -> str:
        median = statistics.median(self.shifts)
        return (
            f"the same prompts in chunks of at most 48 tokens, {_COMPANY} at once in a pool with room for "
            "all: margins between the two best candidates move by up to "
            f"{self.largest:.3f} (median {median:.3f}, {len(self.shifts)} tokens)"
        )


@dataclass(frozen=True)
class PressureRun:
    traces: list[Trace]
    comparisons: list[Comparison]

    @property
    def num_complete(self) -> int:
        return sum(t.is_complete and t.output_tokens == t.ask.max_tokens for t in self.traces)

    @property
    def errors(self) -> list[str]:
        return [trace.error for trace in self.traces if trace.error is not None]

    @property
    def preemptions(self) -> int:
        return sum(trace.timings.preemptions for trace in self.traces)

    def count(self, verdict: Verdict) -> int:
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


def workload(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    pool = ("--ctx-size", str(size.pool_tokens))
    bench.say("each request alone")
    with bench.server(Variant.WHOLE, *pool) as server:
        asked = asks(size, asyncio.run(prompts(size, server.port)))
        alone = _answers(server.port, asked, at_once=1)
    bench.say("their beginnings in other chunks, without pressure")
    with bench.server(Variant.WHOLE, *roomy(size), *_SMALL_CHUNKS) as server:
        rounding = _rounding(alone, _answers(server.port, beginnings(asked), at_once=_COMPANY))

    def measure(_: int) -> PressureRun:
        with bench.server(Variant.WHOLE, *pool) as server:
            together = Clients(server.port)
            asyncio.run(together.open_loop(asked, arrivals(size)))
            return _compared(alone, together, rounding)

    runs = bench.interleaved({Variant.WHOLE: measure})[Variant.WHOLE]
    return WorkloadResult(
        name="pool-pressure",
        sizes=f"{size.requests} requests of {size.prompt_tokens} + {size.output_tokens} tokens: "
        f"half of them batch at once, interactive ones every {size.every_s:g} s; "
        f"a pool of {size.pool_tokens}",
        goals=_goals(size, runs),
        figures=_figures(runs),
        notes=(str(rounding), *_notes(runs, rounding)),
    )


def roomy(size: Size) -> tuple[str, str]:
    """A pool in which all requests fit."""
    return "--ctx-size", str(2 * _COMPANY * (size.prompt_tokens + size.output_tokens))


async def prompts(size: Size, port: int) -> list[tuple[int, ...]]:
    """Prompts of common words, so that a trained model has an answer to them."""
    texts = [random_words(size.prompt_tokens, "pressure", i) for i in range(size.requests)]
    return [(await tokenize(port, text))[: size.prompt_tokens] for text in texts]


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


async def tokenize(port: int, text: str) -> tuple[int, ...]:
    """The tokens without a BOS. Raises HttpFailed."""
    body = msgspec.json.encode({"content": text, "add_special": False})
    return msgspec.json.decode(await call(port, "POST", "/tokenize", body), type=_Tokenized).tokens


def asks(size: Size, prompts: Sequence[tuple[int, ...]]) -> list[Ask]:
    """The requests, the batch half first."""
    return [
        Ask(
            prompt=prompt,
            max_tokens=size.output_tokens,
            temperature=0,
            priority=Priority.BATCH if i < size.requests // 2 else Priority.INTERACTIVE,
            logprobs=_ALTERNATIVES,
        )
        for i, prompt in enumerate(prompts)
    ]


def beginnings(asks: Sequence[Ask]) -> list[Ask]:
    """The same requests, with answers just long enough to measure rounding."""
    return [msgspec.structs.replace(ask, max_tokens=min(ask.max_tokens, _MARGIN_TOKENS)) for ask in asks]


def arrivals(size: Size) -> list[float]:
    """The arrivals of `asks`. The pool is full of batch work when the first interactive request comes."""
    half = size.requests // 2
    return [max(0.0, size.every_s * (i - half + 1)) for i in range(size.requests)]


def _answers(port: int, asks: Sequence[Ask], *, at_once: int) -> Answers:
    """The answers to the requests. Raises LoadFailed."""
    clients = Clients(port)
    asyncio.run(clients.closed_loop(asks, at_once))
    clients.check()
    return {trace.ask.prompt: trace.scored for trace in clients.traces}


def _rounding(one: Answers, other: Answers) -> Rounding:
    """The effect of rounding. Raises LoadFailed if no two answers share two candidates."""
    shifts = list(chain.from_iterable(margin_shifts(one[prompt], other[prompt]) for prompt in one))
    if not shifts:
        raise LoadFailed("the same prompts in other chunks have other candidates throughout")
    return Rounding(shifts)


def _compared(alone: Answers, together: Clients, rounding: Rounding) -> PressureRun:
    """Compare request by request, without those that failed."""
    complete = [trace for trace in together.traces if trace.is_complete]
    comparisons = [
        compare(alone[trace.ask.prompt], trace.scored, near_tie=rounding.largest) for trace in complete
    ]
    return PressureRun(together.traces, comparisons)


def _goals(size: Size, runs: list[PressureRun]) -> tuple[Goal, ...]:
    """The goals; the worst round counts."""
    return (
        _goal("requests complete", min(run.num_complete for run in runs), Direction.AT_LEAST, size.requests),
        _goal("errors", max(len(run.errors) for run in runs), Direction.AT_MOST, 0),
        _goal(
            "greedy outputs that differ from the run alone, near ties of logits not counted",
            max(run.count(Verdict.DIFFERENT) for run in runs),
            Direction.AT_MOST,
            0,
        ),
    )


def _goal(what: str, measured: float, direction: Direction, limit: float) -> Goal:
    return Goal(what=what, rounds=Rounds((measured,)), direction=direction, limit=limit)


def _figures(runs: list[PressureRun]) -> tuple[Figure, ...]:
    return (
        Figure(what="outputs identical", rounds=Rounds.of(runs, lambda run: run.count(Verdict.SAME))),
        Figure(
            what="outputs that part at a near tie",
            rounds=Rounds.of(runs, lambda run: run.count(Verdict.NEAR_TIE)),
        ),
        Figure(what="outputs that differ", rounds=Rounds.of(runs, lambda run: run.count(Verdict.DIFFERENT))),
        Figure(what="preemptions", rounds=Rounds.of(runs, lambda run: run.preemptions)),
    )


def _notes(runs: list[PressureRun], rounding: Rounding) -> tuple[str, ...]:
    """Notes about exceptions and failures."""
    notes = [f"round {n + 1}: {error}" for n, run in enumerate(runs) for error in run.errors]
    for number, run in enumerate(runs):
        exceptions = [c for c in run.comparisons if c.verdict is not Verdict.SAME]
        notes += [f"round {number + 1}: {_exception(comparison, rounding)}" for comparison in exceptions]
    return tuple(notes)


def _exception(comparison: Comparison, rounding: Rounding) -> str:
    at = f"{comparison.verdict.value} at output token {comparison.position}"
    if comparison.gap is None:
        return f"{at}, the other's choice is not among the best {_ALTERNATIVES}"
    return f"{at}, candidates {comparison.gap:.3f} apart (near: up to {rounding.largest:.3f})"
