"""The engine process's main loop, whatever the backend: start it, feed it commands, send its events."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Iterator

from openai_cpu_server.contract.messages import (
    Cancel,
    EngineOptions,
    Loading,
    Ready,
    Start,
    StartFailed,
    Submit,
)
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.engine.channel import EngineChannel
from openai_cpu_server.engine.core import EngineCore
from openai_cpu_server.errors import StartupError

Load = Callable[[EngineOptions, Callable[[float], None]], Backend]
BuildCore = Callable[[EngineOptions, Backend], EngineCore]

_EXIT_GRACE_S = 2.0


def run_engine(channel: EngineChannel, *, load: Load, build_core: BuildCore) -> None:
    """Load the model as the first command says, then serve until the client is gone."""
    start = channel.receive()
    if not isinstance(start, Start):
        return
    try:
        backend = load(start.options, lambda fraction: channel.send(Loading(fraction=fraction)))
    except StartupError as error:
        channel.send(StartFailed(message=str(error)))
        return
    try:
        channel.send(Ready(info=backend.info))
        _serve(channel, backend, build_core(start.options, backend))
    except BrokenPipeError:
        pass  # the client died while we sent: nobody is left to tell
    finally:
        backend.close()


def _serve(channel: EngineChannel, backend: Backend, core: EngineCore) -> None:
    inbox = Inbox()
    threading.Thread(target=_read, args=(channel, inbox, backend), daemon=True).start()
    while inbox.is_open:
        for command in inbox.drain(wait=not core.has_work):
            core.handle(command)
        if core.has_work:
            for event in core.step():
                channel.send(event)


def _read(channel: EngineChannel, inbox: Inbox, backend: Backend) -> None:
    """The reader thread: takes commands in while a step runs."""
    while (command := channel.receive()) is not None:
        if isinstance(command, Submit | Cancel):
            inbox.put(command)
    inbox.close()
    backend.interrupt()
    time.sleep(_EXIT_GRACE_S)
    os._exit(1)  # the main thread hangs in native code; an orphan must not stay


class Inbox:
    """Commands from the reader thread to the loop."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Submit | Cancel | None] = queue.SimpleQueue()
        self.is_open = True

    def put(self, command: Submit | Cancel) -> None:
        self._queue.put(command)

    def close(self) -> None:
        self.is_open = False
        self._queue.put(None)

    def drain(self, *, wait: bool) -> Iterator[Submit | Cancel]:
        """All commands that have come; if there is none, `wait` for one."""
        try:
            command = self._queue.get(block=wait)
            while command is not None:
                yield command
                command = self._queue.get_nowait()
        except queue.Empty:
            return
