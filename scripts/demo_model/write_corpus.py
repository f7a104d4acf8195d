#!/usr/bin/env python3
"""Write the demo model's corpus to a file. The same arguments give the same bytes, with any number of jobs.

scripts/demo_model/write_corpus.py --documents 1000 --output corpus.jsonl
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.corpus.example import Split
from demo_model.documents import write_documents
from demo_model.progress import counter


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--documents", type=int, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", choices=[split.value for split in Split], default=Split.TRAIN.value)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options = parser.parse_args()
    with counter("documents") as told:
        write_documents(
            options.output,
            Split(options.split),
            options.documents,
            seed=options.seed,
            jobs=options.jobs,
            told=told,
        )


if __name__ == "__main__":
    main()
