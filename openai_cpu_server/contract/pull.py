from __future__ import annotations

import msgspec


class PullStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Line of `pull --json`, and event of `POST /v1/models/pull`."""

    status: str
    """`asking`, `asked`, `pulling`, `verifying` or `success`."""
    file: str | None = None
    digest: str | None = None
    total: int | None = None
    completed: int | None = None
    name: str | None = None
    """Value of `--model` that names exactly this file."""
    path: str | None = None
    projector: str | None = None
    memory: str | None = None
    fits: bool | None = None


class PullError(msgspec.Struct, frozen=True):
    error: str
