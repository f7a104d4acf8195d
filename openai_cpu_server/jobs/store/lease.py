"""Names the process that runs a batch, so that a dead one is recognised at once."""

from __future__ import annotations

import contextlib
import platform
import secrets
from pathlib import Path

import psutil

_PID_NAMESPACE = Path("/proc/self/ns/pid")


def new_holder() -> str:
    """`NODE PID STARTED NONCE` for this process; the nonce tells apart two runners in it."""
    process = psutil.Process()
    return f"{_node()} {process.pid} {process.create_time():.2f} {secrets.token_hex(4)}"


def has_died(holder: str) -> bool:
    """Whether the holder is surely dead. Only processes on this node can be checked; other leases run out."""
    node, pid, started, _ = holder.split(" ")
    if node != _node():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" != started
    except psutil.NoSuchProcess:
        return True


def _node() -> str:
    """The host and the container: process ids have a meaning only within both."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = f"/{_PID_NAMESPACE.stat().st_ino}"
    return (platform.node() or "localhost").replace(" ", "_") + namespace
