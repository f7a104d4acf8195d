"""*streams*: the scheduler's options as users see them, simulated: a table in Markdown, of the loads in
`regressions/simulated.py`, with our kernels and without.

    .venv/bin/python scripts/regress.py streams stream_rate=4 stall_ms=400

NAME is a numeric option of `Scheduling`. Costs are those of docs/measurements.md ("Kernels of our own").
ggml's attention also pays for cells of others, at prices fitted to those steps by hand: fewer than 64 rows
look at the mask of every cell of the pool, more attend to all cells of the step's sequences. The scheduler
knows one price only.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.scheduling import BY_DEFAULT, Scheduling
from openai_cpu_server.contract.step import Span, Step
from openai_cpu_server.scheduler.cost_model import CostModel
from regressions.simulated import Client, Load, loads

_WINDOW = 12
_TILE_ROWS = 64


@dataclass(frozen=True)
class Truth:
    """Real cost of steps; `told` is the scheduler's curve."""

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
        """A pair of a decode is dearer, because its cells are unpacked for one row."""
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


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("given", nargs="*", type=_assignment, metavar="NAME=VALUE")


def run(asked: argparse.Namespace) -> None:
    given: dict[str, float] = dict(asked.given)
    options = EngineOptions(model_path="", scheduling=msgspec.structs.replace(BY_DEFAULT, **given))
    print("| | slowest stream, tokens/s | worst stall, ms | first token p50, p95, ms | tokens/s of all |")
    print("| --- | --- | --- | --- | --- |")
    for truth in _TRUTHS:
        for name, load in loads().items():
            if name != "quotes":
                print(f"| {name}, {truth.name} | {_figures(truth, load, options)} |", flush=True)


def _assignment(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in Scheduling.__struct_fields__:
        raise argparse.ArgumentTypeError(f"engines have no such option: {name}")
    return name, float(value)


def _figures(truth: Truth, load: Load, options: EngineOptions) -> str:
    rate = load.serve(options=options, told=truth.told, step_ms=truth.step_ms)
    slowest = min(map(_slowest_rate, load.streams))
    first = f"{load.ttft_ms(0.5):,.0f}, {load.ttft_ms(0.95):,.0f}"
    return f"{slowest:.1f} | {load.stall_ms:.0f} | {first} | {rate:.1f}"


def _slowest_rate(stream: Client) -> float:
    times = stream.token_times
    return _WINDOW / max(b - a for a, b in zip(times, times[_WINDOW:], strict=False))
