from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Union

import msgspec

from openai_cpu_server.errors import ServerError, TooManyValues
from openai_cpu_server.jobs.records import LineError, RowResult
from openai_cpu_server.json_size import MOST_TOKENS, check_json_size

_BOM = b"\xef\xbb\xbf"


class InputLine(msgspec.Struct, frozen=True):
    number: int
    content: bytes


class LineSplitter:
    """Returns one byte too much of a line that is too large, and blank lines without content."""

    def __init__(self, max_line_bytes: int) -> None:
        self._number = 0
        self._max_line_bytes = max_line_bytes
        self._open: list[bytes] = []
        self._num_open = 0

    def feed(self, part: bytes) -> list[InputLine]:
        *ended, rest = part.split(b"\n")
        lines = []
        for piece in ended:
            self._add(piece)
            lines.append(self._line())
        self._add(rest)
        return lines

    def end(self) -> list[InputLine]:
        return [self._line()] if self._open else []

    def _add(self, piece: bytes) -> None:
        piece = piece[: self._max_line_bytes + 1 - self._num_open]
        if piece:
            self._open.append(piece)
            self._num_open += len(piece)

    def _line(self) -> InputLine:
        content, self._open, self._num_open = b"".join(self._open), [], 0
        self._number += 1
        if len(content) <= self._max_line_bytes:
            content = (content.removeprefix(_BOM) if self._number == 1 else content).strip()
        return InputLine(self._number, content)


_FIELDS = ("custom_id", "method", "url", "body")
_MAX_ID_CHARS = 512


class BatchRow(msgspec.Struct, frozen=True):
    line: int
    custom_id: str
    body: bytes


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    status: int
    request_id: str
    body: bytes
    retry_after_s: float | None = None
    """Unset if the answer is final."""
    pauses: bool = False
    """The owner's other rows must wait as well."""


RunRow = Callable[[str, bytes, str], Awaitable[RowAnswer]]
"""Runs a request (URL, body, owner) at batch priority. Raises only cancellation."""


