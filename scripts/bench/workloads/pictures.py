"""*pictures*, *sound*: media are encoded beside streams and short questions. The encoder has random weights,
because its time depends only on the shape."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from itertools import pairwise

from bench.bench import Bench
from bench.clients import LoadFailed
from bench.media import picture_part, sound_part
from bench.models import made_projector
from bench.results import Contest, Direction, Goal, Line, Rounds, WorkloadResult, percentile
from bench.servers import Contestant, Room, Server, ServerSpec, Variant
from bench.traffic import BenchRequest, Trace, first_token_times
from openai_cpu_server.llama.model.vocabulary import Vocabulary

_POOL_TOKENS = 8192
_BEHIND_S = 2.0


@dataclass(frozen=True)
class Size:
    encoder: str
    """Value for `make_projector.py --shape`."""
    output_tokens: int
    kind: str = "gemma3"
    """Value for `make_projector.py --kind`."""
    before_s: float = 12.0
    every_s: float = 1.0
    """Interval of questions by the clock, because a stalled server must not get fewer."""
    pixels: int = 1024
    sound_s: float = 0.0
    streams: int = 8
    prompt_tokens: int = 100
    question_tokens: int = 40
    idle_questions: int = 7

    @property
    def room(self) -> Room:
        return Room(pool_tokens=_POOL_TOKENS, request_tokens=self.prompt_tokens + self.output_tokens)

    @property
    def what(self) -> str:
        return "sound" if self.sound_s else "picture"

    @property
    def words(self) -> str:
        return (
            f"a sound of {self.sound_s} s" if self.sound_s else f"a picture of {self.pixels} x {self.pixels}"
        )


FULL = Size(encoder="siglip-base", output_tokens=400)
LARGE = Size(encoder="siglip-so400m", output_tokens=800)
SOUND = Size(encoder="whisper-large", kind="ultravox", output_tokens=800, sound_s=29.9)
"""Whisper's 30 s would make a second part of silence."""
QUICK = Size(
    encoder="tiny", output_tokens=800, before_s=0.3, every_s=0.02, pixels=128, streams=2, idle_questions=3
)
QUICK_SOUND = replace(QUICK, kind="ultravox", sound_s=1.0)


@dataclass(frozen=True)
class PicturesRun:
    size: Size
    idle: list[Trace]
    streams: list[Trace]
    beside: list[Trace]
    about: Trace
    again: Trace

    @property
    def gap_before_s(self) -> float:
        begin = self.about.arrival
        return self._worst_gap_s(begin - self.size.before_s / 2, begin, is_within=True)

    @property
    def gap_meanwhile_s(self) -> float:
        begin = self.about.arrival
        return self._worst_gap_s(begin, begin + first_s(self.about))

    def _worst_gap_s(self, begin: float, end: float, *, is_within: bool = False) -> float:
        """Count gaps that touch this time, or end in it."""
        times = (pair for trace in self.streams for pair in pairwise(trace.chunk_times))
        gaps = [
            late - early for early, late in times if late > begin and (late if is_within else early) < end
        ]
        if not gaps:
            raise LoadFailed("no stream ran meanwhile")
        return max(gaps)

    @property
    def idle_p50_s(self) -> float:
        return percentile(first_token_times(self.idle), 50)

    def beside_s(self, percent: float) -> float:
        return percentile(first_token_times(self.beside), percent)

    @property
    def cached_percent(self) -> float:
        usage = self.again.usage
        return 100 * usage.cached_tokens / usage.prompt_tokens if usage else 0.0


