"""What stands for pictures of a size is asked once, and no size takes process after process down."""

from __future__ import annotations

import asyncio

import anyio.lowlevel
import pytest

from openai_cpu_server.contract.media import MeasuredMedia, MediaRows, PictureSize
from openai_cpu_server.contract.messages import MeasureMedia
from openai_cpu_server.engine_client.subscribers import MediaShapes
from openai_cpu_server.errors import EngineUnavailable, InvalidRequest

pytestmark = pytest.mark.anyio
SMALL, LARGE = PictureSize(3, 2), PictureSize(300, 200)
SHAPE = ((1,), MediaRows(4, 4), (2,))


async def _asked(shapes: MediaShapes, *sizes: PictureSize) -> asyncio.Task[object]:
    task = asyncio.ensure_future(shapes.of(sizes))
    await anyio.lowlevel.checkpoint()
    return task


async def test_each_size_is_asked_once_also_where_many_ask() -> None:
    shapes, sent = MediaShapes(), list[MeasureMedia]()
    early = await _asked(shapes, SMALL, SMALL)
    assert shapes.is_awaited
    assert not shapes.is_owed, "there is no process"
    shapes.ready(sent.append)
    late = await _asked(shapes, LARGE, SMALL)
    assert [each.sizes for each in sent] == [(SMALL,), (LARGE,)]
    shapes.heard([MeasuredMedia(SMALL, SHAPE), MeasuredMedia(LARGE, why_not="It is too large.")])
    assert await early == (SHAPE, SHAPE)
    with pytest.raises(InvalidRequest, match="too large"):
        await late
    assert await shapes.of([SMALL]) == (SHAPE,)
    assert len(sent) == 2
    assert not shapes.is_awaited


async def test_a_size_that_two_processes_have_died_of_is_refused() -> None:
    shapes, sent = MediaShapes(), list[MeasureMedia]()
    shapes.ready(sent.append)
    waits = await _asked(shapes, LARGE)
    shapes.lost()
    shapes.ready(sent.append)
    assert [each.sizes for each in sent] == [(LARGE,)] * 2
    shapes.lost()
    with pytest.raises(InvalidRequest, match="300 x 200"):
        await waits
    shapes.ready(sent.append)
    assert len(sent) == 2


async def test_at_the_end_nobody_waits() -> None:
    shapes = MediaShapes()
    waits = await _asked(shapes, SMALL)
    shapes.end(lambda: EngineUnavailable("It ends."))
    with pytest.raises(EngineUnavailable):
        await waits
