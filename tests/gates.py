"""Gates of processes: a file for a fake engine (see `tests/fake_engine_process.py`), a signal for others."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.waiting import wait_until


class Gate:
    """A gate that starts closed if `num_steps` is set; each process counts its own steps."""

    def __init__(self, path: Path, num_steps: int | None = None) -> None:
        self._path = path
        if num_steps is not None:
            self.allow(num_steps)

    @property
    def steps(self) -> str:
        return f"steps={self._path}"

    @property
    def loads(self) -> str:
        return f"loads={self._path}"

    @property
    def builds(self) -> str:
        return f"builds={self._path}"

    def close(self) -> None:
        self.allow(0)

    def allow(self, num_steps: int) -> None:
        self._path.touch()
        os.truncate(self._path, num_steps)

    def open(self) -> None:
        self._path.unlink(missing_ok=True)


@contextmanager
def suspended(*pids: int) -> Iterator[None]:
    """Stop the processes during the block; a killed one stays dead."""
    for pid in pids:
        psutil.Process(pid).suspend()
    wait_until(lambda: all(map(_is_stopped, pids)))  # the signal only requests the stop
    try:
        yield
    finally:
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).resume()


def _is_stopped(pid: int) -> bool:
    threads = Path(f"/proc/{pid}/task").glob("*/stat")
    return all(thread.read_text().rpartition(") ")[2].startswith("T") for thread in threads)
