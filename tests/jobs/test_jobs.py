"""Batches that run, are retried, interrupted, resumed, expire, are cancelled or shared."""

from __future__ import annotations

import asyncio
import io
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path

import anyio
import anyio.lowlevel
import msgspec
import pytest
from sqlalchemy import select

from openai_cpu_server.jobs.jobs import Jobs
from openai_cpu_server.jobs.records import BatchRecord, BatchStatus, PageQuery, RowResult
from openai_cpu_server.jobs.run.batch import RowRecorder
from openai_cpu_server.jobs.run.rows import RowAnswer
from openai_cpu_server.jobs.store.database import files, open_database, parts
from openai_cpu_server.jobs.store.files import PART_BYTES
from tests.jobs.support import (
    OPTIONS,
    begin,
    echo,
    jobs_at,
    jsonl,
    lines_of,
    never,
    ok,
    wait_for,
    wait_for_end,
)
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

NAMES = [f"r{n}" for n in range(100)]


def names(lines: list[dict[str, object]]) -> list[object]:
    return [line["custom_id"] for line in lines]


class Counting:
    """A runner that counts how often each row ran to its end. The first rows wait until all places are busy;
    rows after `num_allowed` hang."""

    def __init__(self, num_allowed: int = 1_000_000) -> None:
        self.runs: Counter[bytes] = Counter()
        self.num_running = self.max_running = 0
        self._num_allowed = num_allowed
        self._all_busy = anyio.Event()

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        if self.num_running == OPTIONS.concurrency:
            self._all_busy.set()
        try:
            await self._all_busy.wait()
            if not self._num_allowed:
                await anyio.sleep_forever()
            self._num_allowed -= 1
            await anyio.lowlevel.checkpoint()
        finally:
            self.num_running -= 1
        self.runs[body] += 1
        return ok()


async def wait_for_start(jobs: Jobs, batch: BatchRecord) -> None:
    """Wait for the start of a batch whose rows do not end."""
    await wait_for(jobs, batch, lambda batch: batch.status is BatchStatus.IN_PROGRESS)


async def wait_for_rows(jobs: Jobs, batch: BatchRecord, num_rows: int) -> BatchRecord:
    return await wait_for(jobs, batch, lambda batch: batch.completed >= num_rows)


async def test_rows_run_in_parallel_and_results_are_in_order(place: str) -> None:
    rows = Counting()
    async with jobs_at(place, rows) as jobs:
        done = await wait_for_end(jobs, await begin(jobs, jsonl(100)))
        assert names(await lines_of(jobs, done.output_file_id)) == NAMES
    assert (done.status, done.total, done.completed, done.failed) == (BatchStatus.COMPLETED, 100, 100, 0)
    assert (done.input_tokens, done.output_tokens) == (300, 200)
    assert set(rows.runs.values()) == {1}
    assert rows.max_running == OPTIONS.concurrency


async def test_rows_longer_than_the_parts_of_a_file_carry_their_owner(place: str) -> None:
    owners = set()

    async def note(url: str, body: bytes, owner: str) -> RowAnswer:
        owners.add(owner)
        return await echo(url, body, owner)

    long = jsonl(3).replace(b'{"n":', b'{"x":"' + b"y" * PART_BYTES * 2 + b'","n":')
    async with jobs_at(place, note) as jobs:
        done = await wait_for_end(jobs, await begin(jobs, long, owner="ann"))
        assert names(await lines_of(jobs, done.output_file_id, owner="ann")) == NAMES[:3]
    assert owners == {"ann"}


async def test_a_row_that_the_server_refuses_for_a_while_is_retried(place: str) -> None:
    attempts: Counter[bytes] = Counter()

    async def busy_at_first(url: str, body: bytes, owner: str) -> RowAnswer:
        attempts[body] += 1
        if attempts[body] < 3:
            return RowAnswer(status=429, request_id="r", body=b"{}", retry_after_s=0.01)
        return ok()

    async with jobs_at(place, busy_at_first) as jobs:
        done = await wait_for_end(jobs, await begin(jobs, jsonl(10)))
    assert (done.completed, done.failed) == (10, 0)
    assert set(attempts.values()) == {3}


async def test_a_closed_batch_continues_at_its_next_row(place: str) -> None:
    first, second = Counting(20), Counting()
    async with jobs_at(place, first) as jobs:
        batch = await begin(jobs, jsonl(100))
        batch = await wait_for_rows(jobs, batch, 20)
    async with jobs_at(place, second) as jobs:
        done = await wait_for_end(jobs, batch)
        assert names(await lines_of(jobs, done.output_file_id)) == NAMES
    assert done.in_progress_at == batch.in_progress_at
    assert (len(first.runs), len(second.runs)) == (20, 80)
    assert {*first.runs.values(), *(first.runs + second.runs).values()} == {1}


