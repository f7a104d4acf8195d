"""Plots of the measurements. matplotlib is an extra: `pip install 'openai-cpu-server[bench]'`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.contestants import Variant
from bench.failures import described
from bench.results import Curve, Distribution, Report, WorkloadResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS = Variant.WHOLE.label
_WIDTH, _HEIGHT = 10.0, 4.2
_DOTS = 110
_SHORTEST_S = 1e-3
"""Sooner tokens came in the same packet."""
_OUR_COLOUR = "#c1121f"
_COLOURS = ("#1d3557", "#2a9d8f", "#e9a820", "#7b2cbf", "#6c757d", "#0096c7", "#9c6644")
_STYLES = ("-", ":", "-.")


def is_possible() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


Panels = Sequence[Callable[["Axes"], None]]


class Drawn(NamedTuple):
    pictures: dict[str, list[str]]
    failures: dict[str, str]


def draw(report: Report, folder: Path) -> Drawn:
    strokes = strokes_of(report)
    drawn = Drawn({result.name: [] for result in report.results}, {})
    for result in report.results:
        for name, panels in _of_workload(result, strokes):
            try:
                _figure(folder / name, panels)
            except Exception as error:  # the figures are written already
                drawn.failures[name] = described(error)
            else:
                drawn.pictures[result.name].append(name)
    return drawn


def _of_workload(result: WorkloadResult, strokes: Strokes) -> Iterator[tuple[str, Panels]]:
    if result.curves:
        yield f"{result.name}.png", [lambda axes: _curves(axes, result, strokes)]
    if any(one.ttft_s for one in result.distributions):
        panels = [
            partial(_distribution, result, strokes, "time to first token, s", lambda one: one.ttft_s),
            partial(_distribution, result, strokes, "inter-token latency, s", lambda one: one.gaps_s),
        ]
        yield f"{result.name}-latency.png", panels


def _figure(path: Path, panels: Panels) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH, _HEIGHT), dpi=_DOTS, layout="constrained")
    FigureCanvasAgg(figure)
    for number, panel in enumerate(panels, 1):
        panel(figure.add_subplot(1, len(panels), number))
    figure.savefig(path)


def _curves(axes: Axes, result: WorkloadResult, strokes: Strokes) -> None:
    for curve in result.curves:
        stroke = strokes[curve.label]
        clients, medians, low, high = _points(curve)
        axes.plot(
            clients,
            medians,
            marker="o",
            label=curve.label,
            **stroke.looks,
        )
        axes.fill_between(clients, low, high, color=stroke.colour, alpha=0.15, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([k for k, _ in result.curves[0].points], [str(k) for k, _ in result.curves[0].points])
    axes.yaxis.set_major_formatter(_plain)
    axes.yaxis.set_minor_formatter(_plain)
    axes.set_xlabel("clients")
    axes.set_ylabel("requests per second")
    axes.grid(alpha=0.3, which="both")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize="small", frameon=False)


def _points(curve: Curve) -> tuple[list[int], list[float], list[float], list[float]]:
    rounds = [rounds for _, rounds in curve.points]
    return (
        [clients for clients, _ in curve.points],
        [each.median for each in rounds],
        [min(each.values) for each in rounds],
        [max(each.values) for each in rounds],
    )


def _distribution(
    result: WorkloadResult,
    strokes: Strokes,
    title: str,
    values: Callable[[Distribution], Sequence[float]],
    axes: Axes,
) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    shown = [one for one in result.distributions if values(one)]
    for one in shown:
        stroke = strokes[one.label]
        ordered = sorted(values(one))
        shares = [100 * (rank + 1) / len(ordered) for rank in range(len(ordered))]
        axes.step(
            ordered,
            shares,
            where="post",
            label=one.label,
            **stroke.looks,
        )
    axes.set_xscale("log")
    axes.set_xlim(left=_SHORTEST_S if min(map(min, map(values, shown))) < _SHORTEST_S else None)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(_plain)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 101)
    axes.set_xlabel(title)
    axes.set_ylabel("% of them at most")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize="x-small", frameon=False)


def _plain(value: float, _: object) -> str:
    digit = f"{value:e}"[0]
    return f"{value:g}" if digit in "125" else ""


class Stroke(NamedTuple):
    colour: str
    width: float = 1.3
    style: str = "-"

    @property
    def looks(self) -> dict[str, Any]:
        return {"color": self.colour, "linewidth": self.width, "linestyle": self.style}


Strokes = dict[str, Stroke]


def strokes_of(report: Report) -> Strokes:
    fixed = {_OURS: Stroke(_OUR_COLOUR, 2.2)}
    everybody = dict.fromkeys(
        one.label for result in report.results for one in (*result.curves, *result.distributions)
    )
    others = [label for label in everybody if label not in fixed]
    looks = itertools.cycle(Stroke(colour, style=style) for style in _STYLES for colour in _COLOURS)
    return dict(zip(others, looks, strict=False)) | fixed
