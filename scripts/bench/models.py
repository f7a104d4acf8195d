"""Models to measure, made once in the user's cache, and their options."""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from random_model.architectures import SHAPES, spelt
from random_model.heads import arrange, spoil
from random_model.tensors import Quant

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import FILE_TYPES, GgufHeader, is_copy
from openai_cpu_server.model_source.package import PACKAGED
from openai_cpu_server.model_source.resolve import resolve_model

_SCRIPTS = Path(__file__).resolve().parents[1]
_MAKE_MODEL = _SCRIPTS / "make_model.py"
_MAKE_PROJECTOR = _SCRIPTS / "make_projector.py"
_DIRECTLY = frozenset(quant.value for quant in Quant)
MADE_TYPES = (
    *_DIRECTLY,
    *(
        kind.name
        for kind in FILE_TYPES.values()
        if not (kind.name in _DIRECTLY or kind.needs_importance or is_copy(kind))
    ),
)


def made_model(shape: str, quant: str) -> Path:
    """Make random weights in a real model's shape, with SmolLM2's tokenizer where installed, because OpenVINO
    reads no SentencePiece from GGUF. Types that `make_model.py` lacks are quantised from its f16. Raises
    CalledProcessError."""
    path = _made_path(shape, quant)
    if path.is_file():
        return path
    if quant not in _DIRECTLY:
        return stored(made_model(shape, Quant.F16.value), quant, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(_MAKE_MODEL), "--shape", shape, "--quant", quant]
    tokenizer = _tokenizer()
    borrowing = ("--tokenizer", str(tokenizer)) if tokenizer else ()
    subprocess.run([*command, *borrowing, "--output", str(path)], check=True)
    return path


def _tokenizer() -> Path | None:
    try:
        return PACKAGED["smollm2"].path()
    except StartupError:
        return None


def _made_path(shape: str, quant: str) -> Path:
    digest = hashlib.sha256()
    for source in [_MAKE_MODEL, *sorted((_SCRIPTS / "random_model").glob("*.*"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    name = f"{shape}-{quant}-{'bpe' if _tokenizer() else 'spm'}-{digest.hexdigest()[:12]}.gguf"
    return user_cache_dir() / "models" / name


def made_projector(kind: str, shape: str, model: Path) -> Path:
    """Make a random encoder with rows of the model's width. Raises CalledProcessError."""
    header = GgufHeader(model)
    width = header.get_int(header.for_architecture("embedding_length"))
    digest = hashlib.sha256(_MAKE_PROJECTOR.read_bytes()).hexdigest()[:12]
    name = f"projector-{kind}-{shape}-{width}-{digest}.gguf"
    path = user_cache_dir() / "models" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(_MAKE_PROJECTOR), "--kind", kind, "--shape", shape]
        arguments = ("--quant", "f16", "--rows-width", str(width), "--output", str(path))
        subprocess.run([*command, *arguments], check=True)
    return path


def made_head_model(shape: str, quant: str, right_percent: int) -> Path:
    """Make a model whose head is right for this share of tokens. Raises CalledProcessError."""
    plain = _made_path(shape, Quant.F16.value)
    whole = plain.with_name(plain.name.replace(f"-{Quant.F16.value}-", f"-{quant}-arranged-"))
    path = whole.with_name(f"{whole.stem}-{right_percent}.gguf")
    if path.is_file():
        return path
    if not whole.is_file():
        arranged = plain.with_name(f"{plain.stem}-arranged.gguf")
        shutil.copyfile(made_model(shape, Quant.F16.value), arranged)
        try:
            arrange(arranged)
            stored(arranged, quant, whole)
        finally:
            arranged.unlink()
    partial = path.with_suffix(".partial")
    shutil.copyfile(whole, partial)
    spoil(partial, right_percent)
    partial.replace(path)
    return path


def stored(source: Path, weights: str, target: Path) -> Path:
    """Return a copy with weights of another type. MXFP4 is used for all matrices of layers, by llama.cpp for
    experts only. Raises CalledProcessError."""
    command = [sys.executable, "-m", "openai_cpu_server", "quantize", str(source), str(target), "--force"]
    types = ["--type", weights]
    if weights == Quant.MXFP4.value:
        types = ["--type", Quant.Q8_0.value, "--tensor-type", rf"blk.*\.weight={weights}"]
    subprocess.run([*command, *types, "--allow-requantize"], check=True, stderr=subprocess.DEVNULL)
    return target


_SHAPE, _QUICK_SHAPE, _QUANT = "1b", "50m", "q4_k_m"
_OWN_QUANT = {"gpt-oss": Quant.MXFP4.value}
"""Types of shapes whose real models mostly come in another."""


class Shape(NamedTuple):
    """Model with random weights, as `--shape NAME[:TYPE]` names it."""

    name: str
    quant: str | None = None

    def __str__(self) -> str:
        return self.name if self.quant is None else f"{self.name} {self.quant}"


def add_options(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """`several`: measure all named models instead of the last."""
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
        type=_shapes,
        metavar="NAME[:TYPE],..." if several else "NAME[:TYPE]",
        help=f"of a model with random weights, made once: {', '.join(SHAPES)}; "
        f"default {_SHAPE}, with --quick {_QUICK_SHAPE}",
    )
    parser.add_argument(
        "--quant",
        "--type",
        choices=MADE_TYPES,
        metavar="TYPE",
        help="type of its weights if --shape names none: one of `quantize --type list`, or mxfp4; "
        f"default {_QUANT}, {', '.join(f'{name}: {quant}' for name, quant in _OWN_QUANT.items())}",
    )
    parser.add_argument("--rounds", type=_positive, metavar="N", help="default 3, with --quick 1")
    parser.add_argument(
        "--quick", action="store_true", help="small sizes, done within three minutes: a look, not a result"
    )


def settle(parser: argparse.ArgumentParser, options: argparse.Namespace) -> None:
    """Reject conflicting options, and set defaults; unnamed models are made later."""
    if options.quant and options.model:
        parser.error("--quant: not with --model, which is a file as it is")
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.shape = [
        Shape(name, quant or options.quant or _OWN_QUANT.get(name, _QUANT))
        for name, quant in options.shape or [Shape(_QUICK_SHAPE if options.quick else _SHAPE)]
    ]
    for shape in options.shape:
        if shape.quant == Quant.MXFP4.value and not SHAPES[shape.name].has_experts:
            parser.error(f"--quant: {shape.quant} is for experts, and {shape.name} has none")


def models_of(options: argparse.Namespace) -> dict[str, Path]:
    if options.model:
        return {model.stem: model.resolve() for model in options.model}
    return {str(shape): made_model(shape.name, shape.quant).resolve() for shape in options.shape}


def gguf(text: str) -> Path:
    try:
        return resolve_model(text)
    except StartupError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _shapes(text: str) -> list[Shape]:
    found = []
    for part in text.split(","):
        name, _, quant = part.partition(":")
        shape = Shape(spelt(name, SHAPES), quant or None)
        for value, values in ((shape.name, SHAPES), (quant, ("", *MADE_TYPES))):
            if value not in values:
                raise argparse.ArgumentTypeError(f"unknown: {value}; there are {', '.join(values)}")
        found.append(shape)
    return found


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number
