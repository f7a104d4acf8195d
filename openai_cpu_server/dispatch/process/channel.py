"""The API process's end of the socket to an engine process."""

from __future__ import annotations

import asyncio
import socket
from collections import deque

from openai_cpu_server.contract.embedding import EmbedRequest
from openai_cpu_server.contract.frames import LENGTH
from openai_cpu_server.contract.framing import frame, read_event
from openai_cpu_server.contract.messages import Command, Event, Submit
from openai_cpu_server.contract.request import GenerationRequest

_TOKENS_AT_ONCE = 1_000_000
"""Six milliseconds of framing. A call may have 1,024 sequences of a whole context each."""


class ClientChannel:
    """Sends commands and receives events. No method blocks."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._waiting: deque[Command] = deque()
        """Commands that are sent when the loop has looked after others."""

    @classmethod
    async def open(cls, sock: socket.socket) -> ClientChannel:
        return cls(*await asyncio.open_connection(sock=sock))

    def send(self, *commands: Command) -> None:
        """Send commands in one piece, so that the engine sees them together. Very many tokens go in several,
        with other work of the loop between them.

        Commands to an engine that has died are lost, as they would be a moment later.
        """
        is_waiting = bool(self._waiting)
        self._waiting.extend(commands)
        if not is_waiting:
            self._send_some()

    def _send_some(self) -> None:
        if self._writer.is_closing():
            self._waiting.clear()
            return
        frames, num_tokens = [], 0
        while self._waiting and num_tokens <= _TOKENS_AT_ONCE:
            command = self._waiting.popleft()
            frames.append(frame(command))
            num_tokens += _num_tokens(command)
        self._writer.write(b"".join(frames))
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._send_some)

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


def _num_tokens(command: Command) -> int:
    match command:
        case Submit(request=GenerationRequest(tokens=tokens)):
            return len(tokens)
        case Submit(request=EmbedRequest() as request):
            return request.num_tokens
        case _:
            return 0
