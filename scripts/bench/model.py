"""Models to measure by default, made once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from random_model.tensors import Quant

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import FILE_TYPES, GgufHeader, is_copy
from openai_cpu_server.model_source.package import PACKAGED

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
    """Make a model with random weights in the shape of a real one. It has SmolLM2's tokenizer where that
    is installed, because OpenVINO reads no SentencePiece from GGUF. Types that `make_model.py` does not
    write are quantised from its f16. Raises CalledProcessError."""
    tokenizer = _tokenizer()
    name = f"{shape}-{quant}-{'bpe' if tokenizer else 'spm'}-{_generator_digest()}.gguf"
    path = user_cache_dir() / "models" / name
    if path.is_file():
        return path
    if quant not in _DIRECTLY:
        return stored(made_model(shape, Quant.F16.value), quant, path)
    path.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(_MAKE_MODEL), "--shape", shape, "--quant", quant]
    borrowing = ("--tokenizer", str(tokenizer)) if tokenizer else ()
    subprocess.run([*command, *borrowing, "--output", str(path)], check=True)
    return path


def made_projector(kind: str, shape: str, model: Path) -> Path:
    """Make an encoder with random weights and rows as wide as the model's. Raises CalledProcessError."""
    header = GgufHeader(model)
    width = header.get_int(header.for_architecture("embedding_length"))
    digest = hashlib.sha256(_MAKE_PROJECTOR.read_bytes()).hexdigest()[:12]
    name = f"projector-{kind}-{shape}-{width}-{digest}.gguf"
    path = user_cache_dir() / "models" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(_MAKE_PROJECTOR), "--kind", kind, "--shape", shape]
        told = ("--quant", "f16", "--rows-width", str(width), "--output", str(path))
        subprocess.run([*command, *told], check=True)
    return path


def stored(source: Path, weights: str, target: Path) -> Path:
    """Copy with weights of another type, and return the target. MXFP4 is used for all matrices of layers,
    where llama.cpp uses it for experts only. Raises CalledProcessError."""
    command = [sys.executable, "-m", "openai_cpu_server", "quantize", str(source), str(target), "--force"]
    as_asked = ["--type", weights]
    if weights == Quant.MXFP4.value:
        as_asked = ["--type", Quant.Q8_0.value, "--tensor-type", rf"blk.*\.weight={weights}"]
    subprocess.run([*command, *as_asked, "--allow-requantize"], check=True, stderr=subprocess.DEVNULL)
    return target


def _tokenizer() -> Path | None:
    try:
        return PACKAGED["smollm2"].path()
    except StartupError:
        return None


def _generator_digest() -> str:
    digest = hashlib.sha256()
    for source in [_MAKE_MODEL, *sorted((_SCRIPTS / "random_model").glob("*.*"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
