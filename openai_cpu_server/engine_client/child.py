"""One engine process from its start to its death, and this side of its socket."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections import deque
from collections.abc import Sequence

import psutil

from openai_cpu_server.child_processes.spawn import spawn_options
from openai_cpu_server.contract.messages import (
    LENGTH,
    Command,
    EngineOptions,
    Event,
    MediaPart,
    Sent,
    StartEngine,
    Submit,
    frame,
    in_parts,
    read_event,
)

_AT_ONCE = 1_000_000
"""Tokens, or bytes of media, to frame at once, which takes milliseconds. A call may have millions."""


class ClientChannel:
    """Sender of commands and receiver of events. No method blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: deque[Sent] = deque()
        """Messages to send when the loop has done other work and the engine has read the previous ones."""
        self._resuming: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, *commands: Command) -> None:
        """Send commands together, or in several pieces with other work of the loop between them if they have
        very many tokens or media.

        Commands to a dead engine are lost, as they would be a moment later.
        """
        is_waiting = bool(self._waiting)
        for command in commands:
            self._waiting.extend(in_parts(command))
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
                frames.append(frame(message))
        finally:  # a message that cannot be framed keeps back no other
            self._writer.write(b"".join(frames))
            if self._waiting:
                self._resuming = asyncio.create_task(self._resume())

    async def _resume(self) -> None:
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()
        self._send_some()

    async def receive(self) -> Event | None:
        """Return the next event, or None when the engine is gone. Raises `msgspec.DecodeError`."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return read_event(payload)

    def close(self) -> None:
        self._writer.close()


def _size(message: Sent) -> int:
    if isinstance(message, MediaPart):
        return len(message.data)
    return message.request.num_tokens if isinstance(message, Submit) else 0


@functools.lru_cache(maxsize=64)
def _process(pid: int | None) -> psutil.Process:
    """Cached because finding a process takes five times as long as reading its memory."""
    return psutil.Process(pid)


def resident_bytes(pid: int | None = None) -> int:
    """Return the memory of a process, by default this one; 0 if it is dead or unreadable."""
    try:
        return int(_process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


class EngineProcess:
    """Owner of a child process and its socket. The child ends when the socket does."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: ClientChannel, *, grace_s: float
    ) -> None:
        self.is_closing = False
        """The process was asked to end, so that its further messages are ignored."""
        self.send, self.receive = channel.send, channel.receive
        self._process = process
        self._channel = channel
        self._grace_s = grace_s

    @classmethod
    async def spawn(cls, command: Sequence[str], options: EngineOptions) -> EngineProcess:
        """Start `command` with its socket's file descriptor as last argument, and send it the options.
        Raises OSError, and RuntimeError if no thread is available to wait for its end."""
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
        child.send(StartEngine(options=options))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """Exit status, or None while it lives. A negative one is the number of the signal that killed it."""
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
