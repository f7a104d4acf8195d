"""A process as a person sees it: its standard error is a terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Sequence
from typing import NamedTuple


class Seen(NamedTuple):
    returncode: int
    output: bytes
    terminal: bytes


def seen_on_a_terminal(command: Sequence[str], *, timeout_s: float = 30) -> Seen:
    """Its end, its standard output, and what the terminal was sent. The output has to fit into a pipe."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal is gone when its last holder is
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    output, _ = process.communicate(timeout=timeout_s)
    return Seen(process.returncode, output, seen)
