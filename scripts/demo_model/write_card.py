#!/usr/bin/env python3
r"""Write the model card from the figures that the other commands have left.

scripts/demo_model/write_card.py --demo demo_run --draft draft_run --data demo_data \
  --evaluation evaluation.json --draft-evaluation draft_evaluation.json --transcripts transcripts.md
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.evaluation.card import Figures, card

_ASSETS = Path(__file__).resolve().parents[2] / "model_assets"


def main() -> None:
    options = _options()
    figures = Figures(
        demo_run=options.demo,
        draft_run=options.draft,
        data=options.data,
        assets=options.assets,
        evaluation=options.evaluation,
        draft_evaluation=options.draft_evaluation,
        transcripts=options.transcripts,
        machine=options.machine,
    )
    (options.assets / "README.md").write_text(card(figures), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--demo", type=Path, required=True, help="train.py's output folder")
    parser.add_argument("--draft", type=Path, required=True, help="the same of the draft model")
    parser.add_argument("--data", type=Path, required=True, help="prepare.py's output folder")
    parser.add_argument("--evaluation", type=Path, required=True, help="evaluate.py's JSON")
    parser.add_argument("--draft-evaluation", type=Path, required=True)
    parser.add_argument("--transcripts", type=Path, required=True, help="what transcripts.py wrote")
    parser.add_argument(
        "--assets", type=Path, default=_ASSETS, help="both GGUF files, and where the card goes"
    )
    parser.add_argument("--machine", default=_machine(), help="where the training ran (default: here)")
    return parser.parse_args()


def _machine() -> str:
    """The machine in Linux' words, such as `2 cores of an AMD EPYC`."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} CPU cores" + (f" ({names[0]})" if names else "")


if __name__ == "__main__":
    main()
