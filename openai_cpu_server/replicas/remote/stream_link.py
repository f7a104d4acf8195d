"""A `Link` over TCP: a connection for each session."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import msgspec

from openai_cpu_server.replicas.report import ReplicaLost
from openai_cpu_server.replicas.wire import DoorAddress, FrameStream, NewsFrame, SessionHello

_CONNECT_S = 5.0
"""For the connection, and then for the first news: a replica tells them at once."""


class StreamLink:
    """To one replica."""

    def __init__(
        self,
        door: Callable[[], Awaitable[DoorAddress]],
        load_adapter: Callable[[bytes], Awaitable[bytes]],
        *,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`door` asks where it is; `load_adapter`: as the `Link`'s. Both raise `ReplicaLost`."""
        self._door = door
        self._load_adapter = load_adapter
        self._tls = tls
        self._sessions: dict[str, _Session] = {}

    async def attend(self, lessee: str) -> AsyncIterator[bytes]:
        session = await self._connected(await self._door(), lessee)
        self._sessions[lessee] = session
        try:
            while (news := await session.news()) is not None:
                yield news
        finally:
            del self._sessions[lessee]
            session.close()

    async def tell(self, lessee: str, orders: bytes) -> bool:
        session = self._sessions.get(lessee)
        if session is None:
            raise ReplicaLost("there is no connection to it")
        return await session.tell(orders)

    async def load_adapter(self, adapter: bytes) -> bytes:
        return await self._load_adapter(adapter)

    async def _connected(self, plate: DoorAddress, lessee: str) -> _Session:
        loop = asyncio.get_running_loop()
        host = "" if self._tls else None
        try:
            with anyio.fail_after(_CONNECT_S):
                _, stream = await loop.create_connection(
                    FrameStream, plate.address, plate.port, ssl=self._tls, server_hostname=host
                )
        except (OSError, TimeoutError) as error:
            why = str(error) or f"nobody answered in {_CONNECT_S:g} s"
            raise ReplicaLost(f"cannot connect to {plate.address}:{plate.port}: {why}") from None
        stream.send(msgspec.msgpack.encode(SessionHello(plate.token, lessee)))
        return _Session(stream)


class _Session:
    """The connection of one."""

    def __init__(self, stream: FrameStream) -> None:
        self._stream = stream
        self._untaken: deque[asyncio.Future[bool]] = deque()
        """The tellings that were not answered yet."""
        self._patience_s: float | None = _CONNECT_S
        """None: it has told something."""

    async def news(self) -> bytes | None:
        """None: the replica has ended the session. Raises `ReplicaLost`."""
        while (frame := await self._received()) is not None:
            kind = frame[:1]
            if kind == NewsFrame.NEWS:
                return frame[1:]
            if kind == NewsFrame.END:
                return None
            if self._untaken and not (answer := self._untaken.popleft()).done():
                answer.set_result(kind == NewsFrame.TAKEN)
        raise ReplicaLost("the connection to it was cut")

    async def tell(self, orders: bytes) -> bool:
        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._untaken.append(answer)
        self._stream.send(orders)
        return await answer

    def close(self) -> None:
        self._stream.abort()
        for answer in self._untaken:
            if not answer.done():
                answer.set_exception(ReplicaLost("the connection to it was cut"))

    async def _received(self) -> bytes | None:
        if self._patience_s is None:
            return await self._stream.receive()
        try:
            with anyio.fail_after(self._patience_s):
                frame = await self._stream.receive()
        except TimeoutError:
            raise ReplicaLost(f"it has told nothing in {self._patience_s:g} s") from None
        self._patience_s = None
        return frame
