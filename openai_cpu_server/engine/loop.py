"""The engine process's main loop, for any backend: load it, take commands, compute, send events."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from openai_cpu_server.contract.messages import (
    EngineOptions,
    Loading,
    LoadingPhase,
    Ready,
    Start,
    StartFailed,
)
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.engine.channel import EngineChannel
from openai_cpu_server.engine.core import Checked, EngineCore, Work
from openai_cpu_server.engine.preparation import Preparation
from openai_cpu_server.errors import StartupError

logger = logging.getLogger(__name__)

_QUIET_S, _QUIET_MOST_S = 2.0, 60.0
"""Steps are timed when nobody has wanted anything for so long. The time doubles, up to the latter, whenever
somebody comes meanwhile: else all gaps of light traffic would be spent on that.
"""

Load = Callable[[EngineOptions, Callable[[float], None]], Backend]
BuildCore = Callable[[EngineOptions, Backend, Callable[[float], None]], EngineCore]
"""The last argument is told how far it has come, 0 to 1."""


def run_engine(channel: EngineChannel, *, load: Load, build_core: BuildCore) -> None:
    """Load the model as the first command says, then serve until the client is gone."""
    start = channel.receive()
    if not isinstance(start, Start):
        return
    try:
        backend = load(start.options, _teller(channel, LoadingPhase.WEIGHTS))
    except StartupError as error:
        channel.send(StartFailed(message=str(error)))
        return
    core = build_core(start.options, backend, _teller(channel, LoadingPhase.COSTS))
    try:
        with contextlib.suppress(ConnectionError):  # the client died while we sent: nobody is left to tell
            for adapter in start.options.adapters:
                _handle(channel, core, core.check_adapter(adapter))
            channel.send(Ready(info=backend.info))
            _serve(channel, backend, core, grace_s=start.options.exit_grace_s)
        # Only at an orderly end: after an error in native code nobody knows what the cells hold.
        _save_cache(core, start.options.cache_file)
    finally:
        backend.close()


def _teller(channel: EngineChannel, phase: LoadingPhase) -> Callable[[float], None]:
    return lambda fraction: channel.send(Loading(fraction=fraction, phase=phase))


def _serve(channel: EngineChannel, backend: Backend, core: EngineCore, *, grace_s: float) -> None:
    inbox = Inbox()

    def hand_on(command: Work) -> None:
        inbox.put(command)
        if core.is_worth_interrupting(command):
            backend.interrupt()

    check = core.check_adapter
    with Preparation(core.prepare, check, announce=channel.send, hand_on=hand_on) as preparation:
        reader = (channel, inbox, preparation, backend, grace_s)
        threading.Thread(target=_read, args=reader, daemon=True).start()
        _work(channel, inbox, core)


def _work(channel: EngineChannel, inbox: Inbox, core: EngineCore) -> None:
    _step(channel, core)  # the first tells the client how the memory stands, work or not
    quiet_s = _QUIET_S
    while inbox.is_open:
        inbox.wait(_patience_s(core, quiet_s))
        for command in inbox.drain():
            _handle(channel, core, command)
        if core.has_work:
            _step(channel, core)
        elif core.is_guessing and not inbox.has_news:
            core.calibrate(lambda: inbox.has_news)
            quiet_s = min(2 * quiet_s, _QUIET_MOST_S)


def _handle(channel: EngineChannel, core: EngineCore, command: Work) -> None:
    if not isinstance(command, Checked):
        core.handle(command)
        return
    for news in core.load_adapter(command):
        channel.send(news)


def _patience_s(core: EngineCore, quiet_s: float) -> float | None:
    """How long to wait for commands; None: for ever."""
    if core.has_work:
        return 0.0
    return quiet_s if core.is_guessing else None


def _step(channel: EngineChannel, core: EngineCore) -> None:
    for event in core.step():
        channel.send(event)


def _read(
    channel: EngineChannel, inbox: Inbox, preparation: Preparation, backend: Backend, grace_s: float
) -> None:
    """The reader thread: takes commands in while a step runs, and does nothing slow with them."""
    try:
        while (command := channel.receive()) is not None:
            if isinstance(command, Start):
                continue  # once is enough
            preparation.take(command)
    finally:
        inbox.close()
        backend.interrupt()
        time.sleep(grace_s)
        os._exit(1)  # the main thread hangs in native code; an orphan must not stay


def _save_cache(core: EngineCore, path: str | None) -> None:
    if path is None:
        return
    try:
        core.save_cache(path)
    except OSError as error:
        logger.error("the prefix cache is not saved: %s", error)


class Inbox:
    """Commands on their way from other threads to the loop."""

    def __init__(self) -> None:
        self._commands: deque[Work] = deque()
        self._news = threading.Event()
        self.is_open = True

    @property
    def has_news(self) -> bool:
        """A command has come, or it is known that no more will."""
        return self._news.is_set() or not self.is_open

    def put(self, command: Work) -> None:
        self._commands.append(command)
        self._news.set()

    def close(self) -> None:
        self.is_open = False
        self._news.set()

    def wait(self, timeout_s: float | None) -> None:
        """Wait for news, `None` as long as it takes."""
        if self.is_open:
            self._news.wait(timeout_s)

    def drain(self) -> Iterator[Work]:
        """Take out all commands that have come."""
        self._news.clear()
        while self._commands:
            yield self._commands.popleft()
