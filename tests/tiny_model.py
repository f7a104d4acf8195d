"""The models of the tests: built on demand by `scripts/make_model.py`, cached outside git."""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
MAKE_MODEL, MAKE_PROJECTOR = SCRIPTS / "make_model.py", SCRIPTS / "make_projector.py"


def tiny_model_path(
    quant: str = "f32", *, shape: str = "tiny", fim: bool = False, sees: bool = False
) -> Path:
    """Return a GGUF file of at most a few MB: a llama, or one of `random_model.architectures`. A change of
    the generator's source rebuilds the file. Safe in parallel.

    The default is f32: logits then differ least (about 0.01, where the two best are 0.6 apart) between steps
    of different sizes, so that greedy output can be compared.
    """
    name = f"{shape}-{quant}{'-fim' if fim else ''}{'-sees' if sees else ''}"
    path = _file(name)
    flags = [flag for flag, is_on in (("--fim", fim), ("--sees", sees)) if is_on]
    if not path.exists():
        # Processes that race each build a complete file of equal bytes under a temporary name.
        make_model("--shape", shape, "--quant", quant, "--output", str(path), *flags)
    return path


def tiny_projector_path(kind: str, *, rows_width: int, shape: str = "tiny") -> Path:
    """Return the GGUF file of a projector, of one or two kinds of `make_projector.py`."""
    path = _file(f"projector-{kind}-{shape}-{rows_width}")
    if not path.exists():
        arguments = ["--kind", kind, "--shape", shape, "--rows-width", str(rows_width), "--output", str(path)]
        subprocess.run([sys.executable, str(MAKE_PROJECTOR), *arguments], check=True)
    return path


def make_model(*arguments: str) -> None:
    """Run `scripts/make_model.py`. Raises CalledProcessError."""
    subprocess.run([sys.executable, str(MAKE_MODEL), *arguments], check=True)


def _file(name: str) -> Path:
    """Return a path alone in its folder, because a server reads the headers of all models beside its own."""
    base = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "openai-cpu-server"
    folder = cache / "models" / f"{name}-{_source_digest()}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.gguf"


@functools.cache
def _source_digest() -> str:
    digest = hashlib.sha256()
    for source in [MAKE_MODEL, MAKE_PROJECTOR, *sorted((SCRIPTS / "random_model").glob("*.*"))]:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]
