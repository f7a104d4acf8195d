"""*prefix*: all requests begin with one long prompt, which should be computed once."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec

from bench.asking import Ask
from bench.bench import Bench
from bench.contest import Contest
from bench.contestants import Contestant, Room, Variant
from bench.prompts import Prompts
from bench.results import Direction, Goal, Line, WorkloadResult
from bench.workloads.batches import BatchRun, latency_lines, questions, requests_line, run_batch

_POOL_TOKENS = 16384
_ONE_AT_A_TIME = 16


@dataclass(frozen=True)
class Size:
    requests: int
    clients: int
    shared_tokens: int
    own_tokens: int
    output_tokens: int

    @property
    def room(self) -> Room:
        longest = self.shared_tokens + self.own_tokens + self.output_tokens
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=longest)


FULL = Size(requests=48, clients=16, shared_tokens=1080, own_tokens=45, output_tokens=16)
QUICK = Size(requests=24, clients=8, shared_tokens=540, own_tokens=22, output_tokens=8)


def run(bench: Bench) -> WorkloadResult:
    size = QUICK if bench.is_quick else FULL

    def measure(who: Contestant, number: int) -> BatchRun:
        asked = asks(bench.prompts, size, number)
        if who.key == Variant.SEQUENTIAL.key:
            asked = asked[:_ONE_AT_A_TIME]
        with bench.start(who, size.room) as server:
            return run_batch(server, asked, size.clients)

    contestants = bench.contestants(Variant.WHOLE, Variant.CACHE_OFF, Variant.SEQUENTIAL)
    contest = bench.contest(contestants, measure)
    requests, cached = requests_line(contest), _cached_line(contest)
    return WorkloadResult(
        name="prefix",
        sizes=f"{size.requests} requests, {size.clients} clients, "
        f"{size.shared_tokens} shared + {size.own_tokens} own + {size.output_tokens} output tokens; "
        f"of {Variant.SEQUENTIAL.label!r} the first {min(_ONE_AT_A_TIME, size.requests)}",
        goals=_goals(contest, requests, cached),
        lines=(requests, cached, *latency_lines(contest)),
        distributions=contest.distributions(lambda run: run.traces),
        failures=contest.failures,
    )


def _cached_line(contest: Contest[BatchRun]) -> Line:
    telling = {who: runs for who, runs in contest.runs.items() if who.tells_cached}
    share = "cached share of prompt tokens"
    return replace(contest, runs=telling).line(
        share, "%", Direction.AT_LEAST, lambda run: 100 * run.cached_share
    )


def _goals(contest: Contest[BatchRun], requests: Line, cached: Line) -> tuple[Goal, ...]:
    what = "requests/s"
    return (
        contest.goal_against(Variant.SEQUENTIAL.key, requests, what, 10),
        contest.goal_against(Variant.CACHE_OFF.key, requests, what, 5),
        contest.own_goal(cached, cached.what, 90),
        *contest.goals_against_llama_server(requests, what, plain=6, best=6),
    )


def asks(prompts: Prompts, size: Size, number: int) -> list[Ask]:
    """Return the requests of one round, the same for every server. No two rounds share a prefix."""
    shared = prompts.text(size.shared_tokens, "prefix", number)
    asked = questions(prompts, size.own_tokens, [size.output_tokens] * size.requests, "own", number)
    return [msgspec.structs.replace(ask, prompt=shared + ask.prompt) for ask in asked]
