"""Commits and leases of the stores, on a real SQLite file and on PostgreSQL."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest
from sqlalchemy import Engine, event, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import IntegrityError

from openai_cpu_server.contract.figures import Amounts
from openai_cpu_server.errors import BatchConflict, FileInUse, JobObjectNotFound, StartupError
from openai_cpu_server.jobs.records import (
    BatchRecord,
    BatchStatus,
    FilePurpose,
    FileRecord,
    LineError,
    PageQuery,
    RowResult,
)
from openai_cpu_server.jobs.responses import ResponseRepository
from openai_cpu_server.jobs.store.batches import (
    BatchLedger,
    BatchStore,
    LeaseLost,
    is_left_behind,
    new_holder,
)
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.jobs.store.files import FileStore
from openai_cpu_server.jobs.store.storage import StorageQuotas
from openai_cpu_server.jobs.usage import UsageBook, UsageQuery, UsageSlot
from openai_cpu_server.storage.database import Database, DatabaseThreads

pytestmark = pytest.mark.anyio


class Stores:
    """The repositories of one database, at a time that the test sets."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now_s = 100
        self.threads = DatabaseThreads(database, "test")
        place = database, self.threads, lambda: self.now_s
        self.files, self.batches, self.usage = FileStore(*place), BatchStore(*place), UsageBook(*place)
        self.storage = StorageQuotas(*place)
        self.responses = ResponseRepository(*place, storage=self.storage, lifetime_s=10**6)

    def ledger(self, holder: str | None = None) -> BatchLedger:
        place = self.database, self.threads, lambda: self.now_s
        return BatchLedger(*place, lease_s=30, holder=holder or new_holder())


@asynccontextmanager
async def stores_at(where: str) -> AsyncIterator[Stores]:
    database = open_database(where)
    stores = Stores(database)
    try:
        yield stores
    finally:
        await stores.threads.close()
        database.close()


@pytest.fixture
async def stores(where: str) -> AsyncIterator[Stores]:
    async with stores_at(where) as stores:
        yield stores


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[Stores]:
    async with stores_at(str(tmp_path / "jobs.db")) as stores:
        yield stores


def a_file(number: int = 0, owner: str = "", expires_at: int | None = None) -> FileRecord:
    return FileRecord(
        id=f"file-{number}",
        owner=owner,
        purpose=FilePurpose.BATCH,
        filename="a.jsonl",
        bytes=0,
        created_at=100,
        expires_at=expires_at,
    )


def a_batch(number: int = 0, owner: str = "", model: str = "m", file: str = "file-0") -> BatchRecord:
    return BatchRecord(
        id=f"batch_{number}",
        owner=owner,
        model=model,
        endpoint="/v1/completions",
        input_file_id=file,
        output_id=f"file-out-{number}",
        error_id=f"file-err-{number}",
        completion_window="24h",
        created_at=100,
        expires_at=1000,
        metadata={"k": "v"},
    )


async def store_file(files: FileStore, record: FileRecord, *content: bytes) -> FileRecord:
    """Store a file in these parts; without parts, its content is one byte."""
    parts = content or (b"x",)
    await files.begin(record, until_s=1000)
    await files.append(record.id, parts, first=1)
    stored = msgspec.structs.replace(record, bytes=sum(map(len, parts)))
    await files.complete(stored)
    return stored


async def started_batch(stores: Stores, book: BatchLedger, number: int = 0) -> BatchRecord:
    if number == 0:
        await store_file(stores.files, a_file())
    batch = await stores.batches.create(a_batch(number))
    assert await book.claim(batch)
    stores.now_s = 101
    assert await book.move(batch.id, BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, total=3)
    return batch


def result(line: int, *, is_ok: bool = True) -> RowResult:
    return RowResult(line=line, is_ok=is_ok, content=b"%d\n" % line, output_tokens=2)


async def content(stores: Stores, file_id: str) -> bytes:
    return b"".join([part async for part in stores.files.content(file_id)])


async def test_a_file_is_returned_unchanged(stores: Stores) -> None:
    files = stores.files
    stored = await store_file(files, a_file(), b"ab", b"c")
    assert stored.bytes == 3
    assert await files.get("", "file-0") == stored
    assert await content(stores, "file-0") == b"abc"


