#!/usr/bin/env python3
"""Make a GGUF file with random weights: a real model's shape and speed, a working tokenizer, no meaning."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from random_model.architectures import ARCHITECTURES, HEADS, SHAPES, spelt
from random_model.gguf_file import write_model
from random_model.tensors import Quant
from random_model.vocabulary import UnfitTokenizer, borrowed_vocabulary, build_vocabulary

_TINY = {**ARCHITECTURES, **HEADS}
_MODELS = {**SHAPES, **_TINY}
_PROGRESS_FROM_BYTES = 200_000_000


class _Progress:
    """Self-updating line on a terminal, else a line every ten percent; nothing for small files."""

    def __init__(self) -> None:
        self._shown_percent = 0

    def __call__(self, written: int, total: int) -> None:
        step = 1 if sys.stderr.isatty() else 10
        percent = written * 100 // total
        if total < _PROGRESS_FROM_BYTES or percent < self._shown_percent + step:
            return
        self._shown_percent = percent - percent % step
        line = f"make_model: {percent:3} % of {total / 1e9:.1f} GB"
        end = "\r" if sys.stderr.isatty() and percent < 100 else "\n"
        print(line, end=end, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make_model.py", description=__doc__)
    parser.add_argument("--shape", required=True, choices=_MODELS, type=lambda name: spelt(name, _MODELS))
    parser.add_argument("--quant", required=True, choices=[quant.value for quant in Quant])
    parser.add_argument("--output", required=True, type=Path, metavar="PATH")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="0 or more (default %(default)s)")
    tokenizers = parser.add_mutually_exclusive_group()
    tokenizers.add_argument("--fim", action="store_true", help="with tokens for fill-in-the-middle")
    tokenizers.add_argument("--sees", action="store_true", help="with tokens for what stands around media")
    tokenizers.add_argument(
        "--tokenizer",
        type=Path,
        metavar="FILE.gguf",
        help="with this model's tokenizer (byte-level BPE), cut to the size that the shape has; "
        "default: one of its own, SentencePiece",
    )
    return parser


def main() -> int:
    parser = _parser()
    args = parser.parse_args()
    if args.seed < 0:
        parser.error(f"argument --seed: {args.seed} is negative")
    if args.shape in _TINY and args.quant != Quant.F32.value:
        parser.error(f"argument --quant: {args.shape} has {Quant.F32.value} weights only")
    if args.quant == Quant.MXFP4.value and not _MODELS[args.shape].has_experts:
        parser.error(f"argument --quant: {args.quant} is for experts, and {args.shape} has none")
    try:
        size = _MODELS[args.shape].vocab
        if args.tokenizer is not None:
            vocab = borrowed_vocabulary(args.tokenizer, size)
        else:
            vocab = build_vocabulary(size, fim=args.fim, sees=args.sees)
    except (OSError, UnfitTokenizer) as error:
        parser.error(f"argument --tokenizer: {error}")
    try:
        write_model(
            args.output,
            _MODELS[args.shape],
            Quant(args.quant),
            vocab,
            seed=args.seed,
            on_progress=_Progress(),
        )
    except OSError as error:
        print(f"make_model: cannot write {args.output}: {_reason(error, args.output)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _reason(error: OSError, path: Path) -> str:
    """numpy reports a short write without its errno."""
    if error.strerror is not None:
        return error.strerror
    free = shutil.disk_usage(path.absolute().parent).free
    return f"{error} ({free / 1e9:.1f} GB are free there)"


if __name__ == "__main__":
    sys.exit(main())