def run(name: str, size: Size, quick: Size, bench: Bench) -> WorkloadResult:
    size = quick if bench.is_quick else size
    projector = made_projector(size.kind, size.encoder, bench.model)
    vocabulary = Vocabulary.open(bench.model)

    def seeing(spec: ServerSpec) -> ServerSpec:
        """Send no token ids, which llama-server rejects with a projector."""
        dialect = replace(spec.dialect, as_text=lambda tokens: vocabulary.decode(list(tokens)))
        return replace(spec.with_options("--mmproj", str(projector)), dialect=dialect)

    def measure(who: Contestant, number: int) -> PicturesRun:
        with bench.start(who, size.room, changed=seeing) as server:
            return asyncio.run(_measured(bench, size, server, number))

    contestants = [who for who in bench.contestants(Variant.WHOLE) if who.takes_pictures]
    contest = bench.contest(contestants, measure)
    lines = _lines(contest, size.what)
    return WorkloadResult(
        name=name,
        sizes=f"{size.words} for {size.encoder} while {size.streams} streams run and questions of "
        f"{size.question_tokens} tokens come",
        goals=contest.of_ours("goals", _goals),
        lines=lines,
        failures=contest.failures,
    )


def _lines(contest: Contest[PicturesRun], what: str) -> tuple[Line, ...]:
    at_most, at_least = Direction.AT_MOST, Direction.AT_LEAST
    line = contest.line
    return (
        line("streams: worst gap before", "s", at_most, lambda run: run.gap_before_s),
        line("streams: worst gap meanwhile", "s", at_most, lambda run: run.gap_meanwhile_s),
        line("question: TTFT p50, idle", "s", at_most, lambda run: run.idle_p50_s),
        line("question: TTFT p50, meanwhile", "s", at_most, lambda run: run.beside_s(50)),
        line("question: TTFT worst, meanwhile", "s", at_most, lambda run: run.beside_s(100)),
        line(f"{what}: TTFT", "s", at_most, lambda run: first_s(run.about)),
        line(f"{what}: TTFT again", "s", at_most, lambda run: first_s(run.again)),
        line(f"{what}: cached again", "%", at_least, lambda run: run.cached_percent),
    )


def _goals(runs: list[PicturesRun]) -> tuple[Goal, ...]:
    gaps = Rounds.of(runs, lambda run: run.gap_meanwhile_s)
    slower = Rounds.of(runs, lambda run: run.beside_s(50) / run.idle_p50_s)
    cached = Rounds.of(runs, lambda run: run.cached_percent)
    return (
        Goal.at_most("streams: worst gap meanwhile", gaps, 0.8, "s"),
        Goal.at_most("question: TTFT p50 meanwhile, against the idle server's", slower, 2.0, "x"),
        Goal.at_least(f"{runs[0].size.what}: cached again", cached, 95, "%"),
    )


async def _measured(bench: Bench, size: Size, server: Server, number: int) -> PicturesRun:
    clients = server.clients()

    def question(*seed: object) -> BenchRequest:
        return BenchRequest(prompt=bench.prompts.question(size.question_tokens, *seed, number), max_tokens=2)

    idle = [await clients.send(question("idle", at)) for at in range(size.idle_questions)]
    requests = [
        BenchRequest(
            prompt=bench.prompts.question(size.prompt_tokens, "stream", at, number),
            max_tokens=size.output_tokens,
            seed=at,
        )
        for at in range(size.streams)
    ]
    streams = server.clients()
    running = [asyncio.create_task(streams.send(request)) for request in requests]
    await asyncio.sleep(size.before_s)
    part = sound_part(size.sound_s, number) if size.sound_s else picture_part(size.pixels, number)
    content = [part, {"type": "text", "text": "What is it?"}]
    about = BenchRequest(messages=({"role": "user", "content": content},), max_tokens=8, temperature=0)
    looking = asyncio.create_task(clients.send(about))
    beside = list[asyncio.Task[Trace]]()
    while not (await asyncio.wait([looking], timeout=size.every_s))[0]:
        beside.append(asyncio.create_task(clients.send(question("beside", len(beside)))))
    about_it = await looking
    await asyncio.sleep(_BEHIND_S)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    again = await clients.send(about)
    clients.check()
    return PicturesRun(size, idle, streams.traces, [await one for one in beside], about_it, again)


def first_s(trace: Trace) -> float:
    """Return the TTFT. Raises LoadFailed."""
    if trace.ttft_s is None:
        raise LoadFailed(trace.error or "an answer without text")
    return trace.ttft_s
