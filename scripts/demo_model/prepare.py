#!/usr/bin/env python3
"""Make everything that training reads: both corpora, the tokenizer, and the corpora in tokens.

scripts/demo_model/prepare.py --documents 450000 --output demo_data
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.corpus.example import Split
from demo_model.documents import read_documents, write_documents
from demo_model.progress import counter
from demo_model.rows import chained, encoded, write_rows
from demo_model.shapes import CONTEXT, NUM_PIECES
from demo_model.tokenizer import load_tokenizer, train_tokenizer

_FOR_TOKENIZER = 40_000
_FOR_TRIALS = 4_000


def main() -> None:
    options = _options()
    folder: Path = options.output
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in ((Split.TRAIN, options.documents), (Split.HELD_OUT, _FOR_TRIALS)):
        with counter(f"{split.value} documents") as told:
            path = _corpus(folder, split)
            write_documents(path, split, count, seed=options.seed, jobs=options.jobs, told=told)
    texts = (document.text for document in read_documents(_corpus(folder, Split.TRAIN), _FOR_TOKENIZER))
    train_tokenizer(texts, NUM_PIECES).save(str(folder / "tokenizer.json"))
    for split in Split:
        print(f"{split.value}: {_write_tokens(folder, split, options.seed)} tokens", file=sys.stderr)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, default=450_000)
    parser.add_argument("--output", type=Path, required=True, help="a folder")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    return parser.parse_args()


def _write_tokens(folder: Path, split: Split, seed: int) -> int:
    """Write the tokens. Held-out documents stay alone, so that each kind's loss is its own."""
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    rows = encoded(read_documents(_corpus(folder, split)), tokenizer, CONTEXT, seed)
    return write_rows(folder / split.value, chained(rows, CONTEXT, seed) if split is Split.TRAIN else rows)


def _corpus(folder: Path, split: Split) -> Path:
    return folder / f"{split.value}.jsonl"


if __name__ == "__main__":
    main()
