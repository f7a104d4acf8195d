"""All keys of the server. They are looked up in constant time, and read again on demand."""

from __future__ import annotations

import hashlib
import hmac
import logging
from pathlib import Path

from openai_cpu_server.api.access.access import Access, Callers
from openai_cpu_server.api.access.key_file import read_keys
from openai_cpu_server.api.access.keys import ALL_SCOPES, Key
from openai_cpu_server.errors import StartupError

logger = logging.getLogger(__name__)


class KeyRing:
    """`api_key` is one key for everything, `path` a file of keys. With neither the server is open."""

    def __init__(
        self,
        api_key: str | None = None,
        path: Path | None = None,
        *,
        is_open_to_gateways: bool = False,
    ) -> None:
        """`is_open_to_gateways`: what gateways read needs no key; those whose keys open more of it see more.

        Raises StartupError for a file that cannot be used.
        """
        self._is_open_to_gateways = is_open_to_gateways
        self._own = () if api_key is None else (_shared_key(api_key),)
        self._path = path
        self._keys = self._own + (read_keys(path) if path else ())

    @property
    def is_open(self) -> bool:
        return not self._keys

    def admits_strangers(self, access: Access) -> bool:
        return self._is_open_to_gateways and access.callers is Callers.GATEWAYS

    def with_digest(self, digest: bytes) -> Key | None:
        """The key with this digest. It is compared with every key, whichever fits, so that time tells
        nothing."""
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def named(self, name: str) -> Key | None:
        """The key of this holder, as it is now."""
        return next((key for key in self._keys if key.name == name), None)

    def reload(self) -> None:
        """Reads the file again, if there is one. A broken file changes nothing but the log."""
        if self._path is None:
            return
        try:
            self._keys = self._own + read_keys(self._path)
        except StartupError as error:
            logger.error("the keys stay as they were: %s", error)
        else:
            logger.info("%d API keys read from %s", len(self._keys) - len(self._own), self._path)


def _shared_key(key: str) -> Key:
    return Key(name="", digest=hashlib.sha256(key.encode()).digest(), scopes=ALL_SCOPES)
