"""Messages as bytes on a socket: msgpack behind its length (four bytes, little-endian)."""

from __future__ import annotations

import struct

import msgspec

from openai_cpu_server.contract.messages import Command, Event

LENGTH = struct.Struct("<I")
_commands = msgspec.msgpack.Decoder(Command)
_events = msgspec.msgpack.Decoder(Event)
_encoder = msgspec.msgpack.Encoder()


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


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
