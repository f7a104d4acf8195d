"""The output's files. They are made in a hidden folder beside their
place, and moved there once they are whole."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from openai_cpu_server.commands.plain_text import bytes_text
from openai_cpu_server.errors import StartupError

_SUFFIX = ".gguf"


class Output:
    """One file, or the parts of one model."""

    def __init__(self, path: Path, *, num_parts: int = 1) -> None:
        """Links are followed, so that a link goes on pointing to the model."""
        self.path = Path(os.path.realpath(path))
        self._num_parts = num_parts

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def files(self) -> tuple[Path, ...]:
        """The paths at which the files will be."""
        if self._num_parts == 1:
            return (self.path,)
        stem = self.name.removesuffix(_SUFFIX)
        numbers = range(1, self._num_parts + 1)
        return tuple(
            self.path.with_name(f"{stem}-{number:05}-of-{self._num_parts:05}{_SUFFIX}") for number in numbers
        )

    def check(self, sources: Sequence[Path], *, may_overwrite: bool) -> None:
        """Raises `StartupError` if the files cannot or must not be written."""
        folder = self.path.parent
        if not folder.is_dir():
            raise StartupError(f"there is no folder {folder}")
        for file in self.files:
            if file.is_dir():
                raise StartupError(f"{file} is a folder: name the file that is to be made")
            if file.exists() and not file.is_file():
                raise StartupError(f"{file} is no ordinary file")
            if file.exists() and any(file.samefile(source) for source in sources):
                raise StartupError(f"{file} is what is to be quantised: name another output")
            if file.exists() and not may_overwrite:
                raise StartupError(f"{file} exists already: --force replaces it")

    def require_room(self, num_bytes: int) -> None:
        """Raises `StartupError` if the disk has no room beside the old output,
        which stays until the new one is whole."""
        free = shutil.disk_usage(self.path.parent).free
        if free < num_bytes:
            raise StartupError(
                f"not enough disk space for {self.path}: {bytes_text(num_bytes)} are needed, "
                f"{bytes_text(free)} are free"
            )

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """A new folder on the same file system. It is removed at the end with everything left in it."""
        try:
            made = Path(tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.name[:80]}.", suffix=".part"))
        except OSError as error:
            raise StartupError(f"cannot write in {self.path.parent}: {error.strerror}") from None
        try:
            yield made
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def target(self, folder: Path) -> Path:
        """What llama.cpp is told: a file, or what the names of the parts begin with."""
        return folder / (self.name if self._num_parts == 1 else self.name.removesuffix(_SUFFIX))

    def made(self, folder: Path) -> list[Path]:
        return [folder / file.name for file in self.files]

    def settle(self, folder: Path) -> None:
        """Wait until everything is on disk: a name must not outlive a power cut without its content."""
        for file in self.made(folder):
            with file.open("rb") as data:
                os.fsync(data.fileno())

    def publish(self, folder: Path) -> None:
        """Move the files to their place. The first part comes last: without it nobody reads the others."""
        for made, file in reversed(list(zip(self.made(folder), self.files, strict=True))):
            made.replace(file)
