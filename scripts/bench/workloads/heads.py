"""*heads*: a prediction head on and off, with known shares of right drafts, by the number of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench.bench import Bench
from bench.clients import LoadFailed
from bench.models import made_head_model
from bench.prompts import RandomPrompts
from bench.results import Contest, Direction, Goal, Line, WorkloadResult, ratios
from bench.servers import Contestant, Room, Server, ServerSpec, Variant
from bench.traffic import described
from bench.workloads.batches import BatchRun, clients_in_words, questions, run_batch

_TYPE = "q4_k_m"
_SHARES = (75, 0)
"""Percentages of tokens of which a head is right."""
_POOL_TOKENS = 16384
_PROMPT_TOKENS = 64
_LLAMA_SERVER = ("llama-server-best", "llama-server")
"""Peers with heads of their own, the better one first."""
_OWN_COPY, _PEERS_COPY = ("--huge-pages",), ("--load-mode", "none")
"""Systems that return idle pages (DAMON) would drop idle servers' mapped files."""


@dataclass(frozen=True)
class Point:
    """Clients with a request of this length each, and the goals' factors."""

    clients: int
    tokens: int
    right: float
    wrong: float
    llama_server: float


FULL = (
    Point(1, 192, 1.4, 0.97, 1.2),
    Point(2, 160, 1.3, 0.97, 1.5),
    Point(4, 128, 1.15, 0.97, 2.0),
    Point(8, 96, 0.98, 0.98, 2.0),
    Point(16, 64, 0.98, 0.98, 2.0),
)
QUICK = tuple(replace(point, tokens=2 * point.tokens) for point in FULL)
"""Steps of a small model are short."""
LARGE = tuple(replace(point, tokens=point.tokens // 2) for point in FULL)
"""Steps of a large model are long."""

Runs = dict[int, BatchRun]


def run(name: str, shape: str, points: Sequence[Point], bench: Bench) -> WorkloadResult:
    """Run all servers at once, idle but for one in turns, so that a machine that gets slower disturbs all
    alike."""
    if bench.is_quick:
        shape, points = "50m-head", QUICK
    models = {share: made_head_model(shape, _TYPE, share) for share in _SHARES}
    contest = Contest[Runs]({who: [] for who in _contestants(bench, models)})
    if not contest.runs:
        raise LoadFailed("none of the servers takes part in this")
    with ExitStack() as stack:
        servers = dict(_started(bench, contest, stack))
        for number in range(bench.rounds):
            for point in points:
                for who, server in list(servers.items()):
                    if number and who.key in bench.once:
                        continue
                    bench.say(f"round {number + 1}, {clients_in_words(point.clients)}: {who.label}")
                    try:
                        batch = _measured(server, point, number)
                    except Exception as error:
                        contest.failures[who.label] = described(error)
                        del servers[who], contest.runs[who]
                        continue
                    runs = contest.runs[who]
                    if len(runs) <= number:
                        runs.append({})
                    runs[number][point.clients] = batch
    lines = {
        point: _line(contest, point, "output", "tok/s", lambda batch: batch.output_tokens_per_s)
        for point in points
    }
    return WorkloadResult(
        name=name,
        sizes=f"{shape} in {_TYPE}, prompts of {_PROMPT_TOKENS} random tokens; clients and output tokens of "
        f"each: {', '.join(f'{point.clients}: {point.tokens}' for point in points)}",
        goals=tuple(_goals(contest, lines)),
        lines=(*lines.values(), *(line for point in points for line in _draft_lines(contest, point))),
        failures=contest.failures,
    )


def _contestants(bench: Bench, models: dict[int, Path]) -> Iterator[Contestant]:
    found = {who.key: who for who in bench.contestants(Variant.WHOLE)}
    if (ours := found.get(Variant.WHOLE.key)) is not None:
        yield _contestant(ours, "off", models[_SHARES[0]], (*_OWN_COPY, "--speculation", "off"))
        for share in _SHARES:
            yield _contestant(ours, _right(share), models[share], _OWN_COPY)
    peer = next((found[key] for key in _LLAMA_SERVER if key in found), None)
    if peer is not None:
        yield _contestant(peer, "llama-server, off", models[_SHARES[0]], _PEERS_COPY)
        for share in _SHARES:
            label, options = f"llama-server, {_right(share)}", (*_PEERS_COPY, "--spec-type", "draft-mtp")
            yield _contestant(peer, label, models[share], options)


def _right(share: int) -> str:
    return f"{share} % right"


def _contestant(who: Contestant, label: str, model: Path, options: tuple[str, ...]) -> Contestant:
    def spec(_: Path, room: Room) -> ServerSpec:
        return replace(who.spec(model, room).with_options(*options), label=label)

    return replace(who, label=label, spec=spec)


def _started(bench: Bench, contest: Contest[Runs], stack: ExitStack) -> Iterator[tuple[Contestant, Server]]:
    room = Room(pool_tokens=_POOL_TOKENS, request_tokens=_PROMPT_TOKENS + max(p.tokens for p in QUICK))
    for who in list(contest.runs):
        bench.say(f"starting: {who.label}")
        try:
            yield who, stack.enter_context(bench.start(who, room))
        except Exception as error:
            contest.failures[who.label] = described(error)
            del contest.runs[who]


def _measured(server: Server, point: Point, number: int) -> BatchRun:
    """Use other prompts for each number of clients and round, equal for all servers."""
    seed = ("heads", number, point.clients)
    requests = questions(RandomPrompts(), _PROMPT_TOKENS, [point.tokens] * point.clients, *seed)
    return run_batch(server, requests, point.clients)


def _drafted(batch: BatchRun) -> float:
    return 1000 * sum(trace.timings.draft_n for trace in batch.traces) / batch.output_tokens


def _accepted(batch: BatchRun) -> float:
    accepted = sum(trace.timings.draft_n_accepted for trace in batch.traces)
    return 100 * accepted / max(1, sum(trace.timings.draft_n for trace in batch.traces))


def _line(
    contest: Contest[Runs], point: Point, what: str, unit: str, figure: Callable[[BatchRun], float]
) -> Line:
    what = f"{what}, {clients_in_words(point.clients)}"
    return contest.line(what, unit, Direction.AT_LEAST, lambda runs: figure(runs[point.clients]))


def _draft_lines(contest: Contest[Runs], point: Point) -> tuple[Line, Line]:
    drafting = contest.those(lambda who: not who.label.endswith("off"))
    drafted = _line(drafting, point, "drafted", "of 1,000 tokens", _drafted)
    return drafted, _line(drafting, point, "accepted", "%", _accepted)


def _goals(contest: Contest[Runs], lines: dict[Point, Line]) -> Iterator[Goal]:
    """Yield goals by servers and numbers of clients."""
    right, wrong = map(_right, _SHARES)
    pairs: tuple[tuple[str, str, Callable[[Point], float]], ...] = (
        (right, "off", lambda point: point.right),
        (wrong, "off", lambda point: point.wrong),
        (right, f"llama-server, {right}", lambda point: point.llama_server),
    )
    for one, other, limit in pairs:
        for point, line in lines.items():
            speeds = line.servers
            found = ratios(speeds[one], speeds[other]) if {one, other} <= speeds.keys() else None
            if found is not None or other == "off":
                what = f"{clients_in_words(point.clients)}: '{one}' against '{other}'"
                yield Goal.at_least(what, found, limit(point), "x")
