"""How a model comes from the hub: what the process that fetches it says, and clients are told."""

from __future__ import annotations

import msgspec


class PullStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line of `pull --json`, and an event of `POST /v1/models/pull`."""

    status: str
    """`asking`, `asked`, `pulling`, `verifying` or `success`."""
    file: str | None = None
    digest: str | None = None
    total: int | None = None
    """Bytes of the file."""
    completed: int | None = None
    """Those that are here."""
    name: str | None = None
    """What `--model` takes for the very file."""
    path: str | None = None
    projector: str | None = None
    """The file that it sees pictures with."""
    memory: str | None = None
    """Whether it will fit into this machine's free memory, in words."""
    fits: bool | None = None


class PullError(msgspec.Struct, frozen=True):
    """The last line of one that failed."""

    error: str
