"""*pool pressure*: more requests than the KV pool can hold. None fails, and no answer changes.

An answer may change where two candidates are so close that rounding decides. The effect of rounding on their
margin is measured too, with the same prompts in other chunks and beside others, in a pool with room for all.
"""

from __future__ import annotations

import asyncio
import enum
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import msgspec
from bench.asking import Ask, Priority, ScoredToken, Trace
from bench.bench import Bench
from bench.clients import Clients, LoadFailed, call
from bench.prompts import random_words
from bench.results import Figure, Goal, Rounds, WorkloadResult

_ALTERNATIVES = 5
_COMPANY = 8
_SMALL_CHUNKS = ("--max-seqs", str(_COMPANY), "--prefill-tokens", "48")
"""Steps so small that attention, too, is computed in another way. (They have room for all sequences.)"""
_MARGIN_TOKENS = 32
Answer = Sequence[ScoredToken]
Answers = dict[tuple[int, ...], Answer]


class Verdict(enum.Enum):
    SAME = "identical"
    NEAR_TIE = "that part at a near tie"
    """At the first token that differs, both runs found the other run's choice nearly as good."""
    DIFFERENT = "that differ"


class Comparison(NamedTuple):
    verdict: Verdict
    position: int | None = None
    """First difference; the texts after it cannot be compared."""
    gap: float | None = None
    """Larger gap between the two candidates' log-probabilities, or None if one is not among the best."""


@dataclass(frozen=True)
class Size:
    requests: int
    prompt_tokens: int
    output_tokens: int
    pool_tokens: int
    every_s: float
    """Interval of interactive arrivals. All batch requests are there from the start."""


FULL = Size(requests=32, prompt_tokens=300, output_tokens=200, pool_tokens=2048, every_s=2.0)
QUICK = Size(requests=16, prompt_tokens=150, output_tokens=50, pool_tokens=512, every_s=0.05)


class PressureRun(NamedTuple):
    traces: list[Trace]
    comparisons: list[Comparison]

    @property
    def errors(self) -> list[str]:
        return [trace.error for trace in self.traces if trace.error is not None]

    def count(self, verdict: Verdict) -> int:
        return sum(comparison.verdict is verdict for comparison in self.comparisons)


