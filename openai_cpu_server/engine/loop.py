"""Main program of the engine process: a thread that computes, and one that reads commands."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from itertools import count
from queue import PriorityQueue, SimpleQueue
from typing import TypeVar

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.media import MeasuredMedia, MediaSize
from openai_cpu_server.contract.messages import PartJoiner, frame, read_command, read_frame
from openai_cpu_server.contract.model_info import Adapter, NativeModel
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.engine.base import AnyCore, CheckedAdapter, EngineWork, PreparedRequest
from openai_cpu_server.engine.cores import EngineCpuToken, SharedCpuToken
from openai_cpu_server.errors import StartupError

logger = logging.getLogger(__name__)


class EngineChannel:
    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")
        self._sending = threading.Lock()
        self._joiner = PartJoiner()

    def send(self, event: messages.EngineEvent) -> None:
        with self._sending:
            self._sock.sendall(frame(event))

    def receive(self) -> messages.Command | None:
        try:
            while (payload := read_frame(self._reader)) is not None:
                if (command := self._joiner.join(read_command(payload))) is not None:
                    return command
        except ConnectionError:  # a client that was killed with our events unread leaves a reset
            pass
        return None


_QUIET_S, _QUIET_MOST_S = 2.0, 60.0
"""Idle time after which steps are timed, and its maximum. It doubles when a request interrupts that, so that
light traffic keeps gaps."""


Loaded = TypeVar("Loaded", bound=NativeModel)
Load = Callable[[messages.EngineOptions, Callable[[float], None]], Loaded]
BuildCore = Callable[[messages.EngineOptions, Loaded, Callable[[float], None], EngineCpuToken], AnyCore]
"""The third argument takes the progress, 0 to 1."""
MaySave = Callable[[], bool]


def run_engine(
    channel: EngineChannel,
    *,
    load: Load[Loaded],
    build_core: BuildCore[Loaded],
    claim: Callable[[messages.EngineOptions], MaySave] = lambda options: lambda: True,
    confine: Callable[[messages.EngineOptions], None] = lambda options: None,
) -> None:
    """Load the model of the first command, then serve until the client is gone. `claim`: elects the writer of
    a shared cache file; `confine`: called before other threads exist."""
    start = channel.receive()
    if not isinstance(start, messages.StartEngine):
        return
    may_save = claim(start.options)
    confine(start.options)
    inbox = Inbox()
    turn = SharedCpuToken(channel.send, wake=inbox.wake) if start.options.shares_cores else EngineCpuToken()
    reader = CommandReader(channel, inbox, turn, grace_s=start.options.exit_grace_s)
    threading.Thread(target=reader.read, name="reader", daemon=True).start()
    try:
        backend = load(start.options, _weights_progress(channel, turn))
    except StartupError as error:
        with contextlib.suppress(ConnectionError):
            channel.send(messages.StartFailed(message=str(error)))
        return
    except ConnectionError:  # the model was unloaded while it was loading
        return
    reader.interrupts(backend, lambda recall: True)
    try:
        turn.load_on()
        while not backend.warm_up():
            turn.pass_on()
        core = build_core(start.options, backend, _progress(channel, messages.LoadingPhase.COSTS), turn)
    except ConnectionError:
        backend.close()
        return
    try:
        with contextlib.suppress(ConnectionError):  # the client died while we sent
            loop = EngineLoop(channel, core, inbox, turn)
            for adapter in start.options.adapters:
                loop.handle(core.check_adapter(adapter))
            _serve(loop, backend, reader)
        # Only at an orderly end: after an error in native code the cells may hold anything.
        if start.options.cache_file is not None and may_save():
            try:
                core.save_cache(start.options.cache_file, start.options.cache_file_limit)
            except OSError as error:
                logger.error("the prefix cache is not saved: %s", error)
    finally:
        backend.close()


def _progress(channel: EngineChannel, phase: messages.LoadingPhase) -> Callable[[float], None]:
    return lambda fraction: channel.send(messages.Loading(fraction=fraction, phase=phase))


def _weights_progress(channel: EngineChannel, turn: EngineCpuToken) -> Callable[[float], None]:
    """Other engines may compute between two pieces of the load."""
    send = _progress(channel, messages.LoadingPhase.WEIGHTS)

    def loaded(fraction: float) -> None:
        send(fraction)
        if fraction < 1.0:
            turn.load_on()
        else:
            turn.give_back()

    return loaded


def _serve(loop: EngineLoop, backend: NativeModel, reader: CommandReader) -> None:
    core, channel = loop.core, loop.channel

    def hand_on(command: EngineWork) -> None:
        loop.inbox.put(command)
        if core.is_worth_interrupting(command):
            backend.interrupt()

    with Preparation(
        core.prepare, core.check_adapter, measure=backend.measure, announce=channel.send, hand_on=hand_on
    ) as preparation:
        reader.interrupts(backend, core.is_worth_interrupting)
        reader.take = preparation.take
        channel.send(messages.Ready(info=backend.info))
        loop.run()


@dataclass(frozen=True)
class EngineLoop:
    channel: EngineChannel
    core: AnyCore
    inbox: Inbox
    turn: EngineCpuToken

    def run(self) -> None:
        core, inbox, turn = self.core, self.inbox, self.turn
        self._step()  # the first one reports the memory, with or without work
        quiet_s = _QUIET_S
        while inbox.is_open:
            is_quiet = not inbox.wait(self._patience_s(quiet_s))
            for command in inbox.drain():
                self.handle(command)
            if core.has_work:
                self._go_on()
            elif core.is_guessing and not inbox.has_news and self._may_measure(is_quiet=is_quiet):
                core.calibrate(lambda: inbox.has_news or turn.is_wanted)
                turn.give_back()
                quiet_s = min(2 * quiet_s, _QUIET_MOST_S) if inbox.has_news else quiet_s
            elif turn.is_held:  # granted after the work had ended
                turn.give_back()

    def handle(self, command: EngineWork) -> None:
        """Loading an adapter tries it with a token, so it needs the turn."""
        if not isinstance(command, CheckedAdapter):
            self.core.handle(command)
            return
        self.turn.load_on()
        self._send_and_settle(self.core.load_adapter(command))

    def _patience_s(self, quiet_s: float) -> float | None:
        """Return the time to wait for commands, or None for no limit."""
        if self.core.has_work:
            return 0.0 if self.turn.is_held or self.core.work is None else None
        return quiet_s if self.core.is_guessing else None

    def _may_measure(self, *, is_quiet: bool) -> bool:
        """An idle engine requests the turn as for batch work."""
        if is_quiet:
            self.turn.settle(Priority.BATCH)
        return self.turn.is_held

    def _go_on(self) -> None:
        self.turn.settle(self.core.work)
        if self.turn.is_held or self.core.work is None:
            self._step()
            return
        for event in self.core.flush(self.turn.sharing):
            self.channel.send(event)

    def _step(self) -> None:
        self._send_and_settle(self.core.step(self.turn.sharing))

    def _send_and_settle(self, events: Iterable[messages.EngineEvent]) -> None:
        for event in events:
            self.channel.send(event)
        self.turn.computed()
        self.turn.settle(self.core.work)


@dataclass(eq=False)
class CommandReader:
    """Reads commands while the engine computes, so nothing may be slow."""

    channel: EngineChannel
    inbox: Inbox
    turn: EngineCpuToken
    _: KW_ONLY
    grace_s: float
    take: Callable[[Request], None] | None = None
    """Set when ready."""
    _backend: NativeModel | None = None
    _is_worth: Callable[[messages.ShortenCpuToken], bool] = lambda recall: False

    def interrupts(self, backend: NativeModel, is_worth: Callable[[messages.ShortenCpuToken], bool]) -> None:
        self._is_worth, self._backend = is_worth, backend

    def read(self) -> None:
        try:
            while (command := self.channel.receive()) is not None:
                self._handle(command)
        finally:
            self.inbox.close()
            if isinstance(self.turn, SharedCpuToken):
                self.turn.close()
            if self._backend is not None:
                self._backend.interrupt()
            time.sleep(self.grace_s)
            os._exit(1)  # the main thread hangs in native code; an orphan must not stay

    def _handle(self, command: messages.Command) -> None:
        match command:
            case messages.StartEngine():
                pass  # once is enough
            case messages.CpuToken():
                assert isinstance(self.turn, SharedCpuToken), "turns are for engines that share cores"
                self.turn.granted(command)
            case messages.ShortenCpuToken():
                assert isinstance(self.turn, SharedCpuToken), "turns are for engines that share cores"
                self.turn.shortened(command)
                if command.interrupts and self._backend is not None and self._is_worth(command):
                    self._backend.interrupt()
            case _:
                assert self.take is not None, "requests come after `Ready`"
                self.take(command)


@dataclass(eq=False)
class Inbox:
    _commands: deque[EngineWork] = field(default_factory=deque)
    _news: threading.Event = field(default_factory=threading.Event)
    is_open: bool = True

    @property
    def has_news(self) -> bool:
        """True if a command has arrived or the client is gone."""
        return self._news.is_set() or not self.is_open

    def put(self, command: EngineWork) -> None:
        self._commands.append(command)
        self._news.set()

    def wake(self) -> None:
        self._news.set()

    def close(self) -> None:
        self.is_open = False
        self._news.set()

    def wait(self, timeout_s: float | None) -> bool:
        """Return False after a timeout."""
        return not self.is_open or self._news.wait(timeout_s)

    def drain(self) -> Iterator[EngineWork]:
        self._news.clear()
        while self._commands:
            yield self._commands.popleft()


Request = (
    messages.Submit
    | messages.CancelRequest
    | messages.ClearCache
    | messages.LoadAdapter
    | messages.UnloadAdapter
    | messages.MeasureMedia
    | messages.ShowSteps
    | messages.HideSteps
)
Prepared = messages.Submit | messages.LoadAdapter
_END = (-2, 0, None)
"""Sorts before all requests."""
_BEHIND_REQUESTS = max(Priority) + 1
_MEASURING_NICENESS = 10
"""A tenth of the CPU time of a step's thread."""


