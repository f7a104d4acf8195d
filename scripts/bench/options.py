"""What all measurements can be told: the model, the number of rounds, the size."""

from __future__ import annotations

import argparse
from pathlib import Path

from random_model.shapes import SHAPES
from random_model.tensors import Quant

from bench.model import made_model
from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source import resolve_model

_SHAPE, _QUICK_SHAPE, _QUANT = "1b", "50m", "q4_k_m"


def add_options(parser: argparse.ArgumentParser) -> None:
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model",
        type=gguf,
        metavar="MODEL",
        help="GGUF file, or what else `serve --model` takes, such as smollm2",
    )
    models.add_argument(
        "--shape",
        choices=SHAPES,
        help=f"of a model with random weights, made once; default {_SHAPE}, with --quick {_QUICK_SHAPE}",
    )
    parser.add_argument(
        "--quant", choices=[quant.value for quant in Quant], help=f"of it, without --model; default {_QUANT}"
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="default 3, with --quick 1")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, done within three minutes: a look, not a result"
    )


def settle(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    """Refuse what does not go together, and put defaults in; a model that is not named is made later."""
    if asked.quant and asked.model:
        parser.error("--quant: not with --model, which is a file as it is")
    asked.quant = asked.quant or _QUANT
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    asked.shape = asked.shape or (_QUICK_SHAPE if asked.quick else _SHAPE)
    if asked.quant == Quant.MXFP4.value and not SHAPES[asked.shape].has_experts:
        parser.error(f"--quant: {asked.quant} is for experts, and {asked.shape} has none")


def model_of(asked: argparse.Namespace) -> Path:
    model: Path = asked.model or made_model(asked.shape, asked.quant)
    return model.resolve()


def gguf(text: str) -> Path:
    try:
        return resolve_model(text)
    except StartupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number
