"""What the person at the terminal sees."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from openai_cpu_server.jobs.records import BatchRecord


class BatchBar:
    """Rows done of all rows, and the tokens that they have brought."""

    def __init__(self, console: Console, name: str) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[tokens]} tokens"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None, tokens=0, start=False)
        self._is_started = False

    def show(self, batch: BatchRecord) -> None:
        """The clock starts with the rows, so that loading the model does not count."""
        num_ended = batch.completed + batch.failed
        if batch.total and not self._is_started:
            self._is_started = True
            self._progress.start_task(self._task)
        self._progress.update(
            self._task, total=batch.total or None, completed=num_ended, tokens=batch.output_tokens
        )

    def __enter__(self) -> BatchBar:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
