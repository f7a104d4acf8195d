"""Engine process from its start to its death, and the watchdog that kills it if it hangs. Its limits are
generous, because a busy machine makes steps a hundred times slower, and a restart harms every client."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

import msgspec
import psutil

from openai_cpu_server.child_processes.spawn import spawn_options
from openai_cpu_server.contract import messages
from openai_cpu_server.engine_client.deaths import Death, MemoryKiller

_AT_ONCE = 1_000_000
"""Tokens or bytes to frame at once, which takes milliseconds."""


class ClientChannel:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: deque[messages.EngineMessage] = deque()
        """Sent when the engine has read the previous messages."""
        self._resuming: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, *commands: messages.Command) -> None:
        """Send commands, in pieces with other work of the loop between them if they are large. Commands to a
        dead engine are lost."""
        is_waiting = bool(self._waiting)
        for command in commands:
            self._waiting.extend(messages.in_parts(command))
        if not is_waiting:
            self._send_some()

    def _send_some(self) -> None:
        if self._writer.is_closing():
            self._waiting.clear()
            return
        frames, size = [], 0
        try:
            while self._waiting and size < _AT_ONCE:
                message = self._waiting.popleft()
                size += _size(message)
                frames.append(messages.frame(message))
        finally:  # a message that cannot be framed keeps back no other
            self._writer.write(b"".join(frames))
            if self._waiting:
                self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._send_some()

    async def receive(self) -> messages.EngineEvent | None:
        """Return None when the engine is gone. Raises `msgspec.DecodeError`."""
        try:
            (length,) = messages.LENGTH.unpack(await self._reader.readexactly(messages.LENGTH.size))
            payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return messages.read_event(payload)

    def close(self) -> None:
        self._writer.close()


def _size(message: messages.EngineMessage) -> int:
    if isinstance(message, messages.MediaPart):
        return len(message.data)
    return message.request.num_tokens if isinstance(message, messages.Submit) else 0


def resident_bytes(pid: int | None = None) -> int:
    """Memory, read at most once per second; 0 if unreadable."""
    return _resident_bytes(pid, int(time.monotonic()))


@functools.lru_cache(maxsize=64)
def _resident_bytes(pid: int | None, second: int) -> int:
    """`/health` needs it six times. Reads give up the interpreter's lock, which threads that decode 20 MB
    return 5 ms later."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


class EngineProcess:
    """Owner of a child process, which ends with its socket."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: ClientChannel, *, grace_s: float
    ) -> None:
        self.is_closing = False
        """Further messages are ignored."""
        self.send, self.receive = channel.send, channel.receive
        self._process = process
        self._channel = channel
        self._grace_s = grace_s

    @classmethod
    async def spawn(cls, command: Sequence[str], options: messages.EngineOptions) -> EngineProcess:
        """Start `command` with the socket's descriptor as last argument, and send the options. Raises
        OSError, and RuntimeError without a thread to wait for its end."""
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await ClientChannel.open(ours)
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), **spawn_options(theirs)
                )
            except BaseException:
                channel.close()
                raise
        child = cls(process, channel, grace_s=options.exit_grace_s)
        child.send(messages.StartEngine(options=options))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Unset while it lives; negative for a signal."""
        return self._process.returncode

    @property
    def rss_bytes(self) -> int:
        return resident_bytes(self.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        self.is_closing = True
        self._channel.close()
        try:
            await asyncio.wait_for(self._process.wait(), self._grace_s)
        except asyncio.TimeoutError:
            self.kill()
            await self._process.wait()


logger = logging.getLogger(__name__)

TICK_S = 0.5
_FACTOR = 300.0


class HangLimits(msgspec.Struct, frozen=True, kw_only=True):
    step_s: float | None = 60.0
    """Longest silence in a step, or 300 times its expected time if that is longer. None: no limit."""
    load_s: float | None = 1800.0
    """Longest silence while the model is loaded and measured. None: no limit."""


class HangDetector:
    """Timer of one process's silence."""

    def __init__(self, limits: HangLimits, *, now_s: float) -> None:
        self.silence_s = 0.0
        """Silence during work, counting only time in which this process ran."""
        self.handling_s: float | None = None
        """Time of handling a request outside of steps, or None."""
        self._limits = limits
        self._checked_s = now_s
        self._expected_s = 0.0

    def news(self) -> None:
        self.silence_s = 0.0

    def step_begins(self, expected_ms: float) -> None:
        self._expected_s = expected_ms / 1000

    def handling(self, request_id: str | None) -> None:
        self.handling_s = None if request_id is None else 0.0

    @property
    def stuck_s(self) -> float:
        return max(self.silence_s, self.handling_s or 0.0)

    def is_hung(self, now_s: float, *, is_loading: bool, is_pending: bool, is_waiting: bool = False) -> bool:
        """`is_waiting`: another engine computes. A long gap between two checks counts as a short one, because
        this process had no CPU then."""
        waited = min(now_s - self._checked_s, 2 * TICK_S)
        self._checked_s = now_s
        is_due = (is_loading or is_pending) and not is_waiting
        self.silence_s = self.silence_s + waited if is_due else 0.0
        if self.handling_s is not None:
            self.handling_s += waited
        limit_s = self._limits.load_s if is_loading else self._limits.step_s
        if limit_s is not None and not is_loading:
            limit_s = max(limit_s, _FACTOR * self._expected_s)
        return limit_s is not None and self.stuck_s > limit_s


@dataclass(eq=False)
class Watchdog:
    """Receiver of events, which checks the process every `TICK_S` until `stop`."""

    process: EngineProcess
    _: KW_ONLY
    limits: HangLimits
    killer: MemoryKiller
    clock: Callable[[], float]
    is_loading: Callable[[], bool]
    is_pending: Callable[[], bool]
    is_waiting: Callable[[], bool]
    _hung_s: float | None = None
    _unreadable: str | None = None

    def __post_init__(self) -> None:
        self._detector = HangDetector(self.limits, now_s=self.clock())
        self._task = asyncio.create_task(self._watch())

    async def receive(self) -> messages.EngineEvent | None:
        try:
            event = await self.process.receive()
        except msgspec.DecodeError as error:
            logger.error("a message of the engine process cannot be read: killing it")
            self._unreadable = str(error)
            self.process.kill()
            return None
        self._detector.news()
        match event:
            case messages.StepStarted(expected_ms=expected_ms):
                self._detector.step_begins(expected_ms)
            case messages.Handling(id=request_id):
                self._detector.handling(request_id)
        return event

    def stop(self) -> None:
        self._task.cancel()

    def death(self) -> Death:
        if self._unreadable is not None:
            return Death.of_bad_message(self._unreadable)
        return Death.of(
            self.process.exit_status, hang_s=self._hung_s, ran_out_of_memory=self.killer.has_struck
        )

    async def _watch(self) -> None:
        while not self._detector.is_hung(
            self.clock(),
            is_loading=self.is_loading(),
            is_pending=self.is_pending(),
            is_waiting=self.is_waiting(),
        ):
            self.killer.look()
            await asyncio.sleep(TICK_S)
        self._hung_s = self._detector.stuck_s
        logger.error("the engine process makes no progress: killing it")
        self.process.kill()
