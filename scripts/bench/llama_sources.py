"""Sources of llama-cpp-python, in our server's version, for parts that its wheel lacks."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

_PACKAGE = "llama-cpp-python"
VERSION = version(_PACKAGE)

Say = Callable[[str], None]


class SetupFailed(Exception): ...


def unpacked_sources(folder: Path, say: Say) -> Path:
    """Download and unpack the sources, and return their folder. Raises SetupFailed."""
    named = f"{_PACKAGE}=={VERSION}"
    say(f"downloading the sources of {named}")
    run([sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", _PACKAGE, named], cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def llama_cpp_in(sources: Path) -> Path:
    return sources / "vendor" / "llama.cpp"


def jobs() -> str:
    return os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))


def run(command: list[str], *, cwd: Path | None = None, extra: Mapping[str, str] | None = None) -> None:
    """Wait for a command. `extra`: environment variables. Raises SetupFailed."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(extra or {})}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise SetupFailed(f"there is no {command[0]} on this machine") from None
    if done.returncode != 0:
        raise SetupFailed(f"{' '.join(command[:4])} ... fails:\n{(done.stdout + done.stderr)[-2000:]}")
