"""`openai-cpu-server key NAME`: a new random key, and what its server needs to know of it."""

from __future__ import annotations

import hashlib
import secrets
from typing import NamedTuple

from openai_cpu_server.api.access.key_file import NAME
from openai_cpu_server.errors import StartupError

_PREFIX = "sk-ocs-"
_RANDOM_BYTES = 32


class NewKey(NamedTuple):
    key: str
    """The key itself, which is kept nowhere."""
    lines: str
    """These go into the file of `--api-keys`."""


def new_key(name: str) -> NewKey:
    """Raises StartupError for a name that no file may have."""
    if not NAME.fullmatch(name):
        raise StartupError(f"{name[:64]!r} is no name for a key: use letters, digits and . _ @ -")
    key = _PREFIX + secrets.token_urlsafe(_RANDOM_BYTES)
    digest = hashlib.sha256(key.encode()).hexdigest()
    return NewKey(key, f'[keys."{name}"]\nsha256 = "{digest}"')
