"""*speculation*: drafts on against off, where answers quote and where they do not."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench import schemas
from bench.bench import Bench
from bench.prompts import RandomPrompts, random_tokens
from bench.prose import talks
from bench.results import Contest, Direction, Goal, Line, WorkloadResult, ratios
from bench.servers import Contestant, Room, ServerSpec, Variant, ours
from bench.traffic import BenchRequest
from bench.workloads.batches import BatchRun, clients_in_words, questions, run_batch

_ROOM = Room(pool_tokens=16384, request_tokens=1024)
_ANSWER_TOKENS = 320
_OFF = "drafts off"
_MEANING = (
    "a prompt to quote is a passage of random tokens three times and its beginning: language models go on "
    "with it, small or random ones begin to repeat themselves, which is a quotation too; how much was "
    "foretold the accepted tokens say"
)
_CONVERSATIONS = (
    "conversations are requests made of word lists, in the model's chat template; the model ends its answers "
    "itself, stories are sampled at temperature 0.8, the others greedy"
)
_PEOPLE = ("Anna", "Omar", "Chen", "Ines", "Pavel", "Ruth", "Kofi", "Leila", "Tomas", "Yuki")
_THINGS = ("lamp", "kettle", "backpack", "chair", "radio", "umbrella", "desk", "kite", "clock", "basket")
_PLACES = ("mill", "harbour", "market", "library", "station", "garden", "bridge", "museum", "bakery", "farm")
_PRAISED = ("the low price", "the warm colour", "the light weight", "the solid handle", "the quick delivery")
_BLAMED = ("the cable is too short", "the lid is loose", "it smells of glue", "it is hard to clean")

Runs = dict[str, BatchRun]


@dataclass(frozen=True)
class Task:
    what: str
    clients: int
    requests: Callable[[int, int], Sequence[BenchRequest]]
    """Requests of a round, of this many output tokens if nothing else ends them."""


def _quoting(clients: int, number: int, tokens: int) -> Iterator[BenchRequest]:
    """Yield greedy requests, long enough for an untrained model to repeat itself."""
    for i in range(clients):
        passage = random_tokens(60, "speculation", number, i)
        yield BenchRequest(prompt=passage * 3 + passage[:12], max_tokens=3 * tokens, seed=i, temperature=0.0)


def _filling_json(count: int, number: int, tokens: int) -> list[BenchRequest]:
    requests = questions(RandomPrompts(), 80, [7 * tokens] * count, "speculation json", number)
    return schemas.following(requests)


def _free(clients: int, number: int, tokens: int) -> list[BenchRequest]:
    return questions(RandomPrompts(), 80, [tokens] * clients, "speculation free", number)


def _talking(
    write: Callable[[random.Random], str], temperature: float, clients: int, number: int, tokens: int
) -> list[BenchRequest]:
    """Return requests of a user, in the model's chat template, others each round. A dozen output tokens of
    --quick stand for an answer."""
    texts = (
        write(random.Random(f"{write.__name__}/{number}/{i}")) for i in range(clients * max(2, tokens // 12))
    )
    return [
        BenchRequest(
            messages=({"role": "user", "content": text},),
            max_tokens=_ANSWER_TOKENS,
            seed=i,
            temperature=temperature,
        )
        for i, text in enumerate(texts)
    ]


def repeating(choose: random.Random) -> str:
    text = " ".join(
        f"{choose.choice(_PEOPLE)} carried the {choose.choice(_THINGS)} from the {choose.choice(_PLACES)} "
        f"to the {choose.choice(_PLACES)} at {choose.randint(1, 12)} o'clock."
        for _ in range(6)
    )
    return f"Repeat this text: {text}"


def extracting(choose: random.Random) -> str:
    good, better = choose.sample(_PRAISED, 2)
    review = (
        f"{choose.choice(_PEOPLE)} bought this {choose.choice(_THINGS)} for {choose.randint(5, 95)} dollars. "
        f"I like {good} and {better}. Sadly, {choose.choice(_BLAMED)}. {choose.randint(1, 5)} out of 5 stars."
    )
    return f"Extract the rating, pros, cons and summary from this review as JSON.\n\n{review}"


def telling(choose: random.Random) -> str:
    first, second = choose.sample(_PEOPLE, 2)
    about = f"a {choose.choice(_THINGS)} and a {choose.choice(_PLACES)}"
    return f"Write a short story about {about}. The names are {first} and {second}."


def _tasks(model: Path) -> Iterator[Task]:
    for clients in (1, 4, 16):
        name = f"random tokens, quoted, {clients_in_words(clients)}"
        yield Task(name, clients, lambda number, tokens, n=clients: list(_quoting(n, number, tokens)))
    for clients, count in ((1, 2), (8, 8)):
        yield Task(f"JSON by schema, {clients_in_words(clients)}", clients, partial(_filling_json, count))
    for clients in (1, 16):
        yield Task(f"random tokens, free, {clients_in_words(clients)}", clients, partial(_free, clients))
    kinds = (
        ("answers that quote", repeating, 0.0),
        ("JSON of what is told", extracting, 0.0),
        ("stories", telling, 0.8),
    )
    for what, write, temperature in kinds if talks(model) else ():
        for clients in (1, 8):
            requests = partial(_talking, write, temperature, clients)
            yield Task(f"{what}, {clients_in_words(clients)}", clients, requests)


def workload(bench: Bench) -> WorkloadResult:
    tokens = 24 if bench.is_quick else 128
    tasks = list(_tasks(bench.model))

    def measure(who: Contestant, number: int) -> Runs:
        with bench.start(who, _ROOM) as server:
            return {
                task.what: run_batch(server, task.requests(number, tokens), task.clients) for task in tasks
            }

    modes = {_OFF: ("--speculation", "off"), "drafts that quote": ("--speculation", "auto")}
    draft = bench.model.with_name(f"{bench.model.stem}-draft{bench.model.suffix}")
    if draft.is_file():
        modes["draft model too"] = ("--speculation", "auto", "--draft-model", str(draft))
    contestants = [
        Contestant(key=label, label=label, spec=partial(_spec, label, options), is_peer=False)
        for label, options in modes.items()
    ]
    contest = bench.contest(contestants, measure)
    lines = [line for task in tasks for line in _lines(contest, task.what)]
    return WorkloadResult(
        name="speculation",
        sizes=f"{len(tasks)} tasks; random tokens: answers of {tokens} tokens (quotations: {3 * tokens}; "
        "JSON: complete)",
        goals=tuple(goal for line in lines if line.unit == "tok/s" for goal in _goals(line, modes)),
        lines=tuple(lines),
        failures=contest.failures,
        notes=(_MEANING, _CONVERSATIONS) if talks(bench.model) else (_MEANING,),
    )


def _spec(label: str, options: tuple[str, ...], model: Path, room: Room) -> ServerSpec:
    return replace(ours(Variant.WHOLE, model, "--ctx-size", str(room.pool_tokens), *options), label=label)


def _lines(contest: Contest[Runs], task: str) -> Iterator[Line]:
    def drafted(run: BatchRun) -> int:
        return sum(trace.timings.draft_n for trace in run.traces)

    def accepted(run: BatchRun) -> float:
        return sum(trace.timings.draft_n_accepted for trace in run.traces) / max(drafted(run), 1)

    figures: tuple[tuple[str, str, Callable[[BatchRun], float]], ...] = (
        ("output", "tok/s", lambda run: run.output_tokens_per_s),
        ("drafted, of the output", "%", lambda run: 100 * drafted(run) / run.output_tokens),
        ("accepted, of the drafted", "%", lambda run: 100 * accepted(run)),
    )
    for what, unit, figure in figures:
        of_task = lambda runs, figure=figure: figure(runs[task])  # noqa: E731
        yield contest.line(f"{task}: {what}", unit, Direction.AT_LEAST, of_task)


def _goals(line: Line, modes: dict[str, tuple[str, ...]]) -> Iterator[Goal]:
    speeds = line.servers
    for label in modes.keys() - {_OFF}:
        gain = ratios(speeds[label], speeds[_OFF]) if {label, _OFF} <= speeds.keys() else None
        yield Goal.at_least(f"{line.what}, '{label}' against without", gain, 1.0, "x")
