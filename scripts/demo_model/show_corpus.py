"""Prints examples of the corpus: show_corpus.py [KIND] [--count N] [--seed S] [--held-out]."""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from demo_model.corpus import (
    arithmetic,
    classification,
    extraction,
    lists,
    paragraphs,
    plain,
    recall,
    smalltalk,
    stories,
    tools,
    transform,
)
from demo_model.corpus.example import Example, Maker, Split

MODULES = (
    stories,
    arithmetic,
    lists,
    transform,
    smalltalk,
    plain,
    paragraphs,
    extraction,
    classification,
    tools,
    recall,
)
MAKERS: dict[str, Maker] = {kind: maker for module in MODULES for kind, maker in module.MAKERS.items()}


def show(example: Example) -> str:
    if example.text is not None:
        return f"--- {example.kind}\n{example.text}"
    turns = "\n".join(f"{turn.role.value}: {turn.text}" for turn in example.turns)
    return f"--- {example.kind} {json.dumps(dict(example.expected))}\n{turns}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Print examples of the corpus.")
    parser.add_argument("kind", nargs="?", choices=sorted(MAKERS), help="one kind only")
    parser.add_argument("--count", type=int, default=5, help="examples of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="of the part that training never shows")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    split = Split.HELD_OUT if options.held_out else Split.TRAIN
    for kind in [options.kind] if options.kind else list(MAKERS):
        for _ in range(options.count):
            print(show(MAKERS[kind](rng, split)))


if __name__ == "__main__":
    main()
