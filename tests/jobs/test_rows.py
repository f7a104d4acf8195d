"""Lines of JSONL: reading, checks, results."""

from __future__ import annotations

import json

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.jobs.jobs import window_seconds
from openai_cpu_server.jobs.run.rows import (
    MAX_ERRORS,
    BadLine,
    BatchRow,
    InputCheck,
    InputLine,
    LineSplitter,
    RowAnswer,
    expired,
    parse_row,
    row_result,
)
from tests.jobs.support import URL, row


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize(
    ("content", "most_bytes", "expected"),
    [
        (b"\xef\xbb\xbfone\r\n\n  two \n\xc3\xa9\nlast", 100, [b"one", b"", b"two", "é".encode(), b"last"]),
        (b"ten bytes.\n" + b" " * 500 + b"\nlast", 10, [b"ten bytes.", b" " * 11, b"last"]),
    ],
    ids=["short lines", "a line that is too large is cut one byte after the limit"],
)
def test_lines_do_not_depend_on_how_the_file_is_cut(
    size: int, content: bytes, most_bytes: int, expected: list[bytes]
) -> None:
    splitter, lines = LineSplitter(most_bytes), []
    for start in range(0, len(content), size):
        lines += splitter.feed(content[start : start + size])
    lines += splitter.end()
    assert [(line.number, line.content) for line in lines] == [*enumerate(expected, start=1)]


def test_a_row_has_its_body_unchanged() -> None:
    line = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{ "x": 1.50 }}'
    assert parse_row(InputLine(9, line), URL) == BatchRow(9, "a", b'{ "x": 1.50 }')


@pytest.mark.parametrize(
    ("content", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[1]", "invalid_json_line", None),
        (b'{"a": "\xff"}', "invalid_json_line", None),
        (b"[" * 100_000, "invalid_json_line", None),
        ({}, "missing_required_parameter", "method"),
        ({**row(0), "method": None}, "missing_required_parameter", "method"),
        ({**row(0), "method": 1}, "invalid_value", "method"),
        ({**row(0), "method": "PUT"}, "invalid_method", "method"),
        ({**row(0), "url": "/v1/chat/completions"}, "mismatched_endpoint", "url"),
        ({**row(0), "custom_id": ""}, "invalid_value", "custom_id"),
        ({**row(0), "custom_id": "x" * 513}, "invalid_value", "custom_id"),
        ({**row(0), "custom_id": 7}, "invalid_value", "custom_id"),
        ({**row(0), "body": []}, "invalid_value", "body"),
        ({**row(0), "bodi": {}}, "unknown_parameter", "bodi"),
    ],
)
def test_a_bad_line_is_named(content: bytes | dict[str, object], code: str, param: str | None) -> None:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    with pytest.raises(BadLine) as bad:
        parse_row(InputLine(1, data), URL)
    assert (bad.value.code, bad.value.param) == (code, param)


def errors_of(
    *contents: bytes, max_rows: int = 1000, max_line_bytes: int = 1000
) -> list[tuple[str, int | None]]:
    check = InputCheck(URL, max_rows=max_rows, max_line_bytes=max_line_bytes)
    check.feed([InputLine(number, content) for number, content in enumerate(contents, 1)])
    return [(error.code, error.line) for error in check.errors()]


def row_bytes(number: int) -> bytes:
    return json.dumps(row(number)).encode()


@pytest.mark.parametrize(
    ("contents", "limits", "expected"),
    [
        ([], {}, [("empty_file", None)]),
        ([row_bytes(1), row_bytes(2), row_bytes(1)], {}, [("duplicate_custom_id", 3)]),
        ([row_bytes(1), row_bytes(2), row_bytes(3)], {"max_rows": 2}, [("too_many_requests_in_file", None)]),
        ([row_bytes(1)], {"max_line_bytes": 10}, [("request_too_large", 1)]),
        ([b"x"] * 500, {}, [("invalid_json_line", line) for line in range(1, MAX_ERRORS + 1)]),
    ],
    ids=["empty", "a repeated id", "many rows", "a long line", "only the first errors are reported"],
)
def test_invalid_batch_files(
    contents: list[bytes], limits: dict[str, int], expected: list[tuple[str, int | None]]
) -> None:
    assert errors_of(*contents, **limits) == expected


@pytest.mark.parametrize(
    "contents",
    [[row_bytes(number) for number in range(3)], [b"x"] * MAX_ERRORS, [b""] * 100_001],
    ids=["many rows", "many errors", "many blank lines"],
)
def test_reading_an_invalid_batch_file_stops(contents: list[bytes]) -> None:
    check = InputCheck(URL, max_rows=2 if len(contents) == 3 else 1000, max_line_bytes=1000)
    lines = [InputLine(number, content) for number, content in enumerate(contents, 1)]
    assert check.feed(lines)
    errors = check.errors()
    assert not check.feed([InputLine(len(lines) + 1, b"{")])
    assert check.errors() == errors != []


def test_the_result_line_of_an_answer() -> None:
    body = b'{"usage":{"prompt_tokens":5,"completion_tokens":7,"prompt_tokens_details":{"cached_tokens":2}}}'
    result = row_result(
        "batch_1", BatchRow(4, "a", b"{}"), RowAnswer(status=200, request_id="req_9", body=body)
    )
    assert result.content == (
        b'{"id":"batch_req_c83427e874c088ffdc5d2e93","custom_id":"a",'
        b'"response":{"status_code":200,"request_id":"req_9","body":' + body + b'},"error":null}\n'
    )
    assert (result.line, result.is_ok) == (4, True)
    assert (result.input_tokens, result.cached_tokens, result.output_tokens) == (5, 2, 7)


def test_the_result_line_of_an_error_has_its_status() -> None:
    answer = RowAnswer(status=400, request_id="req_9", body=b'{"error":{"code":"x"}}')
    result = row_result("batch_1", BatchRow(4, "a", b"{}"), answer)
    assert not result.is_ok
    line = json.loads(result.content)
    assert line["response"] == {"status_code": 400, "request_id": "req_9", "body": {"error": {"code": "x"}}}
    assert line["error"] is None


def test_the_result_line_of_an_expired_row() -> None:
    line = json.loads(expired("batch_1", BatchRow(4, "a", b"{}")).content)
    assert (line["custom_id"], line["response"], line["error"]["code"]) == ("a", None, "batch_expired")


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86400), ("90m", 5400), ("1h30m", 5400), ("45s", 45), ("720h", 2592000)]
)
def test_windows(text: str, seconds: int) -> None:
    assert window_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "24", "24 h", "-1h", "0h", "721h", "1d", "30m1h", "٣h", "24h\n"])
def test_invalid_windows(text: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        window_seconds(text)
    assert refusal.value.param == "completion_window"
