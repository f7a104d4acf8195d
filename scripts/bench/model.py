"""The models to measure if none is given. They are made once and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

_SCRIPTS = Path(__file__).resolve().parents[1]
_MAKE_MODEL = _SCRIPTS / "make_model.py"


def made_model(shape: str, quant: str) -> Path:
    """A model with random weights in the shape of a real one. Raises CalledProcessError."""
    path = _cache_folder() / f"{shape}-{quant}-{_generator_digest()}.gguf"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, str(_MAKE_MODEL), "--shape", shape, "--quant", quant]
        subprocess.run([*command, "--output", str(path)], check=True)
    return path


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "openai-cpu-server" / "models"


def _generator_digest() -> str:
    """A digest of the generator: if it changes, the model is made anew."""
    digest = hashlib.sha256()
    for source in [_MAKE_MODEL, *sorted((_SCRIPTS / "random_model").glob("*.*"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
