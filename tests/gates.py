"""A file that holds a fake engine; `tests/fake_engine_process.py` says how."""

from __future__ import annotations

import os
from pathlib import Path


class Gate:
    """Closed from the beginning if `num_steps` is given; each process counts its steps anew."""

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