@dataclass(eq=False)
class Preparation:
    """One thread prepares constraints and checks adapters; another one measures media. Each request is
    announced before, because native code may kill the process there."""

    prepare: Callable[[messages.Submit], PreparedRequest]
    check: Callable[[Adapter], CheckedAdapter]
    _: KW_ONLY
    measure: Callable[[MediaSize], MeasuredMedia]
    announce: Callable[[messages.Handling | messages.MediaMeasured], None]
    hand_on: Callable[[EngineWork], None]
    """Called in several threads, like `announce`."""
    _queue: PriorityQueue[tuple[int, int, Prepared | None]] = field(default_factory=PriorityQueue)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _cancelled: dict[str, messages.CancelRequest | None] = field(default_factory=dict)
    """Requests in preparation, and their cancellation."""
    _sizes: SimpleQueue[MediaSize | None] = field(default_factory=SimpleQueue[MediaSize | None])
    """Sizes to be measured; None ends the thread."""

    def __post_init__(self) -> None:
        self._numbers = count(1)
        self._threads = [
            threading.Thread(target=self._work, name="prepare", daemon=True),
            threading.Thread(target=self._measure_all, name="measure", daemon=True),
        ]

    def __enter__(self) -> Preparation:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._queue.put(_END)
        self._sizes.put(None)
        for thread in self._threads:
            thread.join()

    def take(self, command: Request) -> None:
        match command:
            case messages.Submit(request=GenerationRequest() as request) if request.constraint is not None:
                with self._lock:
                    self._cancelled[request.id] = None
                self._queue.put((request.priority, next(self._numbers), command))
            case messages.LoadAdapter():
                self._queue.put((_BEHIND_REQUESTS, next(self._numbers), command))
            case messages.MeasureMedia(sizes=sizes):
                for size in sizes:
                    self._sizes.put(size)
            case messages.CancelRequest() if self._is_put_off(command):
                pass
            case _:
                self.hand_on(command)

    def _is_put_off(self, cancel: messages.CancelRequest) -> bool:
        """A request in preparation is cancelled when it has passed."""
        with self._lock:
            if cancel.id not in self._cancelled:
                return False
            self._cancelled[cancel.id] = cancel
            return True

    def _work(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client is gone
            while (command := self._queue.get()[2]) is not None:
                match command:
                    case messages.LoadAdapter(adapter=adapter):
                        self.hand_on(self.check(adapter))
                    case messages.Submit(request=request):
                        prepared = self._prepared(command)
                        with self._lock:
                            self.hand_on(prepared)
                            if (cancel := self._cancelled.pop(request.id)) is not None:
                                self.hand_on(cancel)

    def _measure_all(self) -> None:
        with contextlib.suppress(OSError):  # threads that are begun for it inherit that
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _MEASURING_NICENESS)
        with contextlib.suppress(ConnectionError):
            while (size := self._sizes.get()) is not None:
                try:
                    with contained():
                        measured = self.measure(size)
                except RequestFailed as error:
                    measured = MeasuredMedia(size, why_not=str(error))
                self.announce(messages.MediaMeasured((measured,)))

    def _prepared(self, submit: messages.Submit) -> PreparedRequest:
        cancel = self._cancelled[submit.request.id]
        if cancel is not None and cancel.reason is messages.FinishReason.CANCELLED:
            return PreparedRequest(submit, failure=RequestFailed("It was cancelled before it began."))
        self.announce(messages.Handling(id=submit.request.id))
        prepared = self.prepare(submit)
        self.announce(messages.Handling(id=None))
        return prepared
