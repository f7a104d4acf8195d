"""Encoding of messages as length-prefixed msgpack."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import BinaryIO, Union

import msgspec

from openai_cpu_server.contract.messages import Command, Event, Submit
from openai_cpu_server.contract.request import GenerationRequest

LENGTH = struct.Struct("<I")
PART_BYTES = 2**20


def framed(payload: bytes) -> bytes:
    return LENGTH.pack(len(payload)) + payload


def read_frame(stream: BinaryIO) -> bytes | None:
    """Block until the next message and return it without its length. Return None at the end of the stream,
    also in the middle of a message."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    payload = stream.read(length)
    return payload if len(payload) == length else None


class MediaPart(msgspec.Struct, frozen=True, tag="media_part"):
    """Next bytes of a media item. The request follows the parts, with empty content in its items."""

    digest: str
    data: memoryview


Sent = Union[Command, MediaPart]
"""Messages to an engine. Each is small enough to encode without delaying an event loop."""


def in_parts(command: Command) -> Iterator[Sent]:
    """Split a request into the parts of its media items and the rest."""
    request = command.request if isinstance(command, Submit) else None
    if not isinstance(request, GenerationRequest) or not request.media_items:
        yield command
        return
    for digest, content in {item.digest: item.content for item in request.media_items}.items():
        for start in range(0, len(content), PART_BYTES):
            yield MediaPart(digest, content[start : start + PART_BYTES])
    items = tuple(msgspec.structs.replace(item, content=memoryview(b"")) for item in request.media_items)
    yield msgspec.structs.replace(command, request=msgspec.structs.replace(request, media_items=items))


class PartJoiner:
    """Inverse of `in_parts`."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, list[memoryview]] = defaultdict(list)

    def join(self, message: Sent) -> Command | None:
        """Return the complete command, or None for a part."""
        if isinstance(message, MediaPart):
            self._parts[message.digest].append(message.data)
            return None
        if not isinstance(message, Submit) or not self._parts:
            return message
        assert isinstance(message.request, GenerationRequest)
        contents = {digest: memoryview(b"".join(parts)) for digest, parts in self._parts.items()}
        self._parts.clear()
        items = message.request.media_items
        items = tuple(msgspec.structs.replace(item, content=contents[item.digest]) for item in items)
        return msgspec.structs.replace(
            message, request=msgspec.structs.replace(message.request, media_items=items)
        )


_encoder = msgspec.msgpack.Encoder()


def frame(message: Sent | Event) -> bytes:
    return framed(_encoder.encode(message))


read_command: Callable[[bytes], Sent] = msgspec.msgpack.Decoder(Sent).decode
read_event: Callable[[bytes], Event] = msgspec.msgpack.Decoder(Event).decode
"""Decoders of one message; both raise `msgspec.DecodeError`."""
