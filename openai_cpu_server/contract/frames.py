"""Bytes on a socket, whatever they mean: each message behind its length (four bytes, little-endian)."""

from __future__ import annotations

import struct
from typing import BinaryIO

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
