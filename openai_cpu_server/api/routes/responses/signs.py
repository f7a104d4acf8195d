"""Signs of life on a stream that has said nothing of its output yet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import anyio

from openai_cpu_server.api.calls.running import Said
from openai_cpu_server.api.render.responses.stream import ResponseStream


async def alive(
    told: AsyncGenerator[Said, None], stream: ResponseStream, *, first_s: float, every_s: float
) -> AsyncIterator[Said]:
    """What is told, and where nothing comes for so long, that it lives.

    They stand among the events, and not beside them as keep-alive comments do, for they are numbered.
    `every_s`: 0 is never, as with comments.
    """
    wait_s = min(first_s, every_s) or None
    async with aclosing(told):
        while stream.is_silent:
            coming = asyncio.ensure_future(anext(told, None))
            try:
                while not (await asyncio.wait({coming}, timeout=wait_s))[0]:
                    wait_s = every_s or None
                    yield stream.lives()
            finally:
                await _left(coming)
            said = coming.result()
            if said is None:
                return
            yield said
        async for said in told:
            yield said


async def _left(coming: asyncio.Future[Said | None]) -> None:
    """Nobody waits for it any more. What reads the call must have ended before that is closed."""
    coming.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # it counts as seen
