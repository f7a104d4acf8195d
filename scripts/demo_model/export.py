#!/usr/bin/env python3
"""Write a trained model as a GGUF file.

export.py --run demo_run --tokenizer demo_data/tokenizer.json --output model_assets/demo.gguf
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.checkpoint import load_model
from demo_model.gguf_file import Quant, write_gguf
from demo_model.tokenizer import load_tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="train.py's output folder, or a checkpoint")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--quant", choices=[quant.value for quant in Quant], default=Quant.Q8_0.value)
    options = parser.parse_args()
    model, tokenizer = load_model(options.run), load_tokenizer(options.tokenizer)
    write_gguf(options.output, model, tokenizer, Quant(options.quant))
    print(f"{options.output}: {options.output.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