class BadLine(ServerError):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class _CachedTokens(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: Union[_CachedTokens, None] = None
    input_tokens: int = 0
    output_tokens: int = 0
    input_tokens_details: Union[_CachedTokens, None] = None


class _Answer(msgspec.Struct, frozen=True):
    usage: Union[_Usage, None] = None


_answer = msgspec.json.Decoder(_Answer)


def parse_row(line: InputLine, endpoint: str) -> BatchRow:
    fields = _fields(line.content)
    method, url = _text(fields, "method"), _text(fields, "url")
    if method != "POST":
        raise BadLine(
            "invalid_method", f"Invalid value for 'method': '{method[:64]}'; it must be 'POST'.", "method"
        )
    if url != endpoint:
        message = f"The 'url' of this request is '{url[:64]}', but the batch's endpoint is '{endpoint}'."
        raise BadLine("mismatched_endpoint", message, "url")
    custom_id = _text(fields, "custom_id")
    if not 0 < len(custom_id) <= _MAX_ID_CHARS:
        message = f"Invalid value for 'custom_id': expected 1 to {_MAX_ID_CHARS} characters."
        raise BadLine("invalid_value", message, "custom_id")
    body = _required(fields, "body")
    if not body.startswith(b"{"):
        raise BadLine("invalid_value", "Invalid value for 'body': expected an object.", "body")
    return BatchRow(line.number, custom_id, body)


def url_of(line: InputLine) -> str:
    return _text(_fields(line.content), "url")


def row_result(batch_id: str, row: BatchRow, answer: RowAnswer) -> RowResult:
    """2xx goes to the output file, all else to the error file."""
    is_ok = 200 <= answer.status < 300
    response = {
        "status_code": answer.status,
        "request_id": answer.request_id,
        "body": msgspec.Raw(answer.body),
    }
    usage = (_answer.decode(answer.body).usage if is_ok else None) or _Usage()
    details = usage.prompt_tokens_details or usage.input_tokens_details
    return RowResult(
        line=row.line,
        is_ok=is_ok,
        content=_output_line(batch_id, row, response=response),
        input_tokens=usage.prompt_tokens or usage.input_tokens,
        cached_tokens=details.cached_tokens if details else 0,
        output_tokens=usage.completion_tokens or usage.output_tokens,
    )


def expired(batch_id: str, row: BatchRow) -> RowResult:
    message = "This request could not be executed before the completion window expired."
    content = _output_line(batch_id, row, error={"code": "batch_expired", "message": message})
    return RowResult(line=row.line, is_ok=False, content=content)


def _output_line(
    batch_id: str,
    row: BatchRow,
    *,
    response: Mapping[str, object] | None = None,
    error: Mapping[str, str] | None = None,
) -> bytes:
    """The id stays the same if the row is computed again."""
    digest = hashlib.sha256(f"{batch_id}/{row.line}".encode()).hexdigest()[:24]
    line = {"id": f"batch_req_{digest}", "custom_id": row.custom_id, "response": response, "error": error}
    return msgspec.json.encode(line) + b"\n"


def _fields(content: bytes) -> dict[str, msgspec.Raw]:
    try:
        check_json_size(content, most_numbers=MOST_TOKENS)
    except TooManyValues as error:
        raise BadLine("too_many_values", str(error)) from None
    try:
        content.decode()  # what stays raw is not looked at by the decoder
        fields = msgspec.json.decode(content, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        raise BadLine("invalid_json_line", "This line is not a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLine("invalid_json_line", "This line is not parseable as valid JSON.") from None
    unknown = next((name for name in fields if name not in _FIELDS), None)
    if unknown is not None:
        raise BadLine("unknown_parameter", f"Unknown parameter: '{unknown[:64]}'.", unknown[:64])
    return fields


def _required(fields: dict[str, msgspec.Raw], name: str) -> bytes:
    raw = bytes(fields.get(name, b"null")).strip()
    if raw == b"null":
        raise BadLine("missing_required_parameter", f"Missing required parameter: '{name}'.", name)
    return raw


def _text(fields: dict[str, msgspec.Raw], name: str) -> str:
    try:
        return msgspec.json.decode(_required(fields, name), type=str)
    except msgspec.DecodeError:
        raise BadLine("invalid_value", f"Invalid value for '{name}': expected a string.", name) from None


MAX_ERRORS = 100
"""Reported errors, the first ones."""
_MOST_BLANK_LINES = 100_000


class InputCheck:
    def __init__(self, endpoint: str, *, max_rows: int, max_line_bytes: int) -> None:
        self.num_rows = self._num_blank_lines = 0
        self._endpoint = endpoint
        self._max_rows = max_rows
        self._max_line_bytes = max_line_bytes
        self._errors: list[LineError] = []
        self._ids: set[str] = set()

    def feed(self, lines: Sequence[InputLine]) -> bool:
        """Return False if further lines cannot change the errors."""
        for line in lines:
            if self._is_full or len(self._errors) == MAX_ERRORS:
                return False
            if not line.content:
                self._num_blank_lines += 1
                continue
            self.num_rows += 1
            try:
                self._check(line)
            except BadLine as bad:
                self._errors.append(LineError(bad.code, str(bad), bad.param, line.number))
        return True

    def errors(self) -> list[LineError]:
        if self._is_full:
            blank = f"or more than {_MOST_BLANK_LINES} blank lines"
            message = f"The input file has more than {self._max_rows} requests, {blank}."
            return [LineError("too_many_requests_in_file", message), *self._errors][:MAX_ERRORS]
        return self._errors if self.num_rows else [LineError("empty_file", "The input file is empty.")]

    @property
    def _is_full(self) -> bool:
        return self.num_rows > self._max_rows or self._num_blank_lines > _MOST_BLANK_LINES

    def _check(self, line: InputLine) -> None:
        if len(line.content) > self._max_line_bytes:
            raise BadLine("request_too_large", f"This line is larger than {self._max_line_bytes} bytes.")
        row = parse_row(line, self._endpoint)
        if row.custom_id in self._ids:
            message = f"The custom_id '{row.custom_id[:64]}' is a duplicate: it must be unique in a batch."
            raise BadLine("duplicate_custom_id", message, "custom_id")
        self._ids.add(row.custom_id)
