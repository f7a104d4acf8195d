"""Servers for the suite from packages of the `dev` extra, so that every machine has the same."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path


def program(package: str, name: str) -> Path:
    """Return the program of an installed package, the newest of several versions."""
    found = max(file for file in metadata.files(package) or () if file.name == name)
    return Path(str(found.locate()))
