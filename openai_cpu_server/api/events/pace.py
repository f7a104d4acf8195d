"""Rates and latencies of the last seconds, taken from steps as they are told."""

from __future__ import annotations

from dataclasses import dataclass, field

from openai_cpu_server.api.events.objects import Latency, Quantiles, Rates
from openai_cpu_server.contract.request import Priority
from openai_cpu_server.observe.distribution import Distribution
from openai_cpu_server.observe.window import SlicedWindow

_SLICE_S = 2.0
_SLICES = 5


def _nothing() -> dict[Priority, Distribution]:
    return {priority: Distribution() for priority in Priority}


@dataclass
class _Slice:
    output: int = 0
    computed: int = 0
    ttft: dict[Priority, Distribution] = field(default_factory=_nothing)
    gaps: dict[Priority, Distribution] = field(default_factory=_nothing)


class Pace:
    """Bounded: the last ten seconds in slices."""

    def __init__(self, now_s: float) -> None:
        self._began_s = now_s
        self._slices = SlicedWindow(_Slice, slice_s=_SLICE_S, num_slices=_SLICES + 1)

    def computed(self, now_s: float, *, tokens: int, output: int) -> None:
        now = self._slices.at(now_s)
        now.computed += tokens
        now.output += output

    def first_token(self, now_s: float, priority: Priority, seconds: float) -> None:
        self._slices.at(now_s).ttft[priority].add(seconds)

    def tokens(self, now_s: float, priority: Priority, gap_s: float, count: int) -> None:
        """So many tokens have come after this time."""
        self._slices.at(now_s).gaps[priority].add(gap_s / count, count)

    def rates(self, now_s: float) -> Rates:
        """Those of the last whole slices."""
        number = self._slices.number(now_s)
        slices = self._slices.between(number - _SLICES, number)
        seconds = max(1e-3, min(_SLICES * _SLICE_S, number * _SLICE_S - self._began_s))
        return Rates(
            window_s=_SLICES * _SLICE_S,
            output_tokens_per_s=round(sum(one.output for one in slices) / seconds, 2),
            computed_tokens_per_s=round(sum(one.computed for one in slices) / seconds, 2),
            priorities={
                priority.label: Latency(
                    ttft_ms=_quantiles([one.ttft[priority] for one in slices]),
                    inter_token_ms=_quantiles([one.gaps[priority] for one in slices]),
                )
                for priority in Priority
            },
        )


def _quantiles(parts: list[Distribution]) -> Quantiles:
    whole = Distribution()
    for part in parts:
        whole.merge(part)
    return Quantiles(count=whole.num, p50=_ms(whole.quantile_s(0.5)), p95=_ms(whole.quantile_s(0.95)))


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)
