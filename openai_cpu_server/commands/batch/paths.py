"""The files of one run: what it reads, what it writes, and where its state is in between."""

from __future__ import annotations

from pathlib import Path

import msgspec

from openai_cpu_server.errors import StartupError

_DATABASE_FILES = ("", "-wal", "-shm")


class Paths(msgspec.Struct, frozen=True):
    input: Path
    output: Path
    errors: Path
    """Written only if rows have failed."""

    @property
    def state(self) -> Path:
        """A database beside the output, from which an interrupted run goes on. Gone when all is written."""
        return self.output.with_name(self.output.name + ".jobs")

    @property
    def is_resumable(self) -> bool:
        return self.state.exists()

    def check(self, *, may_overwrite: bool) -> None:
        """Raises StartupError."""
        if not self.input.is_file():
            raise StartupError(f"there is no file {self.input}")
        for path in (self.output, self.errors):
            if not path.parent.is_dir():
                raise StartupError(f"there is no directory {path.parent}")
        if len({path.resolve() for path in (self.input, self.output, self.errors)}) < 3:
            raise StartupError("input, output and errors must be three different files")
        if self.output.exists() and not (may_overwrite or self.is_resumable):
            raise StartupError(f"{self.output} exists already; --overwrite replaces it")

    def forget_state(self) -> None:
        for ending in _DATABASE_FILES:
            self.state.with_name(self.state.name + ending).unlink(missing_ok=True)


def errors_beside(output: Path) -> Path:
    """`out.jsonl` has `out.errors.jsonl`."""
    return output.with_name(f"{output.stem}.errors{output.suffix or '.jsonl'}")