def workload(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL
    pool = ("--ctx-size", str(size.pool_tokens))
    roomy = ("--ctx-size", str(2 * _COMPANY * (size.prompt_tokens + size.output_tokens)), *_SMALL_CHUNKS)
    bench.say("each request alone")
    with bench.server(*pool) as server:
        asks = _asks(size, asyncio.run(_prompts(size, server.port)))
        alone = _answers(server.clients(), asks, at_once=1)
    bench.say("their beginnings in other chunks, without pressure")
    with bench.server(*roomy) as server:
        shorter = [
            msgspec.structs.replace(ask, max_tokens=min(ask.max_tokens, _MARGIN_TOKENS)) for ask in asks
        ]
        other = _answers(server.clients(), shorter, at_once=_COMPANY)
    shifts = list(chain.from_iterable(margin_shifts(alone[prompt], other[prompt]) for prompt in alone))
    if not shifts:
        raise LoadFailed("the same prompts in other chunks have other candidates throughout")

    # The pool is full of batch work when the first interactive request comes.
    half = size.requests // 2
    arrivals = [max(0.0, size.every_s * (i - half + 1)) for i in range(size.requests)]
    runs = []
    for number in range(bench.rounds):
        bench.say(f"round {number + 1} of {bench.rounds}: together")
        with bench.server(*pool) as server:
            together = server.clients()
            asyncio.run(together.open_loop(asks, arrivals))
        whole = [trace for trace in together.traces if trace.is_complete]
        found = [compare(alone[one.ask.prompt], one.scored, near_tie=max(shifts)) for one in whole]
        runs.append(PressureRun(together.traces, found))
    return WorkloadResult(
        name="pool-pressure",
        sizes=f"{size.requests} requests of {size.prompt_tokens} + {size.output_tokens} tokens: "
        f"half of them batch at once, interactive ones every {size.every_s:g} s; "
        f"a pool of {size.pool_tokens}",
        goals=_goals(size, runs),
        figures=tuple(_figures(runs)),
        notes=tuple(_notes(runs, shifts)),
    )


class _Tokenized(msgspec.Struct, frozen=True):
    tokens: tuple[int, ...]


async def _prompts(size: Size, port: int) -> list[tuple[int, ...]]:
    """Prompts of common words, so that a trained model has an answer to them."""
    found = []
    for i in range(size.requests):
        text = random_words(size.prompt_tokens, "pressure", i)
        body = msgspec.json.encode({"content": text, "add_special": False})
        text_tokens = msgspec.json.decode(await call(port, "POST", "/tokenize", body), type=_Tokenized)
        found.append(text_tokens.tokens[: size.prompt_tokens])
    return found


def _asks(size: Size, prompts: Sequence[tuple[int, ...]]) -> list[Ask]:
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


def _answers(clients: Clients, asks: Sequence[Ask], *, at_once: int) -> Answers:
    asyncio.run(clients.closed_loop(asks, at_once))
    clients.check()
    return {trace.ask.prompt: trace.scored for trace in clients.traces}


def compare(alone: Answer, together: Answer, *, near_tie: float) -> Comparison:
    """Compare two outputs. If one is shorter, they differ at its end. `near_tie`: largest gap that
    rounding explains."""
    for position, (a, b) in enumerate(zip(alone, together, strict=False)):
        if a.text == b.text:
            continue
        if b.text not in a.top or a.text not in b.top:
            return Comparison(Verdict.DIFFERENT, position)
        gap = max(a.logprob - a.top[b.text], b.logprob - b.top[a.text])
        return Comparison(Verdict.NEAR_TIE if gap <= near_tie else Verdict.DIFFERENT, position, gap)
    if len(alone) != len(together):
        return Comparison(Verdict.DIFFERENT, min(len(alone), len(together)))
    return Comparison(Verdict.SAME)


def margin_shifts(one: Answer, other: Answer) -> Iterator[float]:
    """Yield how much the margins between the same two candidates differ in two runs of a prompt: one for
    each output token up to the first difference, if both runs have both candidates among their best."""
    for a, b in zip(one, other, strict=False):
        best, *others = sorted(a.top, key=lambda text: -a.top[text])
        if others and {best, others[0]} <= b.top.keys():
            yield abs((a.top[best] - a.top[others[0]]) - (b.top[best] - b.top[others[0]]))
        if a.text != b.text:
            return


def _goals(size: Size, runs: list[PressureRun]) -> tuple[Goal, ...]:
    complete = min(
        sum(one.is_complete and one.output_tokens == one.ask.max_tokens for one in run.traces) for run in runs
    )
    errors = max(len(run.errors) for run in runs)
    different = max(run.count(Verdict.DIFFERENT) for run in runs)
    what = "greedy outputs that differ from the run alone, near ties of logits not counted"
    return (
        Goal.at_least("requests complete", Rounds((float(complete),)), size.requests),
        Goal.at_most("errors", Rounds((float(errors),)), 0),
        Goal.at_most(what, Rounds((float(different),)), 0),
    )


def _figures(runs: list[PressureRun]) -> Iterator[Figure]:
    for verdict in Verdict:
        counts = Rounds.of(runs, lambda run, verdict=verdict: run.count(verdict))
        yield Figure(what=f"outputs {verdict.value}", rounds=counts)
    released = Rounds.of(runs, lambda run: sum(trace.timings.preemptions for trace in run.traces))
    yield Figure(what="preemptions", rounds=released)


def _notes(runs: list[PressureRun], shifts: list[float]) -> Iterator[str]:
    yield (
        f"the same prompts in chunks of at most 48 tokens, {_COMPANY} at once in a pool with room for all: "
        f"margins between the two best candidates move by up to {max(shifts):.3f} "
        f"(median {statistics.median(shifts):.3f}, {len(shifts)} tokens)"
    )
    for number, run in enumerate(runs):
        yield from (f"round {number + 1}: {error}" for error in run.errors)
        for verdict, position, gap in run.comparisons:
            if verdict is not Verdict.SAME:
                apart = f"candidates {gap:.3f} apart" if gap is not None else "the other's choice is not near"
                yield f"round {number + 1}: outputs {verdict.value}: at output token {position}, {apart}"
