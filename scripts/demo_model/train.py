#!/usr/bin/env python3
"""Train a model from scratch on what `prepare.py` made. Stop it at any moment: the same command goes on.

scripts/demo_model/train.py --model demo --data demo_data --minutes 90 --output demo_run
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from demo_model.memory import keep_memory
from demo_model.optimise import Rates
from demo_model.shapes import SHAPES
from demo_model.training import Budget, Plan, train


def main() -> None:
    options = _options()
    keep_memory()
    torch.set_num_threads(options.threads)
    train(
        Plan(
            shape=SHAPES[options.model],
            data=options.data,
            output=options.output,
            budget=Budget(options.minutes * 60.0 if options.minutes else None, options.tokens),
            rates=Rates(options.matrix_rate, options.vector_rate),
            step_tokens=options.step_tokens,
            batch_tokens=options.batch_tokens,
            prompt_weight=options.prompt_weight,
            seed=options.seed,
            device=options.device,
            low=options.precision == "bf16",
            threads=options.threads,
            trials_every_s=options.trials_every * 60.0,
        )
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", choices=list(SHAPES), default="demo")
    parser.add_argument("--data", type=Path, required=True, help="the folder that prepare.py made")
    parser.add_argument("--output", type=Path, required=True, help="a folder: checkpoint, logs")
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--minutes", type=float, help="of training in all, over every continuation")
    length.add_argument("--tokens", type=int, help="the same in tokens")
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["bf16", "f32"], default="bf16")
    parser.add_argument("--step-tokens", type=int, default=8192, help="tokens of an optimiser step")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens computed at a time")
    parser.add_argument("--matrix-rate", type=float, default=Rates.matrices, help="Muon's learning rate")
    parser.add_argument("--vector-rate", type=float, default=Rates.vectors, help="AdamW's")
    parser.add_argument("--prompt-weight", type=float, default=0.1, help="of text that is only read")
    parser.add_argument("--trials-every", type=float, default=5.0, help="minutes between held-out losses")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
