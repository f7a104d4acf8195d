"""Workloads of the benchmark that were measured on a real server, and what is simulated of them."""

from __future__ import annotations

from typing import NamedTuple

from openai_cpu_server.contract.model_info import CostCurve
from simulation.figures import quantile
from simulation.fleet import Plan, simulate
from simulation.replica import Machine
from simulation.turns import Turn

_NARROW = CostCurve(
    step_ms=(
        (1, 45.3),
        (2, 53.0),
        (4, 53.2),
        (8, 68.8),
        (12, 85.0),
        (15, 120.3),
        (16, 144.3),
        (17, 151.7),
        (24, 193.0),
        (32, 195.4),
        (48, 241.1),
        (64, 298.7),
        (128, 550.5),
        (256, 1137.7),
    ),
    attended_ms=0.00125,
)
"""What the server of *chat* had measured for itself, an hour and a half before: 1b with a pool of 8,192."""


class Known(NamedTuple):
    workload: str
    what: str
    real: float
    simulated: float


def known(wide: CostCurve, seed: int) -> list[Known]:
    """`wide`: what the server of *long-prompt* had measured, with a pool of 16,384."""
    return [*_chat(seed), *_long_prompt(wide, seed)]


def _chat(seed: int) -> list[Known]:
    """24 requests by 16 clients, each of which asks again when it is answered."""
    turns = [
        Turn(at_s=0.0, session=str(number % 16), tokens=173, output=48, fresh=True) for number in range(24)
    ]
    outcome = simulate(Plan(Machine(_NARROW, kv_tokens=8192), 1, news_delay_s=0.0, seed=seed), turns)
    firsts = [one.first_s - one.arrived_s for one in outcome.requests if one.first_s is not None]
    return [
        Known("chat", "output, tokens/s", 43.9, 24 * 48 / outcome.seconds),
        Known("chat", "TTFT p50, s", 3.65, quantile(firsts, 0.5)),
        Known("chat", "TTFT p95, s", 11.8, quantile(firsts, 0.95)),
        Known("chat", "longest pause, s", 0.607, max(one.longest_pause_s for one in outcome.requests)),
    ]


def _long_prompt(curve: CostCurve, seed: int) -> list[Known]:
    """A prompt of 4,000 tokens beside eight streams."""
    streams = [Turn(at_s=0.0, session=str(number), tokens=50, output=700) for number in range(8)]
    long = Turn(at_s=8.0, session="long", tokens=4000, output=16)
    outcome = simulate(Plan(Machine(curve), 1, news_delay_s=0.0, seed=seed), [*streams, long])
    (asked,) = (one for one in outcome.requests if one.session == "long")
    assert asked.first_s is not None
    pauses = [one.longest_pause_s for one in outcome.requests if one is not asked]
    return [
        Known("long-prompt", "TTFT of the long prompt, s", 28.7, asked.first_s - asked.arrived_s),
        Known("long-prompt", "longest pause of the streams, s", 0.668, max(pauses)),
    ]
