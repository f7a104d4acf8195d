"""The model card: `card.md` with the figures filled in."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TypeVar

import numpy as np
from rich.console import Console

from demo_model.evaluation.rows import Row, table, title
from demo_model.evaluation.run_log import RunLog, read_run
from demo_model.shapes import SHAPES, Shape

_TEMPLATE = Path(__file__).resolve().parents[1] / "card.md"
_WIDTH = 100

T = TypeVar("T")

_SHAPE_LINES: Mapping[str, Callable[[Shape], str]] = {
    "parameters": lambda shape: f"{shape.num_parameters:,}",
    "width": lambda shape: str(shape.width),
    "layers": lambda shape: str(shape.layers),
    "heads, of these for keys and values": lambda shape: f"{shape.heads}, {shape.kv_heads}",
    "feed-forward width": lambda shape: str(shape.ffn),
    "vocabulary": lambda shape: f"{shape.vocab:,}",
    "context": lambda shape: f"{shape.context:,}",
}
_RUN_LINES: Mapping[str, Callable[[RunLog], str]] = {
    "wall time": lambda run: f"{run.steps[-1].seconds / 60:.1f} minutes",
    "tokens": lambda run: f"{run.steps[-1].tokens / 1e6:.2f} million",
    "steps": lambda run: f"{run.steps[-1].step:,}",
    "training loss, last ten steps": lambda run: f"{run.steps[-1].loss:.3f}",
    "held-out loss": lambda run: f"{run.trials[-1].loss:.3f}",
    "tokens per second": lambda run: f"{run.steps[-1].tokens / run.steps[-1].seconds:,.0f}",
}


@dataclass(frozen=True)
class Figures:
    """Files and folders that hold them."""

    demo_run: Path
    draft_run: Path
    data: Path
    assets: Path
    evaluation: Path
    draft_evaluation: Path
    transcripts: Path
    machine: str
    """In words."""


def card(figures: Figures) -> str:
    """The model card. Raises OSError for a missing file: a card has no gaps."""
    shapes = SHAPES["demo"], SHAPES["draft"]
    runs = read_run(figures.demo_run), read_run(figures.draft_run)
    demo, draft = (json.loads(path.read_text()) for path in (figures.evaluation, figures.draft_evaluation))
    files = figures.assets / "demo.gguf", figures.assets / "demo-draft.gguf"
    return Template(_TEMPLATE.read_text(encoding="utf-8")).substitute(
        demo_mb=_megabytes(files[0]),
        draft_mb=_megabytes(files[1]),
        demo_parameters=_millions(shapes[0].num_parameters),
        draft_parameters=_millions(shapes[1].num_parameters),
        shapes=_beside(shapes, _SHAPE_LINES),
        num_documents=_num_lines(figures.data / "train.jsonl"),
        corpus_tokens=_millions(int(np.load(figures.data / "train" / "starts.npy")[-1])),
        training=_beside(runs, _RUN_LINES),
        machine=figures.machine,
        demo_minutes=_minutes(runs[0]),
        draft_minutes=_minutes(runs[1]),
        count=demo["count"],
        draft_count=draft["count"],
        evaluation=printed(demo),
        draft_evaluation=printed(draft),
        transcripts=figures.transcripts.read_text(encoding="utf-8"),
        context=shapes[0].context,
    )


def printed(evaluation: dict[str, object]) -> str:
    """The table as evaluate.py prints it."""
    rows = evaluation["rows"]
    assert isinstance(rows, list)
    text = io.StringIO()
    Console(file=text, width=_WIDTH).print(table(map(Row.from_json, rows), title(evaluation)))
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _millions(number: int) -> str:
    return f"{number / 1e6:.2f} million"


def _megabytes(path: Path) -> str:
    return f"{path.stat().st_size / 1e6:.1f} MB"


def _num_lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(1 for _ in file)


def _minutes(run: RunLog) -> int:
    """The budget of a run: it ends with the first step beyond, and every tenth step is logged."""
    return math.ceil(run.steps[-1].seconds / 60 - 0.1)


def _beside(pair: tuple[T, T], lines: Mapping[str, Callable[[T], str]]) -> str:
    """Rows of a table with a column for each of the two."""
    return "\n".join(f"| {name} | {said(pair[0])} | {said(pair[1])} |" for name, said in lines.items())
