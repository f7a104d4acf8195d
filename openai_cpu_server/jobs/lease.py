"""Who runs a batch: one process at a time, told apart so that a dead one is recognised at once."""

from __future__ import annotations

import contextlib
import platform
import secrets
from pathlib import Path

import psutil

_PID_NAMESPACE = Path("/proc/self/ns/pid")


def new_holder() -> str:
    """`NODE PID STARTED NONCE` of this process; the nonce tells two runners in it apart."""
    process = psutil.Process()
    return f"{_node()} {process.pid} {process.create_time():.2f} {secrets.token_hex(4)}"


def has_died(holder: str) -> bool:
    """Known only of processes that are visible from here; the lease of others runs out."""
    node, pid, started, _ = holder.split(" ")
    if node != _node():
        return False
    try:
        return f"{psutil.Process(int(pid)).create_time():.2f}" != started
    except psutil.NoSuchProcess:
        return True


def _node() -> str:
    """The host, and within it the container: process ids mean nothing outside of either."""
    namespace = ""
    with contextlib.suppress(OSError):
        namespace = f"/{_PID_NAMESPACE.stat().st_ino}"
    return (platform.node() or "localhost").replace(" ", "_") + namespace