@pytest.mark.parametrize("left_s", [0.2, -1], ids=["running", "not running"])
async def test_a_batch_expires_at_the_end_of_its_window(place: str, left_s: float) -> None:
    now = [1000.0]
    async with jobs_at(place, never, clock=lambda: now[0]) as jobs:
        batch = await begin(jobs, jsonl(1200), window="1h")
        await wait_for_start(jobs, batch)
    now[0] += 3600 - left_s
    options = msgspec.structs.replace(OPTIONS, model=OPTIONS.model if left_s > 0 else "other")
    async with jobs_at(place, never, options, clock=lambda: now[0]) as jobs:
        done = await wait_for_end(jobs, batch)
        late = await lines_of(jobs, done.error_file_id)
    assert (done.status, done.completed, done.failed) == (BatchStatus.EXPIRED, 0, 1200)
    assert done.expired_at == int(now[0])
    assert names(late) == [f"r{n}" for n in range(1200)]
    assert done.output_file_id is None


async def test_cancelling_ends_running_rows(place: str) -> None:
    async def odd_ones_hang(url: str, body: bytes, owner: str) -> RowAnswer:
        return await (never if int(body[6:-1]) % 2 else echo)(url, body, owner)

    async with jobs_at(place, odd_ones_hang) as jobs:
        batch = await begin(jobs, jsonl(100))
        batch = await wait_for_rows(jobs, batch, 4)
        assert (await jobs.cancel_batch("", batch.id)).status is BatchStatus.CANCELLING
        done = await wait_for_end(jobs, batch)
        assert done.status is BatchStatus.CANCELLED
        assert len(await lines_of(jobs, done.output_file_id)) == done.completed == 4
        assert done.error_file_id is None


async def test_a_short_batch_does_not_wait_for_a_long_one(place: str) -> None:
    may_end = anyio.Event()

    async def last_ones_wait(url: str, body: bytes, owner: str) -> RowAnswer:
        if int(body[6:-1]) > 1000:
            await may_end.wait()
        return await echo(url, body, owner)

    async with jobs_at(place, last_ones_wait) as jobs:
        long = await begin(jobs, jsonl(1010))
        short = await wait_for_end(jobs, await begin(jobs, jsonl(10)))
        assert short.status is BatchStatus.COMPLETED
        assert not (await jobs.batches.get("", long.id)).status.has_ended
        may_end.set()


async def test_two_servers_with_one_database_run_each_row_once(where: str) -> None:
    rows = Counting()
    async with jobs_at(where, rows) as one, jobs_at(where, rows) as two:
        batches = [
            await begin(jobs, jsonl(30).replace(b'"n"', b'"n%d"' % i)) for i, jobs in enumerate([one, two])
        ]
        for batch in batches:
            assert names(await lines_of(one, (await wait_for_end(two, batch)).output_file_id)) == NAMES[:30]
    assert set(rows.runs.values()) == {1}
    assert len(rows.runs) == 60


async def test_another_servers_batch_is_cancelled_through_the_database(where: str) -> None:
    async with jobs_at(where, never) as one:
        batch = await begin(one, jsonl(5))
        await wait_for_start(one, batch)
        async with jobs_at(where, never) as two:
            await two.cancel_batch("", batch.id)
            assert (await wait_for_end(one, batch)).status is BatchStatus.CANCELLED


async def test_lists_of_files_have_pages(place: str) -> None:
    async with jobs_at(place) as jobs:
        made = [await jobs.add_file("", f"{n}", io.BytesIO(b"x")) for n in range(5)]
        newest, has_more = await jobs.files.page("", PageQuery(limit=2))
        assert (newest, has_more) == ([made[4], made[3]], True)
        rest, has_more = await jobs.files.page("", PageQuery(limit=3, after=made[3].id))
        assert (rest, has_more) == (made[2::-1], False)
        upward, has_more = await jobs.files.page("", PageQuery(limit=2, after=made[0].id, is_ascending=True))
        assert (upward, has_more) == (made[1:3], True)


async def test_results_that_arrive_during_a_commit_share_the_next() -> None:
    commits: list[list[int]] = []
    gate = anyio.Event()

    async def commit(results: list[RowResult]) -> None:
        commits.append([result.line for result in results])
        await gate.wait()

    recorder = RowRecorder(commit)  # type: ignore[arg-type]
    results = [RowResult(line=n, is_ok=True, content=b"") for n in range(5)]
    tasks = [asyncio.create_task(recorder.record(results[0]))]
    await anyio.wait_all_tasks_blocked()
    tasks += [asyncio.create_task(recorder.record(result)) for result in results[1:]]
    await anyio.wait_all_tasks_blocked()
    assert commits == [[0]]
    gate.set()
    await asyncio.gather(*tasks)
    assert commits == [[0], [1, 2, 3, 4]]


