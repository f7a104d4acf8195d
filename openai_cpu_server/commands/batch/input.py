"""Looks at the input before anything slow begins."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from openai_cpu_server.errors import StartupError
from openai_cpu_server.jobs.check import MAX_ERRORS, InputCheck
from openai_cpu_server.jobs.file_store import PART_BYTES
from openai_cpu_server.jobs.jobs import ENDPOINTS
from openai_cpu_server.jobs.lines import Line, LineSplitter
from openai_cpu_server.jobs.options import JobOptions
from openai_cpu_server.jobs.records import LineError
from openai_cpu_server.jobs.rows import BadLine, url_of


def checked_endpoint(path: Path, options: JobOptions) -> str:
    """The endpoint that all rows ask for. Raises StartupError that lists what is wrong in the file."""
    endpoint = _first_url(path)
    check = InputCheck(endpoint, max_rows=options.max_rows, max_line_bytes=options.max_line_bytes)
    for lines in _lines(path):
        check.feed(lines)
    errors = check.errors()
    if errors:
        more = ["and more"] if len(errors) == MAX_ERRORS else []
        raise StartupError("\n".join([f"{path} is no batch:", *map(_shown, errors), *more]))
    return endpoint


def parts(path: Path) -> Iterator[bytes]:
    """Raises StartupError if it cannot be read."""
    try:
        with path.open("rb") as file:
            while part := file.read(PART_BYTES):
                yield part
    except OSError as error:
        raise StartupError(f"cannot read {path}: {error}") from None


def _lines(path: Path) -> Iterator[list[Line]]:
    splitter = LineSplitter()
    for part in parts(path):
        yield splitter.feed(part)
    yield splitter.end()


def _first_url(path: Path) -> str:
    """The endpoint of the first line that has a good one: the others are measured by it."""
    for lines in _lines(path):
        for line in lines:
            try:
                url = url_of(line)
            except BadLine:
                continue
            if url in ENDPOINTS:
                return url
    raise StartupError(f"no line of {path} has a 'url' that is {' or '.join(ENDPOINTS)}")


def _shown(error: LineError) -> str:
    where = "" if error.line is None else f"line {error.line}: "
    return f"  {where}{error.message}"
