"""What a parent needs to start a child process with a socket between them, and to say what it died of."""

from __future__ import annotations

import signal
import socket
import subprocess
from typing import TypedDict

from openai_cpu_server.sandbox.environment import child_environment


class SpawnOptions(TypedDict):
    """Arguments of `subprocess.Popen` and of `asyncio.create_subprocess_exec`."""

    pass_fds: tuple[int, ...]
    stdin: int
    start_new_session: bool
    env: dict[str, str]


def spawn_options(theirs: socket.socket) -> SpawnOptions:
    """For a child that gets this end of a socket pair; its command names the file descriptor.

    It gets a session of its own: a terminal's Ctrl-C is for the parent, from the child's first moment on; and
    of the environment what native code needs, for it has no business with keys.
    """
    return SpawnOptions(
        pass_fds=(theirs.fileno(),),
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        env=child_environment(),
    )


def death_cause(exit_status: int | None) -> str:
    """One of few words, for counters: the signal's name, `exit_1` and the like, `unknown`. A negative status
    is a signal's number."""
    if exit_status is None:
        return "unknown"
    if exit_status >= 0:
        return f"exit_{exit_status}"
    try:
        return signal.Signals(-exit_status).name
    except ValueError:  # real-time signals have no name
        return f"signal_{-exit_status}"
