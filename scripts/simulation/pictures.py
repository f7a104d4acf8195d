"""Plots of simulations. matplotlib is an extra: `pip install 'openai-cpu-server[bench]'`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from simulation.figures import Figures
from simulation.routing import ROUTINGS
from simulation.stories import DayFigures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = dict(zip(ROUTINGS, ("#6c757d", "#1d3557", "#c1121f"), strict=True))
_SIZE = (10.0, 4.2)


def is_possible() -> bool:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def sizes_picture(rows: Sequence[Figures], path: Path) -> None:
    """First tokens and hit rates, by the number of replicas."""

    def first(axes: Axes) -> None:
        _lines(axes, rows, lambda row: row.ttft_p95_s)
        axes.set_ylabel("time to first token, p95, s")
        axes.set_ylim(bottom=0)
        axes.legend()

    def second(axes: Axes) -> None:
        _lines(axes, rows, lambda row: row.hit_rate)
        axes.set_ylabel("prefix hit rate")
        axes.set_ylim(0, 1)

    def third(axes: Axes) -> None:
        _lines(axes, rows, lambda row: row.choosing_p50_us)
        axes.set_ylabel("a choice, p50, µs (real)")
        axes.set_ylim(bottom=0)

    _draw(path, [first, second, third])


def day_picture(day: DayFigures, path: Path) -> None:
    """The load, the replicas and the waits of a day."""

    def first(axes: Axes) -> None:
        axes.plot([at / 60 for at, _ in day.asked], [rate for _, rate in day.asked], color="#1d3557")
        axes.set_ylabel("interactive requests / s")
        axes.set_xlabel("minutes")

    def second(axes: Axes) -> None:
        times = [at / 60 for at, _, _ in day.sizes]
        axes.step(times, [wanted for _, _, wanted in day.sizes], color="#e9a820", label="wanted")
        axes.step(times, [serving for _, serving, _ in day.sizes], color="#c1121f", label="serving")
        axes.set_ylabel("replicas")
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)
        axes.legend()

    def third(axes: Axes) -> None:
        axes.plot([at / 60 for at, _ in day.waits], [wait for _, wait in day.waits], color="#2a9d8f")
        axes.set_ylabel("time to first token, p95, s")
        axes.set_xlabel("minutes")
        axes.set_ylim(bottom=0)

    _draw(path, [first, second, third])


def _lines(axes: Axes, rows: Sequence[Figures], figure: Callable[[Figures], float]) -> None:
    for name in ROUTINGS:
        mine = [row for row in rows if row.name == name]
        counts, values = [row.num_replicas for row in mine], [figure(row) for row in mine]
        axes.plot(counts, values, marker="o", color=_COLOURS[name], label=name)
    axes.set_xscale("log")
    axes.set_xlabel("replicas")


def _draw(path: Path, panels: Sequence[Callable[[Axes], None]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, dpi=110, layout="constrained")
    for number, panel in enumerate(panels, 1):
        axes = figure.add_subplot(1, len(panels), number)
        panel(axes)
        axes.grid(alpha=0.3)
    figure.savefig(path)
