"""The key that came with a request, and a digest that tells keys apart without keeping them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

SUBPROTOCOL = "openai-chat-completions"
"""Of our WebSocket; browsers want one of those that they offer to be chosen."""
_KEY_PROTOCOL = "openai-insecure-api-key."
"""A subprotocol with a key behind it, as OpenAI has it: pages cannot set headers of a WebSocket."""


def given_key(headers: Mapping[str, str]) -> bytes | None:
    """`Authorization: Bearer KEY`, else `x-api-key: KEY`; None where there is neither."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "").strip()
    return key.encode("latin-1") or None  # as it came: headers are decoded so


def offered_key(subprotocols: Sequence[str]) -> bytes | None:
    """The key among the subprotocols of a WebSocket's handshake."""
    keys = (name.removeprefix(_KEY_PROTOCOL) for name in subprotocols if name.startswith(_KEY_PROTOCOL))
    return next(keys, "").encode("latin-1") or None


def key_identity(given: bytes | None) -> str | None:
    """The same for the same key, and no way back to it; None where there is no key."""
    return None if given is None else hashlib.sha256(given).hexdigest()