async def test_an_unfinished_upload_is_hidden_and_is_removed_in_time(stores: Stores) -> None:
    files, batches = stores.files, stores.batches
    await files.begin(a_file(), until_s=200)
    await files.append("file-0", [b"x"], first=1)
    for attempt in (
        lambda: files.get("", "file-0"),
        lambda: files.delete("", "file-0"),
        lambda: batches.create(a_batch()),
    ):
        with pytest.raises(JobObjectNotFound):
            await attempt()
    assert await files.page("", PageQuery(limit=9), FilePurpose.PARTIAL) == ([], False)
    stores.now_s = 199
    assert await files.expired() == []
    stores.now_s = 200
    assert await files.expired() == ["file-0"]
    await files.prune("file-0")
    assert await content(stores, "file-0") == b""
    with pytest.raises(JobObjectNotFound):
        await files.complete(a_file())


async def test_a_large_file_is_hidden_at_once_and_removed_in_steps(stores: Stores) -> None:
    files = stores.files
    await store_file(files, a_file(), *[b"x"] * 40)
    await files.delete("", "file-0")
    with pytest.raises(JobObjectNotFound):
        await files.get("", "file-0")
    assert [await files.prune_some("file-0") for _ in range(3)] == [True, True, False]
    assert await content(stores, "file-0") == b""
    assert await files.expired() == []


async def test_expired_files_are_hidden_and_removed_except_inputs_in_use(stores: Stores) -> None:
    files, batches = stores.files, stores.batches
    for number in (0, 1):
        await store_file(files, a_file(number, expires_at=200))
    await batches.create(a_batch())
    stores.now_s = 200
    with pytest.raises(JobObjectNotFound):
        await files.get("", "file-1")
    assert await files.page("", PageQuery(limit=9)) == ([], False)
    assert await files.expired() == ["file-1"]
    await files.prune("file-1")
    assert await content(stores, "file-0") == b"x"
    assert await content(stores, "file-1") == b""


async def test_the_input_of_a_batch_cannot_be_deleted_before_its_end(stores: Stores) -> None:
    book, files = stores.ledger(), stores.files
    batch = await started_batch(stores, book)
    stores.now_s = 102
    with pytest.raises(FileInUse, match="batch_0"):
        await files.delete("", "file-0")
    stores.now_s = 103
    await book.finish(batch.id, BatchStatus.EXPIRED)
    stores.now_s = 104
    await files.delete("", "file-0")
    await files.prune("file-0")
    assert await content(stores, "file-0") == b""


async def test_other_owners_see_nothing(stores: Stores) -> None:
    files, batches = stores.files, stores.batches
    await store_file(files, a_file(owner="ann"))
    await batches.create(a_batch(owner="ann"))
    for attempt in (
        lambda: files.get("bob", "file-0"),
        lambda: files.delete("bob", "file-0"),
        lambda: files.page("bob", PageQuery(limit=1, after="file-0")),
        lambda: batches.get("bob", "batch_0"),
        lambda: batches.cancel("bob", "batch_0"),
        lambda: batches.page("bob", PageQuery(limit=1, after="batch_0")),
        lambda: batches.create(a_batch(1, owner="bob")),
    ):
        with pytest.raises(JobObjectNotFound):
            await attempt()


async def test_a_row_ends_once(stores: Stores) -> None:
    book = stores.ledger()
    batch = await started_batch(stores, book)
    await book.record(batch, [result(1), result(3, is_ok=False)])
    with pytest.raises(IntegrityError):
        await book.record(batch, [result(2), result(1)])
    assert await book.ended_rows(batch.id) == {1, 3}
    stored = await stores.batches.get("", batch.id)
    assert (stored.completed, stored.failed, stored.output_tokens) == (1, 1, 4)


