#!/usr/bin/env python3
"""What users feel of the scheduler, simulated: a table in Markdown.

    .venv/bin/python scripts/stream_feel.py stream_rate=4 stall_ms=400

NAME is a numeric option of `Scheduling`. Each workload is run with our kernels and without.

    chat     32 x 250 + 48 tokens at once in 16 slots
    arrivals 48 of the same, one each 0.7 s
    mixed    16 x 400 + 100 batch in 12 slots, an interactive 100 + 24 every 1.5 s: what these feel
    long     4,000 tokens beside 8 streams: its first token, what the streams feel

Steps take 1.2 times what the scheduler is told, with noise. Costs are those of docs/measurements.md ("Kernels
of our own"). ggml's attention also pays for cells of others, at prices fitted to those steps by hand:
fewer than 64 rows look at the mask of every cell of the pool, more attend to all cells of the step's
sequences. The scheduler knows one price only.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from sensitivity import Client, client, serve

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.contract.scheduling import BY_DEFAULT, Scheduling
from openai_cpu_server.contract.step import Span, Step
from openai_cpu_server.scheduler.cost_model import CostModel

_WINDOW = 12
"""Tokens over which a stream's rate is taken."""
_TILE_ROWS = 64
"""From so many rows on, ggml's attention works in tiles."""


@dataclass(frozen=True)
class Truth:
    """What steps take; `told` is what the scheduler goes by."""

    name: str
    told: CostCurve

    def step_ms(self, step: Step, pool_cells: int) -> float:
        num_rows = step.num_tokens + step.padding
        if not num_rows:
            return 0.0
        return CostModel(self.told).predict_ms(num_rows) + self._attention_ms(step, num_rows, pool_cells)

    def _attention_ms(self, step: Step, num_rows: int, pool_cells: int) -> float:
        raise NotImplementedError


class Kernels(Truth):
    def _attention_ms(self, step: Step, num_rows: int, pool_cells: int) -> float:
        """A pair of a decode is dearer: its cells are unpacked for one row."""
        return sum((0.0021 if span.num_tokens == 1 else 0.0004) * _pairs(span) for span in step.spans)


class Ggml(Truth):
    def _attention_ms(self, step: Step, num_rows: int, pool_cells: int) -> float:
        if num_rows < _TILE_ROWS:
            return 1e-4 * num_rows * pool_cells + 0.0055 * sum(map(_pairs, step.spans))
        return 0.0008 * num_rows * sum(span.start + span.num_tokens for span in step.spans)


def _pairs(span: Span) -> int:
    return attended_pairs(span.start, span.num_tokens)


_OURS = ((1, 21), (4, 24), (8, 34), (16, 46), (32, 81), (64, 159), (128, 254), (256, 455))
_GGMLS = ((1, 27), (4, 78), (8, 120), (16, 122), (17, 140), (32, 168), (64, 282), (128, 460), (256, 820))
_TRUTHS = (
    Kernels("kernels", CostCurve(step_ms=_OURS, attended_ms=0.0004)),
    Ggml("ggml", CostCurve(step_ms=_GGMLS, attended_ms=0.0055)),
)


@dataclass(frozen=True)
class Load:
    name: str
    slots: int
    streams: list[Client]
    newcomers: list[Client]
    """Whose first tokens count."""
    others: list[Client]


def loads() -> list[Load]:
    chat = [client(f"c{n}", 250, 48, seed=n) for n in range(32)]
    arrivals = [client(f"c{n}", 250, 48, seed=n, arrives_ms=700 * n) for n in range(48)]
    batch = [client(f"b{n}", 400, 100, seed=n, priority=Priority.BATCH) for n in range(16)]
    people = [client(f"i{n}", 100, 24, seed=90 + n, arrives_ms=1500 * (n + 1)) for n in range(20)]
    streams = [client(f"s{n}", 50, 300, seed=n) for n in range(8)]
    long = client("long", 4000, 16, seed=99, arrives_ms=5000)
    return [
        Load("chat", 16, chat, chat, []),
        Load("arrivals", 16, arrivals, arrivals, []),
        Load("mixed", 12, people, people, batch),
        Load("long", 16, streams, [long], [long]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("given", nargs="*", type=_assignment, metavar="NAME=VALUE")
    given: dict[str, float] = dict(parser.parse_args().given)
    options = EngineOptions(model_path="", scheduling=msgspec.structs.replace(BY_DEFAULT, **given))
    print("| | slowest stream, tokens/s | worst stall, ms | first token p50, p95, ms | tokens/s of all |")
    print("| --- | --- | --- | --- | --- |")
    for truth in _TRUTHS:
        for load in loads():
            print(_row(truth, load, options), flush=True)


def _assignment(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in Scheduling.__struct_fields__:
        raise argparse.ArgumentTypeError(f"engines have no such option: {name}")
    return name, float(value)


def _row(truth: Truth, load: Load, options: EngineOptions) -> str:
    everybody = load.streams + load.others
    noise = random.Random(7)
    total_ms = serve(
        everybody,
        slots=load.slots,
        options=options,
        told=truth.told,
        true_ms=lambda step, cells: truth.step_ms(step, cells) * 1.2 * math.exp(noise.gauss(0, 0.1)),
    )
    ttfts = sorted(one.ttft_ms for one in load.newcomers)
    p50, p95 = (ttfts[int(share * len(ttfts))] for share in (0.5, 0.95))
    tokens = sum(len(one.token_times) for one in everybody)
    slowest = min(map(_slowest_rate, load.streams))
    stall = max(one.worst_gap_ms for one in load.streams)
    figures = f"{slowest:.1f} | {stall:.0f} | {p50:,.0f}, {p95:,.0f} | {1000 * tokens / total_ms:.1f}"
    return f"| {load.name}, {truth.name} | {figures} |"


def _slowest_rate(stream: Client) -> float:
    """Tokens per second over the slowest run of `_WINDOW` tokens, drafts included."""
    times = stream.token_times
    longest_ms = max(b - a for a, b in zip(times, times[_WINDOW:], strict=False))
    assert all(a <= b for a, b in pairwise(times))
    return 1000 * _WINDOW / longest_ms


if __name__ == "__main__":
    main()
