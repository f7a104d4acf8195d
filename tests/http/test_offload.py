"""Slow work runs beside the event loop and leaves threads for other work."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openai_cpu_server.http.body import INLINE_BYTES, in_thread, off_loop
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio


async def test_slow_work_leaves_threads_for_the_rest() -> None:
    gate, thread_ids = threading.Event(), list[int]()

    def work() -> bool:
        thread_ids.append(threading.get_ident())
        return gate.wait(DEADLINE_S)

    slow = [asyncio.create_task(in_thread(work, is_slow=True)) for _ in range(100)]
    await eventually(lambda: thread_ids)
    assert await off_loop(INLINE_BYTES + 1, lambda: "done") == "done"
    gate.set()
    assert all(await asyncio.gather(*slow))
