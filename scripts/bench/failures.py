"""Failures of servers and loads, and their names in reports."""

from __future__ import annotations

import traceback
from pathlib import Path


class Failed(Exception):
    """Failure of a measurement or of the measured thing, described by its message."""


def described(error: Exception) -> str:
    """Return at least one line, with the place in the code only for unforeseen failures."""
    if isinstance(error, Failed):
        return str(error) or type(error).__name__
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
