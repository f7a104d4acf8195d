"""*streams*: the scheduler's options and constants as users see them, simulated: a table in Markdown.

    .venv/bin/python scripts/regress.py streams stream_rate=4 stall_ms=400
    .venv/bin/python scripts/regress.py streams cost_model._RATE_ALL=0.01

NAME is a numeric option of `Scheduling`, or a constant of a module of `scheduler`. The real scheduler gets
these loads in virtual time, so figures are the same on every machine:

chat     32 x 250 + 48 tokens at once in 16 slots
arrivals 48 of the same, one each 0.7 s
quotes   16 x 250 + 96 in 2 slots, most of the output stands in the prompt
mixed    16 x 400 + 100 batch in 12 slots, an interactive 100 + 24 every 1.5 s, which is measured
long     4,000 tokens beside 8 streams: its first token, and the streams

Costs are those of docs/measurements.md ("Kernels of our own"), with our kernels and without. ggml's attention
also pays for cells of others, at prices fitted to those steps by hand: fewer than 64 rows look at the mask of
every cell of the pool, more attend to all cells of the step's sequences. The scheduler knows one price only.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
from simulation.fleet import Live, Machine, SimReplica
from simulation.stories import quantile

from openai_cpu_server.contract.messages import BY_DEFAULT, EngineOptions, Scheduling
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Span, Step
from openai_cpu_server.scheduler.cost_model import CostModel

_SLOWNESS, _NOISE = 1.2, 0.1
"""Real step times as multiples of the scheduler's curve, and their noise, so that all that it learns
matters."""
_WINDOW = 12
_TILE_ROWS = 64
_OURS = ((1, 21), (4, 24), (8, 34), (16, 46), (32, 81), (64, 159), (128, 254), (256, 455))
_GGMLS = ((1, 27), (4, 78), (8, 120), (16, 122), (17, 140), (32, 168), (64, 282), (128, 460), (256, 820))


def _our_attention_ms(step: Step, num_rows: int, pool_cells: int) -> float:
    """A pair of a decode costs more, because its cells are unpacked for one row."""
    return sum((0.0021 if span.num_tokens == 1 else 0.0004) * _pairs(span) for span in step.spans)


def _ggmls_attention_ms(step: Step, num_rows: int, pool_cells: int) -> float:
    if num_rows < _TILE_ROWS:
        return 1e-4 * num_rows * pool_cells + 0.0055 * sum(map(_pairs, step.spans))
    return 0.0008 * num_rows * sum(span.start + span.num_tokens for span in step.spans)


def _pairs(span: Span) -> int:
    return attended_pairs(span.start, span.num_tokens)


_COSTS: dict[str, tuple[CostCurve, Callable[[Step, int, int], float]]] = {
    "kernels": (CostCurve(step_ms=_OURS, attended_ms=0.0004), _our_attention_ms),
    "ggml": (CostCurve(step_ms=_GGMLS, attended_ms=0.0055), _ggmls_attention_ms),
}
"""Scheduler's curve, and the real time of attention by step, rows and cells in the pool."""


def _step_ms(
    curve: CostCurve, attention_ms: Callable[[Step, int, int], float], step: Step, pool_cells: int
) -> float:
    num_rows = step.num_tokens + step.padding
    if not num_rows:
        return 0.0
    return CostModel(curve).predict_ms(num_rows) + attention_ms(step, num_rows, pool_cells)


@dataclass
class Client:
    live: Live
    token_times: list[float] = field(default_factory=list)

    @property
    def ttft_ms(self) -> float:
        return 1000 * (self.token_times[0] - self.live.arrived_s)

    @property
    def worst_gap_ms(self) -> float:
        return 1000 * max((b - a for a, b in itertools.pairwise(self.token_times)), default=0.0)

    @property
    def slowest_rate(self) -> float:
        times = self.token_times
        return _WINDOW / max(b - a for a, b in zip(times, times[_WINDOW:], strict=False))


