"""Work that takes long goes on beside the event loop, and keeps nobody else from a thread."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from openai_cpu_server.http.body import INLINE_BYTES, in_thread, off_loop
from tests.waiting import DEADLINE_S

pytestmark = pytest.mark.anyio


async def test_slow_work_leaves_threads_for_the_rest() -> None:
    goes_on = threading.Event()
    slow = [asyncio.create_task(in_thread(goes_on.wait, is_slow=True)) for _ in range(100)]
    await asyncio.sleep(0)
    with anyio.fail_after(DEADLINE_S):
        assert await off_loop(INLINE_BYTES + 1, lambda: "done") == "done"
    goes_on.set()
    assert all(await asyncio.gather(*slow))
