"""Whose computed prompts a call may share."""

from __future__ import annotations

import hashlib

import msgspec


def cache_namespace(*, salt: str | None, key: str | None) -> str:
    """Equal for equal pairs of salt and key identity, else different; "" where there is neither.

    A digest, for it may be written to a file beside the cached prompts.
    """
    if salt is None and key is None:
        return ""
    return hashlib.sha256(msgspec.json.encode([key, salt])).hexdigest()
