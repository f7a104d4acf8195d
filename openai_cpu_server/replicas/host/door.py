"""Where API processes connect to a replica: a TCP connection for each session carries its orders and news."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import ssl
from contextlib import aclosing

import anyio
import msgspec

from openai_cpu_server.replicas.host.host import ReplicaHost
from openai_cpu_server.replicas.wire import DoorAddress, FrameStream, NewsFrame, SessionHello

logger = logging.getLogger(__name__)

_HELLO_S = 5.0
_HELLO_BYTES = 4096
"""A stranger may send so much."""
_hello = msgspec.msgpack.Decoder(SessionHello)


class ReplicaDoor:
    """Whoever knows its token is let in. A connection is a session: it ends with it."""

    def __init__(self, host: ReplicaHost, *, sending_s: float) -> None:
        """`sending_s`: who takes nothing for so long is given up."""
        self._host = host
        self._sending_s = sending_s
        self._token = secrets.token_hex(32)
        self._server: asyncio.Server | None = None
        """None: it is closed."""
        self._visits: set[asyncio.Task[None]] = set()

    async def open(self, address: str, *, tls: ssl.SSLContext | None = None) -> DoorAddress:
        """Listen there, on a port that is free. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._stream, address, 0, ssl=tls)
        port: int = self._server.sockets[0].getsockname()[1]
        return DoorAddress(address, port, self._token)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for visit in self._visits:
            visit.cancel()
        await asyncio.gather(*self._visits, return_exceptions=True)

    def _stream(self) -> FrameStream:
        return FrameStream(most_bytes=_HELLO_BYTES, patience_s=self._sending_s, opened=self._opened)

    def _opened(self, stream: FrameStream) -> None:
        visit = asyncio.create_task(self._visit(stream))
        self._visits.add(visit)
        visit.add_done_callback(self._visits.discard)

    async def _visit(self, stream: FrameStream) -> None:
        try:
            lessee = await self._let_in(stream)
            if lessee is not None:
                await self._serve(stream, lessee)
        finally:
            stream.close()

    async def _let_in(self, stream: FrameStream) -> str | None:
        """The name of whoever has told the token; None: it was not told in time."""
        try:
            with anyio.fail_after(_HELLO_S):
                hello = _hello.decode(await stream.receive() or b"")
        except (TimeoutError, msgspec.MsgspecError):
            hello = None
        if hello is None or not hmac.compare_digest(hello.token.encode(), self._token.encode()):
            logger.warning("somebody has connected who does not know the token of this replica")
            return None
        stream.trust()
        return hello.lessee

    async def _serve(self, stream: FrameStream, lessee: str) -> None:
        """Until the session ends, or the connection."""
        telling = asyncio.create_task(self._tell(stream, lessee))
        listening = asyncio.create_task(self._listen(stream, lessee))
        try:
            await asyncio.wait((telling, listening), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (telling, listening):
                task.cancel()
            for end in await asyncio.gather(telling, listening, return_exceptions=True):
                if isinstance(end, Exception):
                    logger.error("a session has failed", exc_info=end)

    async def _tell(self, stream: FrameStream, lessee: str) -> None:
        async with aclosing(self._host.attend(lessee)) as news:  # type: ignore[type-var]
            async for payload in news:
                stream.send(NewsFrame.NEWS, payload)
                await stream.sent()
        stream.send(NewsFrame.END)

    async def _listen(self, stream: FrameStream, lessee: str) -> None:
        while (orders := await stream.receive()) is not None:
            stream.send(NewsFrame.TAKEN if self._host.tell(lessee, orders) else NewsFrame.UNKNOWN)
