"""Options of all measurements: models, rounds, size."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import NamedTuple

from random_model.shapes import SHAPES, spelt
from random_model.tensors import Quant

from bench.model import MADE_TYPES, made_model
from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source import resolve_model

_SHAPE, _QUICK_SHAPE, _QUANT = "1b", "50m", "q4_k_m"
_OWN_QUANT = {"gpt-oss": Quant.MXFP4.value}
"""Types of shapes whose real models mostly come in another than the default type."""


class Shape(NamedTuple):
    """Model with random weights, as `--shape NAME[:TYPE]` names it."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.name if self.quant is None else f"{self.name} {self.quant}"


def add_options(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """`several`: models can be measured one after the other."""
    models = parser.add_mutually_exclusive_group()
    models.add_argument(
        "--model",
        type=gguf,
        action="append",
        metavar="MODEL",
        help="GGUF file, or what else `serve --model` takes, such as smollm2"
        f"{'; may be given several times' if several else ''}",
    )
    models.add_argument(
        "--shape",
        type=_shapes if several else _shape,
        metavar="NAME[:TYPE],..." if several else "NAME[:TYPE]",
        help=f"of a model with random weights, made once: {', '.join(SHAPES)}; "
        f"default {_SHAPE}, with --quick {_QUICK_SHAPE}",
    )
    parser.add_argument(
        "--quant",
        "--type",
        choices=MADE_TYPES,
        metavar="TYPE",
        help="of its weights, where --shape names none: as `quantize --type list` shows them, and mxfp4; "
        f"default {_QUANT}, {', '.join(f'{name}: {quant}' for name, quant in _OWN_QUANT.items())}",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="default 3, with --quick 1")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, done within three minutes: a look, not a result"
    )


def settle(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    """Reject conflicting options, and set defaults; models that are not named are made later."""
    if asked.quant and asked.model:
        parser.error("--quant: not with --model, which is a file as it is")
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    named = asked.shape or [Shape(_QUICK_SHAPE if asked.quick else _SHAPE)]
    asked.shape = [_with_quant(shape, asked.quant) for shape in named]
    for shape in asked.shape:
        if shape.quant == Quant.MXFP4.value and not SHAPES[shape.name].has_experts:
            parser.error(f"--quant: {shape.quant} is for experts, and {shape.name} has none")


def models_of(asked: argparse.Namespace) -> dict[str, Path]:
    if asked.model:
        return {model.stem: model.resolve() for model in asked.model}
    return {str(shape): made_model(shape.name, shape.quant).resolve() for shape in asked.shape}


def gguf(text: str) -> Path:
    try:
        return resolve_model(text)
    except StartupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _with_quant(shape: Shape, asked: str | None) -> Shape:
    return Shape(shape.name, shape.quant or asked or _OWN_QUANT.get(shape.name, _QUANT))


def _shape(text: str) -> list[Shape]:
    name, _, quant = text.partition(":")
    shape = Shape(spelt(name, SHAPES), quant or None)
    for one, known in ((shape.name, SHAPES), (quant, ("", *MADE_TYPES))):
        if one not in known:
            raise argparse.ArgumentTypeError(f"unknown: {one}; there are {', '.join(known)}")
    return [shape]


def _shapes(text: str) -> list[Shape]:
    return [shape for one in text.split(",") for shape in _shape(one)]


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number
