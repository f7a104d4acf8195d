"""Shows how far a command is: a bar on a terminal, else a line every ten seconds, both on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0


@contextmanager
def counter(what: str) -> Iterator[Callable[[int, int], None]]:
    """A function that takes how many are done and how many there are."""
    if not sys.stderr.isatty():
        yield _Lines(what)
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    def __init__(self, what: str) -> None:
        self._what = what
        self._last_s = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if done >= total or now_s - self._last_s >= _LINE_EVERY_S:
            self._last_s = now_s
            print(f"{self._what}: {done} of {total}", file=sys.stderr, flush=True)
