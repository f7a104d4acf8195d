"""Jobs on a real database; a function of the test runs the rows."""

from __future__ import annotations

import asyncio
import io
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import BatchRecord, JobOptions
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.database import open_database
from tests.waiting import DEADLINE_S, elapse_async

URL = "/v1/completions"
OPTIONS = JobOptions(model="m", poll_s=0.05, concurrency=4)
Rows = Callable[[str, bytes, str], Awaitable[RowAnswer]]


def row(number: int) -> dict[str, object]:
    return {"custom_id": f"r{number}", "method": "POST", "url": URL, "body": {"n": number}}


def jsonl(num_rows: int) -> bytes:
    return b"".join(json.dumps(row(n)).encode() + b"\n" for n in range(num_rows))


def ok(body: bytes = b'{"usage":{"prompt_tokens":3,"completion_tokens":2}}') -> RowAnswer:
    return RowAnswer(status=200, request_id="req_1", body=body)


async def echo(url: str, body: bytes, owner: str) -> RowAnswer:
    await anyio.lowlevel.checkpoint()
    return ok(b'{"echo":' + body + b"}")


async def never(url: str, body: bytes, owner: str) -> RowAnswer:
    await anyio.sleep_forever()
    raise AssertionError


@asynccontextmanager
async def jobs_at(
    where: str, run_row: Rows = echo, options: JobOptions = OPTIONS, clock: Callable[[], float] = time.time
) -> AsyncIterator[Jobs]:
    jobs = Jobs(open_database(where), options, clock=clock)
    task = asyncio.create_task(jobs.run(run_row))
    try:
        yield jobs
    finally:
        await jobs.close()
        await task


async def begin(jobs: Jobs, content: bytes, *, window: str = "24h", owner: str = "") -> BatchRecord:
    file = await jobs.add_file(owner, "rows.jsonl", io.BytesIO(content))
    return await jobs.create_batch(owner, input_file_id=file.id, endpoint=URL, completion_window=window)


async def wait_for(jobs: Jobs, batch: BatchRecord, holds: Callable[[BatchRecord], bool]) -> BatchRecord:
    """Read the batch until the condition holds, of a state that stays."""
    with anyio.fail_after(DEADLINE_S):
        while not holds(batch := await jobs.batches.get(batch.owner, batch.id)):
            await elapse_async(0.01)
    return batch


async def wait_for_end(jobs: Jobs, batch: BatchRecord) -> BatchRecord:
    return await wait_for(jobs, batch, lambda batch: batch.status.has_ended)


async def lines_of(jobs: Jobs, file_id: str | None, owner: str = "") -> list[dict[str, object]]:
    assert file_id is not None
    file = await jobs.files.get(owner, file_id)
    content = b"".join([part async for part in jobs.files.content(file.id)])
    assert len(content) == file.bytes
    return [json.loads(line) for line in content.splitlines()]
