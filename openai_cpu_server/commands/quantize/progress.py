"""Shows progress on standard error: a bar on a terminal, else a line now and then."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from openai_cpu_server.commands.plain_text import bytes_text

_LINES_FROM_BYTES = 100_000_000
"""Smaller sources are done before anybody looks into a log."""
_PERCENT_PER_LINE = 10


class QuantizeBar:
    """Counts bytes of the source by tensors: llama.cpp says when one begins."""

    def __init__(self, console: Console, what: str, tensors: Sequence[tuple[str, int]]) -> None:
        """`tensors` has names and bytes, in the order of the work."""
        self._console = console
        self._tensors = tensors
        self._total = sum(num_bytes for _, num_bytes in tensors)
        self._done = 0
        self._shown_percent = 0
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[tensor]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task(what, total=self._total, tensor="")

    def begin(self, number: int) -> None:
        """Show that a tensor begins; the first is number 1."""
        self._done = sum(num_bytes for _, num_bytes in self._tensors[: number - 1])
        self._bar.update(self._task, completed=self._done, tensor=self._tensors[number - 1][0])
        self._write_line()

    def end(self) -> None:
        """Show that all tensors are done; the rest is up to the disk."""
        self._bar.update(self._task, completed=self._total, tensor="writing to disk")

    def _write_line(self) -> None:
        percent = 100 * self._done // max(1, self._total)
        due = percent >= self._shown_percent + _PERCENT_PER_LINE
        if self._console.is_terminal or self._total < _LINES_FROM_BYTES or not due:
            return
        self._shown_percent = percent - percent % _PERCENT_PER_LINE
        self._console.print(
            f"quantize: {percent} % of {bytes_text(self._total)}", soft_wrap=True, highlight=False
        )

    def __enter__(self) -> QuantizeBar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
