"""One engine process, from its start to its death."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Sequence

import psutil

from openai_cpu_server.contract.messages import Command, EngineOptions, Event, Start
from openai_cpu_server.dispatch.process.channel import ClientChannel
from openai_cpu_server.sandbox.spawn import spawn_options


@functools.lru_cache(maxsize=64)
def _process(pid: int | None) -> psutil.Process:
    """Finding a process takes five times as long as reading its memory, and gateways ask all the time."""
    return psutil.Process(pid)


def resident_bytes(pid: int | None = None) -> int:
    """The memory of a process, of this one by default; 0 if it is dead or nothing can be read about it."""
    try:
        return int(_process(pid).memory_info().rss)
    except (psutil.Error, OSError):
        return 0


class EngineProcess:
    """Owns a child process and the socket to it. The child ends when the socket does."""

    def __init__(
        self, process: asyncio.subprocess.Process, channel: ClientChannel, *, grace_s: float
    ) -> None:
        self.is_closing = False
        """It has been told to end: what it still says does not matter."""
        self._process = process
        self._channel = channel
        self._grace_s = grace_s

    @classmethod
    async def spawn(cls, command: Sequence[str], options: EngineOptions) -> EngineProcess:
        """Start `command` with its socket's file descriptor as last argument, and tell it the options.

        Raises OSError, and RuntimeError where no thread can be had to wait for its end.
        """
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
        child.send(Start(options=options))
        return child

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """None while it lives. A negative one is the number of the signal that killed it."""
        return self._process.returncode

    @property
    def rss_bytes(self) -> int:
        """Resident memory, the mapped model file included; 0 once it is dead."""
        return resident_bytes(self.pid)

    def send(self, *commands: Command) -> None:
        self._channel.send(*commands)

    async def receive(self) -> Event | None:
        """The next event; None when the process is gone. Raises `msgspec.DecodeError`."""
        return await self._channel.receive()

    def kill(self) -> None:
        """End it at once, whatever it does; a stopped process too."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Tell it to end, and kill it if it does not."""
        self.is_closing = True
        self._channel.close()
        try:
            await asyncio.wait_for(self._process.wait(), self._grace_s)
        except asyncio.TimeoutError:
            self.kill()
            await self._process.wait()
