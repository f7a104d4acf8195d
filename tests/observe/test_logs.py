"""JSON lines: whatever is logged is one object on one line."""

from __future__ import annotations

import json
import logging

from openai_cpu_server.observe.logs import JsonFormatter


def line_of(record: logging.LogRecord) -> dict[str, object]:
    text = JsonFormatter().format(record)
    assert "\n" not in text
    entry = json.loads(text)
    assert isinstance(entry, dict)
    return entry


def record(
    message: str, *args: object, error: Exception | None = None, fields: dict[str, object] | None = None
) -> logging.LogRecord:
    caught = None if error is None else (type(error), error, error.__traceback__)
    extra = None if fields is None else {"fields": fields}
    return logging.getLogger("a.b").makeRecord(
        "a.b", logging.WARNING, "f", 1, message, args, caught, extra=extra
    )


def test_a_message_of_several_lines_is_one_line() -> None:
    entry = line_of(record("two\nlines of %s", '"text"'))
    assert entry["message"] == 'two\nlines of "text"'
    assert (entry["level"], entry["logger"]) == ("warning", "a.b")
    assert str(entry["time"]).endswith("+00:00")


def test_fields_stand_beside_the_message() -> None:
    entry = line_of(record("x", fields={"status": 200, "total_ms": 1.5}))
    assert (entry["status"], entry["total_ms"]) == (200, 1.5)


def test_a_traceback_is_a_field() -> None:
    try:
        raise ValueError("why")
    except ValueError as error:
        entry = line_of(record("failed", error=error))
    assert "ValueError: why" in str(entry["exception"])
    assert entry["message"] == "failed"


def test_what_is_no_unicode_is_written_all_the_same() -> None:
    assert "half" in str(line_of(record("half %s", "\ud83d"))["message"])
