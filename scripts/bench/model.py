"""The models to measure if none is given. They are made once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.errors import StartupError
from openai_cpu_server.model_source.package import PACKAGED

_SCRIPTS = Path(__file__).resolve().parents[1]
_MAKE_MODEL = _SCRIPTS / "make_model.py"


def made_model(shape: str, quant: str) -> Path:
    """A model with random weights in the shape of a real one. Raises CalledProcessError.

    It has SmolLM2's tokenizer where that is installed: OpenVINO reads no SentencePiece out of GGUF.
    """
    tokenizer = _tokenizer()
    name = f"{shape}-{quant}-{'bpe' if tokenizer else 'spm'}-{_generator_digest()}.gguf"
    path = user_cache_dir() / "models" / name
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(_MAKE_MODEL), "--shape", shape, "--quant", quant]
        borrowing = ("--tokenizer", str(tokenizer)) if tokenizer else ()
        subprocess.run([*command, *borrowing, "--output", str(path)], check=True)
    return path


def _tokenizer() -> Path | None:
    try:
        return PACKAGED["smollm2"].path()
    except StartupError:
        return None


def _generator_digest() -> str:
    """A digest of the generator: if it changes, the model is made anew."""
    digest = hashlib.sha256()
    for source in [_MAKE_MODEL, *sorted((_SCRIPTS / "random_model").glob("*.*"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
