"""Adapters for the tiny model, made by `scripts/make_adapter.py`, and models that have them merged in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from openai_cpu_server.contract.adapter import Adapter
from tests.tiny_model import SCRIPTS, tiny_model_path

MAKE_ADAPTER = SCRIPTS / "make_adapter.py"


def make_adapter(path: Path, *arguments: str, model: Path | None = None) -> Path:
    """Run the command. Raises CalledProcessError."""
    base = ["--model", str(model or tiny_model_path()), "--output", str(path)]
    subprocess.run([sys.executable, str(MAKE_ADAPTER), *base, *arguments], check=True)
    return path


def adapter(path: Path, name: str = "one", scale: float = 1.0) -> Adapter:
    return Adapter(
        name=name, path=str(path), digest=hashlib.sha256(path.read_bytes()).hexdigest(), scale=scale
    )
