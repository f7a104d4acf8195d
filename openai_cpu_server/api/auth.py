"""Bearer keys, compared in constant time."""

from __future__ import annotations

import hmac


def is_authorized(header: str | None, api_key: str) -> bool:
    """`header`: the value of `Authorization`, or None where there is none."""
    scheme, _, key = (header or "").partition(" ")
    raw = key.strip().encode("latin-1")  # as it came: headers are decoded so
    return hmac.compare_digest(raw, api_key.encode()) and scheme.lower() == "bearer"
