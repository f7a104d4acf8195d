"""Bearer keys: compared in constant time, and told apart without being kept."""

from __future__ import annotations

import hashlib
import hmac


def is_authorized(header: str | None, api_key: str) -> bool:
    """`header`: the value of `Authorization`, or None where there is none."""
    given = _bearer(header)
    return given is not None and hmac.compare_digest(given, api_key.encode())


def key_identity(header: str | None) -> str | None:
    """The same for the same key, and no way back to it; None where there is no key."""
    given = _bearer(header)
    return hashlib.sha256(given).hexdigest() if given else None


def _bearer(header: str | None) -> bytes | None:
    scheme, _, key = (header or "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    return key.strip().encode("latin-1")  # as it came: headers are decoded so
