"""Adapters for the tiny model, made by `scripts/make_adapter.py`, and models that have them merged in."""

from __future__ import annotations

import functools
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from openai_cpu_server.contract.model_info import Adapter
from tests.tiny_model import SCRIPTS, tiny_model_path

MAKE_ADAPTER = SCRIPTS / "make_adapter.py"


def make_adapter(path: Path, *arguments: str, model: Path | None = None) -> Path:
    """Write an adapter; with `--merged`, its merged model too. Raises CalledProcessError."""
    model = model or tiny_model_path()
    if "--merged" in arguments:
        _make(path, arguments, model)
    else:
        path.write_bytes(_adapter_bytes(arguments, model))
    return path


@functools.cache
def _adapter_bytes(arguments: tuple[str, ...], model: Path) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "adapter.gguf"
        _make(path, arguments, model)
        return path.read_bytes()


def _make(path: Path, arguments: tuple[str, ...], model: Path) -> None:
    base = ["--model", str(model), "--output", str(path)]
    subprocess.run([sys.executable, str(MAKE_ADAPTER), *base, *arguments], check=True)


def adapter(path: Path, name: str = "one", scale: float = 1.0) -> Adapter:
    return Adapter(
        name=name, path=str(path), digest=hashlib.sha256(path.read_bytes()).hexdigest(), scale=scale
    )
