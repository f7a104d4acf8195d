"""Messages as bytes: length-prefixed msgpack."""

from __future__ import annotations

import struct
from collections.abc import Callable
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


_encoder = msgspec.msgpack.Encoder()


def frame(message: Command | Event) -> bytes:
    return framed(_encoder.encode(message))


read_command: Callable[[bytes], Command] = msgspec.msgpack.Decoder(Command).decode
read_event: Callable[[bytes], Event] = msgspec.msgpack.Decoder(Event).decode
"""Both read one, and raise `msgspec.DecodeError`."""
