"""Reads names of models on the hub: `hf:OWNER/REPO`, `hf:OWNER/REPO:QUANT`, `hf:OWNER/REPO/FILE`."""

from __future__ import annotations

import re

import msgspec

from openai_cpu_server.errors import StartupError

PREFIX = "hf:"
_NAME = re.compile(rf"{PREFIX}(?P<repo>[^/:\s]+/[^/:\s]+)(?:/(?P<file>[^:]+)|:(?P<quant>[\w.-]+))?")


class HubName(msgspec.Struct, frozen=True, kw_only=True):
    repo: str
    file: str | None = None
    """The file, perhaps in folders; None: the best of the repository."""
    quant: str | None = None

    def __str__(self) -> str:
        ending = f"/{self.file}" if self.file else f":{self.quant}" if self.quant else ""
        return f"{PREFIX}{self.repo}{ending}"


def parse_hub_name(text: str) -> HubName:
    """Read a name. Raises StartupError."""
    match = _NAME.fullmatch(text)
    if match is None or not {"", ".", ".."}.isdisjoint((match["file"] or "file").split("/")):
        raise StartupError(f"{text!r} is not hf:OWNER/REPO, hf:OWNER/REPO/FILE or hf:OWNER/REPO:QUANT")
    return HubName(repo=match["repo"], file=match["file"], quant=match["quant"])
