"""Logs as JSON: each record is one object on one line. Libraries do not log the input of clients."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from openai_cpu_server.observe.logs import JsonFormatter, set_up_logs


def entry_of(
    message: str, *args: object, error: Exception | None = None, fields: dict[str, object] | None = None
) -> dict[str, object]:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    extra = None if fields is None else {"fields": fields}
    logger = logging.getLogger("a.b")
    record = logger.makeRecord("a.b", logging.WARNING, "f", 1, message, args, exc_info, extra=extra)
    (line,) = JsonFormatter().format(record).splitlines()
    entry = json.loads(line)
    assert isinstance(entry, dict)
    return entry


def test_a_message_of_several_lines_is_one_line_with_its_fields() -> None:
    entry = entry_of("two\nlines of %s \ud83d", '"text"', fields={"status": 200, "total_ms": 1.5})
    assert str(entry["message"]).startswith('two\nlines of "text"')
    assert (entry["level"], entry["logger"]) == ("warning", "a.b")
    assert str(entry["time"]).endswith("+00:00")
    assert (entry["status"], entry["total_ms"]) == (200, 1.5)


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        entry = entry_of("failed", error=error)
    assert "ValueError: why" in str(entry["exception"])
    assert entry["message"] == "failed"


LIBRARIES = {
    "python_multipart.multipart": logging.WARNING,
    "mcp.client.streamable_http": logging.ERROR,
    "httpx": logging.INFO,
}


@pytest.fixture
def _restored_levels() -> Iterator[None]:
    loggers = [logging.getLogger(name.partition(".")[0]) for name in LIBRARIES]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("_restored_levels")
@pytest.mark.parametrize("name", LIBRARIES)
def test_a_library_does_not_log_each_malformed_input(name: str) -> None:
    set_up_logs("info", "console")
    assert not logging.getLogger(name).isEnabledFor(LIBRARIES[name])
    assert logging.getLogger("openai_cpu_server").isEnabledFor(logging.WARNING)
