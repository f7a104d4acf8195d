"""Log records as text lines or JSON, with optional `fields`."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Literal

LogFormat = Literal["console", "json"]
_CONSOLE = "%(asctime)s %(levelname)s %(message)s"
_LEAST_LEVELS = {
    **dict.fromkeys(("httpx", "httpx2", "urllib3", "opentelemetry"), logging.WARNING),
    "python_multipart": logging.ERROR,
    "mcp": logging.CRITICAL,
}
"""`python_multipart` warns of each malformed form, whose request is logged anyway. `mcp` logs session ids and
tracebacks of invalid replies; `McpConnection` logs its failures."""


def set_up_logs(level: str, log_format: LogFormat) -> None:
    """Send all records, also the web server's, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(_CONSOLE))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    for library, least in _LEAST_LEVELS.items():
        logging.getLogger(library).setLevel(least)


class JsonFormatter(logging.Formatter):
    """JSON line: time (UTC), level, logger, message, and `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        fields = getattr(record, "fields", {})
        assert isinstance(fields, Mapping)
        return json.dumps({**entry, **fields}, default=str)
