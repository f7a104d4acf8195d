"""Work that takes long goes on beside the event loop, and keeps nobody else from a thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from openai_cpu_server.http.body import INLINE_BYTES, in_thread, off_loop
from tests.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.anyio


async def test_slow_work_leaves_threads_for_the_rest() -> None:
    goes_on, begun = threading.Event(), list[int]()

    def work() -> bool:
        begun.append(threading.get_ident())
        return goes_on.wait(DEADLINE_S)

    slow = [asyncio.create_task(in_thread(work, is_slow=True)) for _ in range(100)]
    await eventually(lambda: begun)
    assert await off_loop(INLINE_BYTES + 1, lambda: "done") == "done"
    goes_on.set()
    assert all(await asyncio.gather(*slow))
