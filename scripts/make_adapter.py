#!/usr/bin/env python3
"""Make a LoRA adapter with random weights for a GGUF model, and optionally the merged model."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Matrix = npt.NDArray[np.float32]

_TYPES = {"f32": np.float32, "f16": np.float16}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make_adapter.py", description=__doc__)
    parser.add_argument("--model", required=True, type=Path, metavar="PATH", help="the base model")
    parser.add_argument("--output", required=True, type=Path, metavar="PATH")
    parser.add_argument(
        "--merged", type=Path, metavar="PATH", help="also write the model with W + SCALE * B A in place of W"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="in the merged model (default %(default)s)")
    parser.add_argument("--rank", type=int, default=8, metavar="N")
    parser.add_argument("--alpha", type=float, default=16.0, help="the adapter's own scale is ALPHA / RANK")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--type", choices=_TYPES, default="f32", help="type of its tensors")
    parser.add_argument(
        "--strength", type=float, default=0.5, help="the change's size beside a matrix' (default %(default)s)"
    )
    parser.add_argument(
        "--targets",
        default=r"blk\.\d+\.(attn_(q|k|v|output)|ffn_(gate|up|down))\.weight",
        help="regular expression for the tensors that it changes (default: all products of all layers)",
    )
    return parser


def main() -> int:
    args = _parser().parse_args()
    model = gguf.GGUFReader(args.model)
    pairs = _random_pairs(model, args)
    if not pairs:
        print(f"make_adapter: no tensor of {args.model} matches {args.targets}", file=sys.stderr)
        return 1
    _write_adapter(model, pairs, args)
    if args.merged is not None:
        _write_merged(model, pairs, args)
    return 0


def _random_pairs(model: gguf.GGUFReader, args: argparse.Namespace) -> dict[str, tuple[Matrix, Matrix]]:
    rng, stored = np.random.default_rng(args.seed), _TYPES[args.type]
    pairs = {}
    for tensor in model.tensors:
        if not re.fullmatch(args.targets, tensor.name):
            continue
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        rows, columns = weights.shape
        a = rng.standard_normal((args.rank, columns))
        b = rng.standard_normal((rows, args.rank))
        # B A has a spread of sqrt(rank); alpha / rank scales it again.
        size = args.strength * float(weights.std()) * args.rank**0.5 / args.alpha
        pairs[tensor.name] = a.astype(stored), (size * b).astype(stored)
    return pairs


def _write_adapter(
    model: gguf.GGUFReader, pairs: dict[str, tuple[Matrix, Matrix]], args: argparse.Namespace
) -> None:
    writer = gguf.GGUFWriter(args.output, _architecture(model))
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", args.alpha)
    for name, (a, b) in pairs.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    _finish(writer)


def _write_merged(
    model: gguf.GGUFReader, pairs: dict[str, tuple[Matrix, Matrix]], args: argparse.Namespace
) -> None:
    """Write changed tensors as f32."""
    writer = gguf.GGUFWriter(args.merged, _architecture(model))
    for field in model.fields.values():
        if not field.name.startswith("GGUF.") and field.name != "general.architecture":
            kind = field.types[0]
            element = field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(field.name, field.contents(), kind, sub_type=element)
    for tensor in model.tensors:
        if tensor.name in pairs:
            writer.add_tensor(tensor.name, _merged(tensor, *pairs[tensor.name], args))
        else:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    _finish(writer)


def _merged(tensor: Any, a: Matrix, b: Matrix, args: argparse.Namespace) -> Matrix:
    weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    change = b.astype(np.float32) @ a.astype(np.float32)
    merged: Matrix = (weights + args.scale * args.alpha / args.rank * change).astype(np.float32)
    return merged


def _architecture(model: gguf.GGUFReader) -> str:
    return str(model.fields["general.architecture"].contents())


def _finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    sys.exit(main())
