"""`completion_window`: OpenAI's `24h`, or any other number of hours, minutes and seconds."""

from __future__ import annotations

import re

from openai_cpu_server.errors import InvalidRequest

_SPAN = re.compile(r"(?=[0-9])(?:([0-9]{1,4})h)?(?:([0-9]{1,5})m)?(?:([0-9]{1,7})s)?")
_MAX_S = 30 * 24 * 3600


def window_seconds(text: str) -> int:
    """The seconds of `24h`, `90m`, `1h30m` or `45s`. Raises InvalidRequest."""
    found = _SPAN.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total = 3600 * hours + 60 * minutes + seconds
    if not 0 < total <= _MAX_S:
        raise InvalidRequest(
            "Invalid value for 'completion_window': expected a span such as '24h', '90m' or '1h30m', "
            "at most 720h.",
            param="completion_window",
            code="invalid_value",
        )
    return total
