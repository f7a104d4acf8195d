"""The body of `POST /v1/adapters`."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from openai_cpu_server.adapter_options import LARGEST_SCALE, NAME
from openai_cpu_server.api.schemas.base import Body


class AdapterBody(Body):
    """Exactly one of `path` and `source`."""

    model: str | None = None
    """The model that it changes; absent: the first."""
    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")]
    path: Annotated[str, Field(min_length=1, max_length=4096)] | None = None
    """A file in the server's `--adapter-dir`, from there on."""
    source: Annotated[str, Field(pattern=r"^hf:[^/:\s]+/[^/:\s]+/[^:\s]+$", max_length=512)] | None = None
    """`hf:OWNER/REPO/FILE`."""
    scale: Annotated[float, Field(ge=-LARGEST_SCALE, le=LARGEST_SCALE)] | None = None
