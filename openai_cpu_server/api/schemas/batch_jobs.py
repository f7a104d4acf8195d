"""The body of `POST /v1/batches`, and the form of `POST /v1/files`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from openai_cpu_server.api.schemas.base import Body
from openai_cpu_server.api.schemas.generation import Notes

Lifetime = Annotated[int, Field(ge=3600, le=2592000)]
"""Seconds: an hour to 30 days."""


class ExpiresAfter(Body):
    anchor: Literal["created_at"]
    seconds: Lifetime


class BatchBody(Body):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: Notes | None = None
    output_expires_after: ExpiresAfter | None = None
