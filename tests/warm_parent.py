"""`python -m tests.warm_parent FD ENTRY MODULE...`: imports, once, and forks for each request a process that
calls ENTRY.

Requests come on the socket FD, as `tests/warm.py` sends them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import threading
from typing import NamedTuple

_REQUEST_BYTES = 1 << 20


class Asked(NamedTuple):
    """What a forked process is to be."""

    arguments: list[str]
    env: dict[str, str]
    folder: str


def main() -> None:
    gc.disable()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    entry = pkgutil.resolve_name(sys.argv[2])
    gc.freeze()
    gc.enable()
    asked = forked_for(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(asked.env)
    sys.path[1:1] = [path for path in asked.env.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.chdir(asked.folder)
    sys.argv[1:] = asked.arguments
    sys.exit(entry())


def forked_for(control: socket.socket) -> Asked:
    """Returns in each forked process. This process ends when the socket does, and ends them first: whoever
    asked for them may have been killed."""
    ends: dict[int, socket.socket] = {}
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the tests
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake.fileno())
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select()}
            if woken in ready:
                woken.recv(4096)
                tell_of_ends(ends)
            if control in ready:
                said, files, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 3)
                if not said:
                    for pid in ends:
                        os.kill(pid, signal.SIGKILL)
                    sys.exit()
                if (pid := os.fork()) == 0:
                    become_fresh(files)
                    for mine in (control, woken, wake, *ends.values()):
                        mine.close()
                    return Asked(**json.loads(said))
                ends[pid] = socket.socket(fileno=files[0])
                tell(ends[pid], pid)
                os.close(files[1])
                os.close(files[2])


def tell_of_ends(ends: dict[int, socket.socket]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with ends.pop(pid) as waiting:
            tell(waiting, os.waitstatus_to_exitcode(status))


def tell(waiting: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):  # nobody waits
        waiting.sendall(b"%d\n" % number)


def become_fresh(files: list[int]) -> None:
    """Signals as Python sets them, and the last two files as stdout and stderr."""
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # Python 3.11 does not
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(files[1], 1)
    os.dup2(files[2], 2)
    for file in files:
        os.close(file)


if __name__ == "__main__":
    main()
