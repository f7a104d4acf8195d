"""Servers that the suite needs, from packages of the `dev` extra: the same on every machine."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def program(package: str, name: str) -> Path:
    """A program that an installed package brings; the newest, if it brings several versions."""
    found = max(file for file in metadata.files(package) or () if file.name == name)
    return Path(str(found.locate()))
