"""Messages as bytes: length-prefixed msgpack."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

from openai_cpu_server.contract.messages import Command, Event

LENGTH = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def read_frame(stream: BinaryIO) -> bytes | None:
    """The next message, without its length; None at the end, be it in the middle of one. It blocks."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    payload = stream.read(length)
    return payload if len(payload) == length else None


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
