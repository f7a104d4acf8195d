"""Length-prefixed msgpack messages over a socket: the blocking end (engine) and the asyncio end (client)."""

from __future__ import annotations

import asyncio
import socket
import struct

import msgspec

from openai_cpu_server.contract.messages import Command, Event

_LENGTH = struct.Struct("<I")
_commands = msgspec.msgpack.Decoder(Command)
_events = msgspec.msgpack.Decoder(Event)
_encoder = msgspec.msgpack.Encoder()


def _frame(message: Command | Event) -> bytes:
    payload = _encoder.encode(message)
    return _LENGTH.pack(len(payload)) + payload


class EngineChannel:
    """The engine's end. One thread may send while another receives."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = sock.makefile("rb")

    def send(self, event: Event) -> None:
        self._sock.sendall(_frame(event))

    def receive(self) -> Command | None:
        """The next command; None when the other side is gone."""
        head = self._read(_LENGTH.size)
        payload = None if head is None else self._read(_LENGTH.unpack(head)[0])
        if payload is None:
            return None
        command: Command = _commands.decode(payload)
        return command

    def _read(self, length: int) -> bytes | None:
        """A client that was killed with our events unread leaves no end of file, but a reset."""
        try:
            data = self._reader.read(length)
        except ConnectionError:
            return None
        return data if len(data) == length else None


class ClientChannel:
    """The client's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, *commands: Command) -> None:
        """In one piece, so that the engine sees them together.

        Never blocks; commands to an engine that has died are lost, as they would be a moment later.
        """
        if not self._writer.is_closing():
            self._writer.write(b"".join(map(_frame, commands)))

    async def receive(self) -> Event | None:
        """The next event; None when the engine is gone. Raises `msgspec.DecodeError`."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            event: Event = _events.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return event

    def close(self) -> None:
        self._writer.close()
