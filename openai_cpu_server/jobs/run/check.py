"""Checks an input file before any of its rows runs, and names errors by line."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.jobs.records import LineError
from openai_cpu_server.jobs.run.lines import Line
from openai_cpu_server.jobs.run.rows import BadLine, parse_row

MAX_ERRORS = 100
"""The most errors that are reported: the first ones show what is wrong."""


class InputCheck:
    """Reads all lines of a file in order."""

    def __init__(self, endpoint: str, *, max_rows: int, max_line_bytes: int) -> None:
        self.num_rows = 0
        self._endpoint = endpoint
        self._max_rows = max_rows
        self._max_line_bytes = max_line_bytes
        self._errors: list[LineError] = []
        self._ids: set[str] = set()

    def feed(self, lines: Sequence[Line]) -> None:
        for line in lines:
            self.num_rows += 1
            try:
                self._check(line)
            except BadLine as bad:
                self._note(LineError(bad.code, str(bad), bad.param, line.number))

    def errors(self) -> list[LineError]:
        """At most `MAX_ERRORS` errors. Ask for them after the last line."""
        if self.num_rows == 0:
            self._note(LineError("empty_file", "The input file is empty."))
        if self.num_rows > self._max_rows:
            message = f"The input file has {self.num_rows} requests; a batch may have {self._max_rows}."
            self._errors.insert(0, LineError("too_many_requests_in_file", message))
        return self._errors[:MAX_ERRORS]

    def _check(self, line: Line) -> None:
        if len(line.content) > self._max_line_bytes:
            raise BadLine("request_too_large", f"This line is larger than {self._max_line_bytes} bytes.")
        row = parse_row(line, self._endpoint)
        if row.custom_id in self._ids:
            message = f"The custom_id '{row.custom_id[:64]}' is a duplicate: it must be unique in a batch."
            raise BadLine("duplicate_custom_id", message, "custom_id")
        if self.num_rows <= self._max_rows:
            self._ids.add(row.custom_id)

    def _note(self, error: LineError) -> None:
        if len(self._errors) < MAX_ERRORS:
            self._errors.append(error)
