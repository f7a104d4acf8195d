#!/usr/bin/env python3
"""Measures types of weights and of KV cells: speed, and what they lose of a model. Writes docs/types.md.

    .venv/bin/python scripts/type_table.py [--types q4_k_m q8_0] [--cells f16 q8_0] [--write]

Files are made with `openai-cpu-server quantize`, one at a time, in a temporary folder that needs 1.5 GB.
Speed is that of random weights in the shape of 1.04 B parameters; nothing else should run. Loss is measured
on SmolLM2. No package has it unquantised: the reference is the Q4_1 file with its weights unpacked to f16, so
the loss of that type itself is not in the figures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
from bench.circumstances import cpu_name
from bench.model import made_model
from bench.type_figures import ROWS, Quality, Speed

from openai_cpu_server.config.folders import HUGE_PAGES
from openai_cpu_server.model_source.package import PACKAGED

_SCRIPTS = Path(__file__).resolve().parent
_PAGE = _SCRIPTS.parent / "docs" / "types.md"
TEXT = _SCRIPTS.parent / "model_assets" / "README.md"
BEGIN, END = "<!-- type_table.py: begin -->", "<!-- type_table.py: end -->"
_TYPES = ("f16", "q8_0", "q6_k", "q5_k_m", "q4_k_m", "q4_1", "q4_0")
_CELLS = ("f16", "q8_0")
_SHAPE = "1b"


@dataclass(frozen=True)
class Row:
    weights: str
    cells: str
    megabytes: float
    speed: Speed
    judged_megabytes: float
    quality: Quality


def main() -> int:
    arguments = _parser().parse_args()
    with tempfile.TemporaryDirectory(prefix="types-") as folder:
        rows = list(_rows(arguments, Path(folder)))
    found = table(rows)
    print(found)
    if arguments.write:
        write(found, _PAGE)
    return 0


def _rows(arguments: argparse.Namespace, folder: Path) -> Iterator[Row]:
    timed = made_model(_SHAPE, "f16")
    reference = _stored(PACKAGED["smollm2"].path(), "f16", folder / "reference.gguf")
    for weights in arguments.types:
        model = timed if weights == "f16" else _stored(timed, weights, folder / "timed.gguf")
        judged = _stored(reference, weights, folder / "judged.gguf")
        for cells in arguments.cells:
            print(f"{weights}, {cells} cells ...", file=sys.stderr, flush=True)
            yield Row(
                weights=weights,
                cells=cells,
                megabytes=model.stat().st_size / 1e6,
                speed=msgspec.json.decode(measured("speed", model, cells), type=Speed),
                judged_megabytes=judged.stat().st_size / 1e6,
                quality=msgspec.json.decode(
                    measured("quality", reference, judged, cells, TEXT), type=Quality
                ),
            )


def _stored(source: Path, weights: str, target: Path) -> Path:
    command = [sys.executable, "-m", "openai_cpu_server", "quantize", str(source), str(target), "--force"]
    subprocess.run([*command, "--type", weights, "--allow-requantize"], check=True, stderr=subprocess.DEVNULL)
    return target


def measured(what: str, *arguments: str | Path) -> bytes:
    """A process of its own for each measurement, with our kernels in front of ggml."""
    command = [sys.executable, "-m", "openai_cpu_server.kernels.front", "bench.type_measures", what]
    environment = HUGE_PAGES | {**os.environ, "PYTHONPATH": f"{_SCRIPTS}:{_SCRIPTS.parent}"}
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"type_table: {what} fails: {done.stderr.decode(errors='replace').strip()[-500:]}")
    return done.stdout


def table(rows: list[Row]) -> str:
    speeds = [f"{count} {'row' if count == 1 else 'rows'}, tok/s" for count in ROWS]
    heads = ["weights", "cells", "1.04 B: MB", *speeds, "SmolLM2: MB", "KL mean", "KL max", "perplexity"]
    lines = [heads, ["---"] * len(heads), *([*_cells(row)] for row in rows)]
    drawn = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    first = rows[0].quality
    return (
        f"{drawn}\n\nCPU: {cpu_name()}. "
        f"Perplexity of the reference: {first.reference_perplexity:.2f}, over {first.num_tokens} tokens."
    )


def _cells(row: Row) -> Iterator[str]:
    yield row.weights.upper() if row.weights != "f16" else row.weights
    yield row.cells
    yield f"{row.megabytes:.0f}"
    yield from (f"{rate:.1f}" for rate in row.speed.tokens_per_s)
    yield f"{row.judged_megabytes:.0f}"
    yield f"{row.quality.mean_divergence:.4f}"
    yield f"{row.quality.max_divergence:.2f}"
    yield f"{row.quality.perplexity:.2f}"


def write(table: str, page: Path) -> None:
    """Put the table between the page's marks."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    page.write_text(f"{before}{BEGIN}\n\n{table}\n\n{END}{after}", encoding="utf-8")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", nargs="+", choices=_TYPES, default=_TYPES)
    parser.add_argument("--cells", nargs="+", choices=_CELLS, default=_CELLS)
    parser.add_argument("--write", action="store_true", help="put the table into docs/types.md")
    return parser


if __name__ == "__main__":
    sys.exit(main())
