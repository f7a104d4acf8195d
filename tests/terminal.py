"""A process whose standard error is a terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from typing import NamedTuple


class Seen(NamedTuple):
    returncode: int
    output: bytes
    terminal: bytes


def seen_on_a_terminal(command: Sequence[str], *, env: Mapping[str, str] = os.environ) -> Seen:
    """Run a command to its end. Its standard output must fit into a pipe."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 120, 0, 0))
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, env={**env, "TERM": "xterm", "COLUMNS": "120"}
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the terminal is closed with its last holder
        while chunk := os.read(ours, 4096):
            seen += chunk
    os.close(ours)
    output, _ = process.communicate()
    return Seen(process.returncode, output, seen)
