"""The failures of servers and loads, and how a report names them."""

from __future__ import annotations

import traceback
from pathlib import Path


class Failed(Exception):
    """Something that is measured, or its measuring, went wrong; the message says what."""


def described(error: Exception) -> str:
    """At least one line. It names the place in the code only for unforeseen failures."""
    if isinstance(error, Failed):
        return str(error) or type(error).__name__
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


def first_line(text: str) -> str:
    """The first line of a failure, for a table."""
    return text.strip().partition("\n")[0]
