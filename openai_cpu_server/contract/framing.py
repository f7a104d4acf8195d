"""Messages of engines as bytes on a socket: msgpack in frames."""

from __future__ import annotations

import msgspec

from openai_cpu_server.contract.frames import framed
from openai_cpu_server.contract.messages import Command, Event

_commands = msgspec.msgpack.Decoder(Command)
_events = msgspec.msgpack.Decoder(Event)
_encoder = msgspec.msgpack.Encoder()


def frame(message: Command | Event) -> bytes:
    return framed(_encoder.encode(message))


def read_command(payload: bytes) -> Command:
    """Read one command. Raises `msgspec.DecodeError`."""
    command: Command = _commands.decode(payload)
    return command


def read_event(payload: bytes) -> Event:
    """Read one event. Raises `msgspec.DecodeError`."""
    event: Event = _events.decode(payload)
    return event
