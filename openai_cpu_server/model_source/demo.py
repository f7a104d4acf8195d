"""`--model demo`: the model that comes with the package, or else a random one that is made at once."""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError
from openai_cpu_server.user_folders import user_cache_dir

logger = logging.getLogger(__name__)

_PACKAGE = Path(__file__).resolve().parents[1]


class DemoFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The places to look in, in this order.
    The defaults are an installed package, then a checkout of its repository."""

    models: tuple[Path, ...] = (
        _PACKAGE / "model_assets" / "demo.gguf",
        _PACKAGE.parent / "model_assets" / "demo.gguf",
    )
    generator: Path = _PACKAGE.parent / "scripts" / "make_model.py"
    cache: Path = msgspec.field(default_factory=user_cache_dir)
    """The folder for the random model."""

    def path(self) -> Path:
        """The model's file. Raises StartupError."""
        for model in self.models:
            if model.is_file():
                return model
        if not self.generator.is_file():
            raise StartupError("this installation has no demo model: name another with --model")
        return self._random_model()

    def _random_model(self) -> Path:
        path = self.cache / f"random-{self._generator_digest()}.gguf"
        if not path.is_file():
            self._make(path)
        logger.warning("there is no demo model here: %s has random weights and says nothing sensible", path)
        return path

    def _make(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                made = Path(folder) / path.name
                _run(self.generator, made)
                made.replace(path)
        except OSError as error:
            raise StartupError(f"cannot make a random model in {path.parent}: {error.strerror}") from None
        except KeyboardInterrupt:
            raise StartupError("interrupted while making a random model") from None

    def _generator_digest(self) -> str:
        """A digest of the generator: if it changes, the model is made anew."""
        digest = hashlib.sha256()
        for source in sorted(self.generator.parent.rglob("*.py")):
            digest.update(source.read_bytes())
        return digest.hexdigest()[:12]


def _run(generator: Path, output: Path) -> None:
    command = [sys.executable, str(generator), "--shape", "tiny", "--quant", "f16", "--output", str(output)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise StartupError(f"cannot make a random model: {lines[-1]}")
