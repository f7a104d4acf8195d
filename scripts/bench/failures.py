"""What can go wrong with a server or a load, and how a report tells it."""

from __future__ import annotations

import traceback
from pathlib import Path


class Failed(Exception):
    """Something that is measured, or its measuring, went wrong; the message says what."""


def described(error: Exception) -> str:
    """At least a line. Where it happened is told of what nobody foresaw."""
    if isinstance(error, Failed):
        return str(error) or type(error).__name__
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def first_line(text: str) -> str:
    """For a table."""
    return text.strip().partition("\n")[0]
