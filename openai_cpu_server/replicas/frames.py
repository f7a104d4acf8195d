"""Frames on a TCP connection: bytes behind their length, as between an API process and its engine process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from openai_cpu_server.contract.frames import LENGTH

_MOST_BYTES = 256 * 1024 * 1024
_UNSENT_BYTES = 256 * 1024
"""What may wait to be sent before `sent` waits."""
_UNREAD_FRAMES = 64
"""When so many wait to be received, the other side's are left in the kernel."""


class FrameStream(asyncio.Protocol):
    """One end of a connection. Its methods belong to one event loop's thread."""

    def __init__(
        self,
        *,
        most_bytes: int = _MOST_BYTES,
        patience_s: float | None = None,
        opened: Callable[[FrameStream], None] | None = None,
    ) -> None:
        """`most_bytes`: of a frame that comes; a longer one ends the connection. `patience_s`: a connection
        that takes nothing for so long is ended. `opened` is told when it stands."""
        self.most_bytes = most_bytes
        self._patience_s = patience_s
        self._opened = opened
        self._giving_up: asyncio.TimerHandle | None = None
        """None: what is sent is taken."""
        self._transport: asyncio.Transport | None = None
        """None: before it stands."""
        self._unread = bytearray()
        self._frames: deque[bytes] = deque()
        self._has_news = asyncio.Event()
        self._may_send = asyncio.Event()
        self._may_send.set()
        self._is_over = False

    def trust(self) -> None:
        """The other side has shown who it is: its frames may be long."""
        self.most_bytes = _MOST_BYTES

    def send(self, *parts: bytes) -> None:
        """One frame. To a connection that is gone it is lost, as it would be a moment later."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join((LENGTH.pack(sum(map(len, parts))), *parts)))

    async def sent(self) -> None:
        """Wait while much is unsent. Returns at once when the connection is gone."""
        await self._may_send.wait()

    async def receive(self) -> bytes | None:
        """The next frame; None: the connection is gone, and half a frame with it."""
        while not self._frames:
            if self._is_over:
                return None
            self._has_news.clear()
            await self._has_news.wait()
        frame = self._frames.popleft()
        if not self._frames and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
        return frame

    def close(self) -> None:
        """After what was sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    # -- an `asyncio.Protocol` ---------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_UNSENT_BYTES)
        if self._opened is not None:
            self._opened(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        begin = 0
        while (end := self._end(begin)) is not None:
            self._frames.append(bytes(self._unread[begin + LENGTH.size : end]))
            begin = end
        del self._unread[:begin]
        if len(self._frames) > _UNREAD_FRAMES and self._transport is not None:
            self._transport.pause_reading()
        self._has_news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_over = True
        self._has_news.set()
        self.resume_writing()

    def pause_writing(self) -> None:
        self._may_send.clear()
        if self._patience_s is not None:
            self._giving_up = asyncio.get_running_loop().call_later(self._patience_s, self.abort)

    def resume_writing(self) -> None:
        self._may_send.set()
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _end(self, begin: int) -> int | None:
        """Of the frame that begins there; None: it is not here yet."""
        if len(self._unread) - begin < LENGTH.size:
            return None
        (length,) = LENGTH.unpack_from(self._unread, begin)
        if length > self.most_bytes:
            self.abort()
            return None
        end: int = begin + LENGTH.size + length
        return end if end <= len(self._unread) else None