async def test_the_output_is_in_the_order_of_the_input(stores: Stores) -> None:
    book = stores.ledger()
    batch = await started_batch(stores, book)
    for line in (3, 1, 2):
        await book.record(batch, [result(line)])
    assert (await stores.batches.get("", batch.id)).output_file_id is None
    stores.now_s = 102
    assert await book.move(batch.id, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
    stores.now_s = 103
    assert await book.finish(batch.id, BatchStatus.COMPLETED) is BatchStatus.COMPLETED
    stored = await stores.batches.get("", batch.id)
    assert (stored.output_file_id, stored.error_file_id, stored.lease_holder) == ("file-out-0", None, None)
    assert await content(stores, "file-out-0") == b"1\n2\n3\n"
    assert (await stores.files.get("", "file-out-0")).bytes == 6


async def test_a_wrong_input_is_stored_with_its_errors(stores: Stores) -> None:
    book, batches = stores.ledger(), stores.batches
    await store_file(stores.files, a_file())
    batch = await batches.create(a_batch())
    await book.claim(batch)
    errors = [LineError("invalid_json_line", "no", None, 3)]
    stores.now_s = 101
    await book.finish(batch.id, BatchStatus.FAILED, errors=errors)
    stored = await batches.get("", batch.id)
    assert (stored.status, stored.failed_at, stored.errors) == (BatchStatus.FAILED, 101, errors)


async def test_one_ledger_holds_a_batch(stores: Stores) -> None:
    first, second = stores.ledger(), stores.ledger()
    batch = await started_batch(stores, first)
    stores.now_s = 110
    assert await second.unfinished("m") == []
    assert not await second.claim(batch)
    await first.release(batch.id)
    (free,) = await second.unfinished("m")
    assert await second.claim(free)
    for write in (
        lambda: first.record(batch, [result(1)]),
        lambda: first.move(batch.id, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING),
        lambda: first.finish(batch.id, BatchStatus.EXPIRED),
        lambda: first.status(batch.id),
    ):
        with pytest.raises(LeaseLost):
            await write()
    await first.release(batch.id)
    stores.now_s = 111
    assert await first.renew() == {}
    assert await second.renew() == {batch.id: BatchStatus.IN_PROGRESS}
    assert await second.ended_rows(batch.id) == set()


async def test_the_lease_of_another_machine_runs_out_unless_it_is_renewed(stores: Stores) -> None:
    first, second = stores.ledger("elsewhere 1 1 x"), stores.ledger()
    await started_batch(stores, first)
    stores.now_s = 120
    await first.renew()
    stores.now_s = 149
    assert await second.unfinished("m") == []
    stores.now_s = 150
    assert [batch.id for batch in await second.unfinished("m")] == ["batch_0"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts ticks since the boot")
async def test_a_process_keeps_its_lease_when_the_clock_is_set(
    stores: Stores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Let the wall clock jump, and with it the time of the boot that is computed from it."""
    first, second = stores.ledger(), stores.ledger()
    await started_batch(stores, first)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 12345.0)
    stores.now_s = 10**9
    assert await second.unfinished("m") == []


def test_the_lease_of_a_dead_process_is_free_at_once() -> None:
    holder = new_holder()
    node, pid, started, nonce = holder.split(" ")
    unused = next(n for n in range(2**22, 1, -1) if not psutil.pid_exists(n))
    for other, is_free in {
        holder: False,
        f"{node} {unused} {started} {nonce}": True,
        f"{node} {pid} {started}1 {nonce}": True,
        f"elsewhere {unused} {started} {nonce}": False,
        f"{node} {pid} another-boot:{started.rpartition(chr(58))[2]} {nonce}": True,
    }.items():
        assert is_left_behind(other, 100.0, 99.0) == is_free, other


async def test_batches_of_other_models_are_left_alone_until_they_must_end(stores: Stores) -> None:
    book, batches = stores.ledger(), stores.batches
    await store_file(stores.files, a_file())
    for number in (0, 1):
        await batches.create(a_batch(number, model="other"))
    stores.now_s = 110
    assert await book.unfinished("m") == []
    await batches.cancel("", "batch_1")
    assert [batch.id for batch in await book.unfinished("m")] == ["batch_1"]
    stores.now_s = 1000
    assert [batch.id for batch in await book.unfinished("m")] == ["batch_0", "batch_1"]


async def test_a_cancellation_wins_over_the_end_of_the_work(stores: Stores) -> None:
    book, batches = stores.ledger(), stores.batches
    batch = await started_batch(stores, book)
    await book.record(batch, [result(1)])
    stores.now_s = 102
    assert (await batches.cancel("", batch.id)).status is BatchStatus.CANCELLING
    stores.now_s = 105
    assert (await batches.cancel("", batch.id)).cancelling_at == 102
    stores.now_s = 103
    assert not await book.move(batch.id, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING)
    stores.now_s = 104
    assert await book.finish(batch.id, BatchStatus.EXPIRED) is BatchStatus.CANCELLED
    assert (await batches.get("", batch.id)).output_file_id == "file-out-0"
    stores.now_s = 106
    with pytest.raises(BatchConflict):
        await batches.cancel("", batch.id)


def test_states_move_one_way() -> None:
    assert not BatchStatus.FINALIZING.may_become(BatchStatus.CANCELLING)
    assert not BatchStatus.CANCELLING.may_become(BatchStatus.COMPLETED)


def _execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


async def test_a_database_of_the_first_version_is_migrated_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    async with stores_at(str(path)) as stores:
        await store_file(stores.files, a_file(), b"data")
    for table in ("responses", "response_items", "response_events", "conversations", "conversation_items"):
        _execute(path, f"DROP TABLE {table}")
    _execute(path, "DROP TABLE usage", "UPDATE schema_version SET version = 1")
    for _ in range(2):
        async with stores_at(str(path)) as stores:
            assert (await stores.files.get("", "file-0")).bytes == 4
            assert await stores.responses.purge_some() == 0


async def test_a_database_without_seconds_of_sound_gets_them(where: str) -> None:
    database = open_database(where)
    with database.write() as connection:
        for statement in (
            "ALTER TABLE usage DROP COLUMN audio_seconds",
            "INSERT INTO usage VALUES ('2026-11-02', 'ann', 'm', 1, 2, 0, 3, 1.5, 0, 0, 0)",
            "UPDATE schema_version SET version = 4",
        ):
            connection.execute(text(statement))
    database.close()
    for seconds in (30.0, 60.0):
        page = PageQuery(limit=9, is_ascending=True)
        async with stores_at(where) as stores:
            await stores.usage.write({UsageSlot("2026-11-02", "ann", "m"): Amounts(audio_seconds=30.0)})
            used = (await stores.usage.page(UsageQuery(page=page))).total.amounts
        assert used == Amounts(requests=1, input_tokens=2, output_tokens=3, cpu_ms=1.5, audio_seconds=seconds)


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_database(str(path)).close()
    _execute(path, "UPDATE schema_version SET version = 99")
    with pytest.raises(StartupError, match="version 99, and this program needs 5"):
        open_database(str(path))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("mysql://h/d", "mysql is not supported"),
        ("no url://", "neither a path nor"),
        ("/proc/nowhere/jobs.db", "cannot open"),
        # Either the driver or the server is missing; neither message has the password.
        ("postgresql://ann:hunter2@127.0.0.1:1/x", "cannot (open the jobs database|use) postgresql"),
    ],
)
def test_an_unavailable_database_is_one_line(where: str, message: str) -> None:
    with pytest.raises(StartupError, match=message) as refusal:
        open_database(where)
    assert "\n" not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StartupError, match="cannot open"):
        open_database(str(tmp_path / "jobs.db"))


async def test_sqlite_syncs_every_commit(sqlite: Stores) -> None:
    with sqlite.database.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


async def test_rows_are_locked_on_postgresql(sqlite: Stores) -> None:
    """Read the SQL for PostgreSQL; SQLite has one writer at a time."""
    compiled: list[str] = []

    def record_sql(_: object, statement: object, *rest: object) -> None:
        if hasattr(statement, "compile"):
            compiled.append(str(statement.compile(dialect=postgresql.dialect())))

    event.listen(Engine, "before_execute", record_sql)
    try:
        batch = await started_batch(sqlite, book := sqlite.ledger())
        begin = [sql for sql in compiled if "FOR UPDATE" in sql]
        await book.finish(batch.id, BatchStatus.EXPIRED)
    finally:
        event.remove(Engine, "before_execute", record_sql)
    assert 0 < len(begin) < len([sql for sql in compiled if "FOR UPDATE" in sql])
