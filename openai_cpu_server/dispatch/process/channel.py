"""The API process's end of the socket to an engine process."""

from __future__ import annotations

import asyncio
import socket

from openai_cpu_server.contract.framing import LENGTH, frame, read_event
from openai_cpu_server.contract.messages import Command, Event


class ClientChannel:
    """Sends commands and receives events. No method blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, *commands: Command) -> None:
        """Send commands in one piece, so that the engine sees them together.

        Commands to an engine that has died are lost, as they would be a moment later.
        """
        if not self._writer.is_closing():
            self._writer.write(b"".join(map(frame, commands)))

    async def receive(self) -> Event | None:
        """The next event; None when the engine is gone. Raises `msgspec.DecodeError`."""
        try:
            (length,) = LENGTH.unpack(await self._reader.readexactly(LENGTH.size))
            payload = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return read_event(payload)

    def close(self) -> None:
        self._writer.close()
