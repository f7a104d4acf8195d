#!/usr/bin/env python3
"""Measure a trained model on held-out tasks, and its GGUF file against the weights that it was made of.

scripts/demo_model/evaluate.py model_assets/demo.gguf --run demo_run --count 100 --json evaluation.json

Exit code 0: everything was measured, whatever came out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console

from demo_model.corpus.mixture import Mixture, whole_mixture
from demo_model.evaluation.documents import documents
from demo_model.evaluation.engine import Engine
from demo_model.evaluation.likeness import read
from demo_model.evaluation.native import Native
from demo_model.evaluation.rows import Row, of_likeness, of_reading, of_scores, table, title
from demo_model.evaluation.tasks import Answered, answered, scores
from demo_model.evaluation.trained import Trained
from demo_model.progress import counter
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.host.machine import Machine

_TOKENS = 8000
"""The tokens of plain text, and those of conversations."""
_WIDTH = 100


def main() -> None:
    options = _options()
    started = time.monotonic()
    mixture = whole_mixture(options.seed)
    try:
        found = _answers(options, mixture)
    except StartupError as error:
        sys.exit(str(error))
    rows = [*of_scores(scores(found)), *_readings(options, mixture)]
    figures = {
        "model": options.model.name,
        "count": options.count,
        "seconds": round(time.monotonic() - started, 1),
    }
    Console(width=_WIDTH).print(table(rows, title(figures)))
    _write(options, {**figures, "rows": [row.as_json() for row in rows]}, found)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--run", type=Path, help="train.py's output folder: compare with PyTorch's logits")
    parser.add_argument(
        "--count", type=_at_least_one, default=100, help="examples of each kind (default 100)"
    )
    parser.add_argument("--threads", type=_at_least_one, help="default: one per core")
    parser.add_argument("--seed", type=int, default=7, help="of the held-out examples (default 7)")
    parser.add_argument("--json", type=Path, help="write the figures here, too")
    parser.add_argument("--answers", type=Path, help="write each example's kind, answer and expectation here")
    return parser.parse_args()


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def _answers(options: argparse.Namespace, mixture: Mixture) -> list[Answered]:
    with Engine(options.model, threads=options.threads) as engine, counter("answers") as told:
        return answered(engine, mixture, options.count, told)


def _readings(options: argparse.Namespace, mixture: Mixture) -> list[Row]:
    threads = options.threads or Machine().num_threads()
    trained = Trained(options.run, threads=threads).logits if options.run else None
    with Native(options.model, threads=threads) as native:
        plain, chats = (
            read(
                documents(mixture, native.encode, plain=is_plain, tokens=_TOKENS, longest=native.context),
                native.logits,
                trained,
            )
            for is_plain in (True, False)
        )
    perplexities = [*of_reading("plain text", plain), *of_reading("answers in chats", chats)]
    return [*perplexities, *of_likeness([plain, chats])]


def _write(options: argparse.Namespace, figures: Mapping[str, object], found: Sequence[Answered]) -> None:
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if options.answers:
        options.answers.write_text("".join(_line(each) for each in found), encoding="utf-8")


def _line(each: Answered) -> str:
    example = each.example
    fields = {"kind": example.kind, "answer": each.answer.text, "expected": dict(example.expected)}
    return json.dumps(fields, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
