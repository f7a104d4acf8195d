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
        head = self._reader.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack(head)
        payload = self._reader.read(length)
        if len(payload) < length:
            return None
        command: Command = _commands.decode(payload)
        return command


class ClientChannel:
    """The client's end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, command: Command) -> None:
        """Never blocks; commands to an engine that has died are lost, as they would be a moment later."""
        if not self._writer.is_closing():
            self._writer.write(_frame(command))

    async def receive(self) -> Event | None:
        """The next event; None when the engine is gone."""
        try:
            (length,) = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            event: Event = _events.decode(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return event

    def close(self) -> None:
        self._writer.close()
