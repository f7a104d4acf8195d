"""*sensitivity*: effect of the scheduler's tuned constants: simulated loads with each smaller and larger.

Steps take the times of a cost curve from a real machine with our kernels. Columns, of the loads in
`regressions/simulated.py`: tokens/s and the longest stall of chat, tokens/s of quotes, p95 of mixed's first
tokens and its tokens/s, long's first token and the longest stall of its streams.
"""

from __future__ import annotations

import argparse
import importlib
import math
from collections.abc import Iterator
from contextlib import contextmanager

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import attended_pairs
from openai_cpu_server.contract.step import Step
from openai_cpu_server.scheduler.cost_model import CostModel
from regressions.simulated import loads

_VARIANTS: dict[str, tuple[float, ...]] = {
    "cost_model._WORTH_PADDING": (0.9, 1.0),
    "cost_model._HARDLY_LONGER": (1.0, 1.3),
    "cost_model._RATE_ALL": (0.01, 0.2),
    "cost_model._RATE_TERM": (0.02, 0.4),
    "cost_model._LARGEST_ERROR": (math.log(1.1), math.log(4.0)),
    "memory.HEADROOM_TOKENS": (0, 128),
    "speculation.drafts._FORGET_ALL": (0.98, 0.9999),
    "speculation.drafts._FORGET_OWN": (0.85, 0.99),
    "speculation.drafts._FADE": (0.99, 1.0),
    "speculation.drafts._PRIOR_WEIGHT": (2.0, 32.0),
    "speculation.drafts._LEAN": (1.0, 16.0),
    "speculation.speculator._WORTH": (0.85, 1.0),
    "speculation.speculator._LEAST_CHANCE": (0.005, 0.1),
    "speculation.speculator._FORGET": (0.9, 0.995),
    "speculation.speculator._TRIAL": (8, 128),
    "speculation.speculator._ENOUGH": (2, 32),
    "speculation.speculator._FURTHEST": (1.5, 10.0),
    "speculation.speculator._PAUSE_MS": (2_000.0, 50_000.0),
    "speculation.drafts._MAX_PLACES": (1, 16),
    "speculation.drafts.MIN_MATCH": (1, 4),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="constants such as cost_model._RATE_ALL; default: all")


def run(asked: argparse.Namespace) -> None:
    heads = ("chat tok/s", "gap", "quotes tok/s", "mixed TTFT", "tok/s", "long TTFT", "gap")
    print(f"{'constant':42}{'value':>10}" + "".join(f"{head:>14}" for head in heads))
    _print("as it is", "", _measure())
    for name in asked.names or _VARIANTS:
        for value in _VARIANTS[name]:
            with _changed(name, value):
                _print(name, f"{value:g}", _measure())


def _print(name: str, value: str, figures: tuple[float, ...]) -> None:
    print(f"{name:42}{value:>10}" + "".join(f"{figure:14.1f}" for figure in figures), flush=True)


@contextmanager
def _changed(name: str, value: float) -> Iterator[None]:
    module_name, _, constant = name.rpartition(".")
    module = importlib.import_module(f"openai_cpu_server.scheduler.{module_name}")
    before = getattr(module, constant)
    setattr(module, constant, value)
    try:
        yield
    finally:
        setattr(module, constant, before)


def _measure() -> tuple[float, ...]:
    truth = CostModel.guess()

    def step_ms(step: Step, pool_cells: int) -> float:
        attended = sum(attended_pairs(span.start, span.num_tokens) for span in step.spans)
        return truth.predict_ms(step.num_tokens + step.padding, attended)

    all_of_it = loads()
    options = EngineOptions(model_path="")
    rates = {
        name: all_of_it[name].serve(options=options, told=truth.curve, step_ms=step_ms)
        for name in ("chat", "quotes", "mixed", "long")
    }
    return (
        rates["chat"],
        all_of_it["chat"].stall_ms,
        rates["quotes"],
        all_of_it["mixed"].ttft_ms(0.95),
        rates["mixed"],
        all_of_it["long"].ttft_ms(0.5),
        all_of_it["long"].stall_ms,
    )