class Slow:
    """An upload's content, whose next part arrives when the test releases it."""

    def __init__(self, num_parts: int) -> None:
        self.may_continue = threading.Semaphore(0)
        self.num_left = num_parts

    def read(self, size: int, /) -> bytes:
        self.may_continue.acquire()
        if not self.num_left:
            return b""
        self.num_left -= 1
        return b"x" * size


async def test_an_upload_does_not_delay_other_reads_and_writes(place: str) -> None:
    content = Slow(20)
    async with jobs_at(place) as jobs:
        uploading = asyncio.create_task(jobs.add_file("ann", "large", content))
        for _ in range(20):
            content.may_continue.release()
            other = await jobs.add_file("bob", "small", io.BytesIO(b"x"))
            assert await jobs.files.get("bob", other.id) == other
        assert not uploading.done()
        assert (await jobs.files.page("ann", PageQuery(limit=9)))[0] == []
        content.may_continue.release(2)  # the end is read twice
        stored = await uploading
        assert b"".join([part async for part in jobs.files.content(stored.id)]) == b"x" * stored.bytes


async def test_a_failed_upload_leaves_nothing(place: str) -> None:
    class Broken:
        num_reads = 0

        def read(self, size: int, /) -> bytes:
            self.num_reads += 1
            if self.num_reads == 20:
                raise OSError("gone")
            return b"x" * size

    async with jobs_at(place) as jobs:
        with pytest.raises(OSError, match="gone"):
            await jobs.add_file("", "x", Broken())
        assert (await jobs.files.page("", PageQuery(limit=9)))[0] == []
    database = open_database(place)
    with database.read() as connection:
        for table in (files, parts):
            assert connection.execute(select(table)).all() == []
    database.close()


async def test_reads_do_not_wait_for_a_write(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with jobs_at(str(path)) as jobs:
        stored = await jobs.add_file("", "x", io.BytesIO(b"x"))
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.create_task(jobs.add_file("", "y", io.BytesIO(b"y")))
            await anyio.wait_all_tasks_blocked()
            assert await jobs.files.get("", stored.id) == stored
            assert not writing.done()
            other.execute("ROLLBACK")
        await writing


class Limited:
    """A runner that allows ann this many rows, until the test allows more."""

    def __init__(self, allowed: int, *, wait_s: float) -> None:
        self.allowed = allowed
        self.num_refused = 0
        self.runs: Counter[bytes] = Counter()
        self._wait_s = wait_s

    async def __call__(self, url: str, body: bytes, owner: str) -> RowAnswer:
        await anyio.lowlevel.checkpoint()
        if owner == "ann":
            if not self.allowed:
                self.num_refused += 1
                return RowAnswer(
                    status=429, request_id="r", body=b"{}", retry_after_s=self._wait_s, pauses=True
                )
            self.allowed -= 1
        self.runs[body] += 1
        return ok()


@pytest.mark.parametrize(("wait_s", "max_batches"), [(3600, 1), (0.0, 2)], ids=["long", "short"])
async def test_a_waiting_batch_makes_room_and_continues(place: str, wait_s: float, max_batches: int) -> None:
    rows = Limited(allowed=7, wait_s=wait_s)
    options = msgspec.structs.replace(OPTIONS, max_batches=max_batches, concurrency=2)
    async with jobs_at(place, rows, options) as jobs:
        first = await begin(jobs, jsonl(20), owner="ann")
        await wait_for_rows(jobs, first, 7)
        others = await wait_for_end(jobs, await begin(jobs, jsonl(5), owner="bob"))
        assert others.completed == 5
        assert not (await jobs.batches.get("ann", first.id)).status.has_ended
        assert not wait_s or rows.num_refused <= options.concurrency, "few rows start in between"
        rows.allowed = 100
        # A deleted file may make room, so the batch is tried again.
        await jobs.delete_file("bob", others.output_file_id or "")
        first = await wait_for_end(jobs, first)
        assert (first.status, first.completed, first.failed) == (BatchStatus.COMPLETED, 20, 0)
        assert names(await lines_of(jobs, first.output_file_id, "ann")) == NAMES[:20]
    assert sum(rows.runs.values()) == 25


@pytest.mark.parametrize("wait_s", [0.0, 3600.0])
async def test_a_batch_that_waits_can_be_cancelled_and_expires(place: str, wait_s: float) -> None:
    now, rows = [1000.0], Limited(allowed=1, wait_s=wait_s)
    async with jobs_at(place, rows, clock=lambda: now[0]) as jobs:
        one, two, _ = [
            await begin(jobs, jsonl(3), owner="ann", window=window) for window in ("1h", "1s", "1h")
        ]
        await eventually(lambda: rows.num_refused >= 2)
        await jobs.cancel_batch("ann", one.id)
        assert (await wait_for_end(jobs, one)).status is BatchStatus.CANCELLED
        now[0] += 2
        assert (await wait_for_end(jobs, two)).status is BatchStatus.EXPIRED
