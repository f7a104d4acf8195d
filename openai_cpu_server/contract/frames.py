"""Bytes on a socket, whatever they mean: each message behind its length (four bytes, little-endian)."""

from __future__ import annotations

import struct

LENGTH = struct.Struct("<I")


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload
