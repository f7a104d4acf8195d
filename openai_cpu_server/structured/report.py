"""What could not be enforced: it is refused at once, or noted, as the request wishes."""

from __future__ import annotations

import msgspec

from openai_cpu_server.structured.errors import UnsupportedSchema


class Unenforced(msgspec.Struct, frozen=True):
    """A keyword that was left out of the grammar."""

    path: str
    keyword: str


class Report:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._found: dict[Unenforced, None] = {}

    def refuse(self, path: str, keyword: str, reason: str) -> None:
        """Refuse a keyword. Raises UnsupportedSchema, unless unenforced keywords are only to be noted."""
        if self._strict:
            raise UnsupportedSchema(path, keyword, reason)
        self._found[Unenforced(path, keyword)] = None

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return tuple(self._found)
