"""What is in models' files, read once for each model, while the server goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
import weakref
from typing import NamedTuple

from openai_cpu_server.models.served import ServedModel

WAIT_S = 2.0
"""So long after reading a file has begun, requests wait for its end. Then they go on without it: 4 GB may
take ten seconds."""
_NICE = 19


class _Reading(NamedTuple):
    digest: asyncio.Future[str | None]
    until_s: float
    """Nobody waits for it behind this time, on the monotonic clock."""


class Digests:
    """Its methods belong to one event loop's thread."""

    def __init__(self, *, wait_s: float = WAIT_S) -> None:
        self._wait_s = wait_s
        self._known: weakref.WeakKeyDictionary[ServedModel, _Reading] = weakref.WeakKeyDictionary()

    def begin(self, model: ServedModel) -> None:
        """Reads its file, if nobody has begun to."""
        if model not in self._known:
            self._known[model] = _Reading(_read(model), time.monotonic() + self._wait_s)

    async def of(self, model: ServedModel) -> str | None:
        """None: it is not known yet, or the model's file is another by now."""
        self.begin(model)
        digest, until_s = self._known[model]
        if digest.done():
            return digest.result()
        with contextlib.suppress(asyncio.TimeoutError):
            return await asyncio.wait_for(asyncio.shield(digest), until_s - time.monotonic())
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