@dataclass(frozen=True)
class Load:
    slots: int
    streams: list[Client]
    newcomers: list[Client]
    others: list[Client] = field(default_factory=list)

    def serve(self, options: EngineOptions, curve: CostCurve, step_ms: Callable[[Step, int], float]) -> float:
        """Return the tokens per second. `step_ms` gets a step, and the cells in the pool."""
        everybody = sorted([*self.others, *self.streams], key=lambda one: one.live.arrived_s)
        arriving, now_s = list(everybody), 0.0
        machine = Machine(
            curve,
            lambda step, cells: _SLOWNESS * step_ms(step, cells),
            has_drafts=True,
            num_slots=self.slots,
            cache_blocks=4_096,
            noise=_NOISE,
            stride=1,
        )
        replica = SimReplica("one", machine, options, seed=7)
        while replica.has_work or arriving:
            if not replica.has_work:
                now_s = max(now_s, arriving[0].live.arrived_s)
            while arriving and arriving[0].live.arrived_s <= now_s:
                replica.submit(arriving.pop(0).live, now_s)
            now_s = replica.begin_step(now_s)
            replica.end_step(now_s)
            for one in everybody:
                one.token_times += [now_s] * (len(one.live.output) - len(one.token_times))
        return sum(len(one.token_times) for one in everybody) / now_s


def loads() -> dict[str, Load]:
    chat = [_client(f"c{n}", 250, 48, seed=n) for n in range(32)]
    arrivals = [_client(f"c{n}", 250, 48, seed=n, arrives_ms=700 * n) for n in range(48)]
    quotes = [_client(f"q{n}", 250, 96, seed=n, quoted=0.7) for n in range(16)]
    batch = [_client(f"b{n}", 400, 100, seed=n, priority=Priority.BATCH) for n in range(16)]
    people = [_client(f"i{n}", 100, 24, seed=90 + n, arrives_ms=1500 * (n + 1)) for n in range(20)]
    streams = [_client(f"s{n}", 50, 300, seed=n) for n in range(8)]
    long = _client("long", 4000, 16, seed=99, arrives_ms=5000)
    return {
        "chat": Load(16, chat, chat),
        "arrivals": Load(16, arrivals, arrivals),
        "quotes": Load(2, quotes, quotes),
        "mixed": Load(12, people, people, batch),
        "long": Load(16, streams, [long], [long]),
    }


def _client(
    name: str,
    prompt: int,
    output: int,
    *,
    seed: int,
    quoted: float = 0.0,
    priority: Priority = Priority.INTERACTIVE,
    arrives_ms: float = 0.0,
) -> Client:
    choice = random.Random(seed)
    tokens = [choice.randrange(10, 30_000) for _ in range(prompt)]
    text: list[int] = []
    while len(text) < output:
        at = choice.randrange(prompt - 12)
        is_quote = choice.random() < quoted
        text += tokens[at : at + 12] if is_quote else [choice.randrange(10, 30_000) for _ in range(12)]
    request = GenerationRequest(
        id=name, tokens=tuple(tokens), max_tokens=output, sampling=Sampling(seed=1), priority=priority
    )
    return Client(Live(request, tuple(text[:output]), arrives_ms / 1000, name))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("values", nargs="*", type=_assignment, metavar="NAME=VALUE")


def _assignment(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    module, _, constant = name.rpartition(".")
    if name in Scheduling.__struct_fields__:
        return name, float(value)
    if module and hasattr(importlib.import_module(f"openai_cpu_server.scheduler.{module}"), constant):
        return name, float(value)
    raise argparse.ArgumentTypeError(f"engines have no such option: {name}")


def run(options: argparse.Namespace) -> None:
    scheduling = BY_DEFAULT
    for name, value in options.values:
        module, _, constant = name.rpartition(".")
        if module:
            scheduler = importlib.import_module(f"openai_cpu_server.scheduler.{module}")
            setattr(scheduler, constant, type(getattr(scheduler, constant))(value))
        else:
            scheduling = msgspec.structs.replace(scheduling, **{name: value})
    engine = EngineOptions(model_path="", scheduling=scheduling)
    print("| | slowest stream, tokens/s | worst stall, ms | first token p50, p95, ms | tokens/s of all |")
    print("| --- | --- | --- | --- | --- |")
    for kernels, (curve, attention_ms) in _COSTS.items():
        step_ms = functools.partial(_step_ms, curve, attention_ms)
        for name, load in loads().items():
            rate = load.serve(engine, curve, step_ms)
            slowest = min(one.slowest_rate for one in load.streams)
            stall_ms = max(one.worst_gap_ms for one in load.streams)
            first = ", ".join(
                f"{quantile([one.ttft_ms for one in load.newcomers], share):,.0f}" for share in (0.5, 0.95)
            )
            print(
                f"| {name}, {kernels} | {slowest:.1f} | {stall_ms:.0f} | {first} | {rate:.1f} |", flush=True
            )
