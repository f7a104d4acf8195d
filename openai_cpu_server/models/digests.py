"""What is in models' files, read once for each model, while the server goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref

from openai_cpu_server.models.served import ServedModel

WAIT_S = 2.0
"""A request waits so long for a file to be read. Reading goes on behind it: 4 GB may take ten seconds."""
_NICE = 19


class Digests:
    """Its methods belong to one event loop's thread."""

    def __init__(self, *, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: weakref.WeakKeyDictionary[ServedModel, asyncio.Future[str | None]] = (
            weakref.WeakKeyDictionary()
        )

    async def of(self, model: ServedModel) -> str | None:
        """None: it is not known yet, or the model's file is another by now."""
        known = self._known.get(model)
        if known is None:
            known = self._known[model] = _read(model)
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(known), self._wait_s)
        return None


def _read(model: ServedModel) -> asyncio.Future[str | None]:
    """The end of the server does not wait for the thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str | None] = loop.create_future()

    def read() -> None:
        _step_back()
        digest = model.content_digest()
        with contextlib.suppress(RuntimeError):  # the server has ended
            loop.call_soon_threadsafe(_tell, future, digest)

    threading.Thread(target=read, name="digest", daemon=True).start()
    return future


def _tell(future: asyncio.Future[str | None], digest: str | None) -> None:
    if not future.done():
        future.set_result(digest)


def _step_back() -> None:
    """Linux knows priorities of threads: whoever computes tokens goes before this one."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
