#!/usr/bin/env python3
"""Draw the losses of both models' runs.

scripts/demo_model/plot_loss.py --demo demo_run --draft draft_run --output model_assets/loss.png
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes

from demo_model.evaluation.run_log import Point, RunLog, read_run

_COLORS = {"demo": "tab:blue", "draft": "tab:orange"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="train.py's output folder")
    parser.add_argument("--draft", type=Path, help="the same of the draft model")
    parser.add_argument("--output", type=Path, required=True, help="a PNG file")
    options = parser.parse_args()
    runs = {name: read_run(run) for name, run in vars(options).items() if name in _COLORS and run}
    figure, axes = pyplot.subplots(figsize=(8.0, 4.2), layout="constrained")
    for name, run in runs.items():
        _draw(axes, name, run)
    axes.set(xlabel="training tokens, millions", ylabel="loss, nats per token", yscale="log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.grid(which="both", alpha=0.3)
    axes.legend()
    figure.savefig(options.output, dpi=100)
    print(f"{options.output}: {options.output.stat().st_size / 1e3:.0f} kB", file=sys.stderr)


def _draw(axes: Axes, name: str, run: RunLog) -> None:
    """Training's loss counts prompts too, at a small weight; the held-out one only what is to be written."""
    color = _COLORS[name]
    axes.plot(*_curve(run.steps), color=color, linewidth=0.8, alpha=0.7, label=f"{name}, training")
    axes.plot(*_curve(run.trials), color=color, marker="o", markersize=3, label=f"{name}, held out")


def _curve(points: list[Point]) -> tuple[list[float], list[float]]:
    return [point.tokens / 1e6 for point in points], [point.loss for point in points]


if __name__ == "__main__":
    main()
