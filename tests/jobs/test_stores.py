"""What is committed, and who may write: on a real SQLite file, and in PostgreSQL's SQL."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Iterator
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
from openai_cpu_server.jobs.responses import ResponseStore
from openai_cpu_server.jobs.store.batches import (
    BatchLedger,
    BatchStore,
    LeaseLost,
    is_left_behind,
    new_holder,
)
from openai_cpu_server.jobs.store.database import open_database
from openai_cpu_server.jobs.store.files import FileStore
from openai_cpu_server.jobs.usage import UsageQuery, UsageSlot, UsageStore
from openai_cpu_server.storage.database import Database


@pytest.fixture
def database(where: str) -> Iterator[Database]:
    one = open_database(where)
    yield one
    one.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Database]:
    one = open_database(str(tmp_path / "jobs.db"))
    yield one
    one.close()


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


def ledger(database: Database) -> BatchLedger:
    return BatchLedger(database, holder=new_holder(), lease_s=30)


def store_file(files: FileStore, record: FileRecord, *content: bytes) -> FileRecord:
    """In as many parts as there are."""
    found = content or (b"x",)
    files.begin(record, until_s=1000)
    files.append(record.id, found, first=1)
    stored = msgspec.structs.replace(record, bytes=sum(map(len, found)))
    files.complete(stored)
    return stored


def prune(files: FileStore, file_id: str) -> None:
    while files.prune(file_id):
        pass


def begun(database: Database, book: BatchLedger, number: int = 0) -> BatchRecord:
    if number == 0:
        store_file(FileStore(database), a_file())
    batch = BatchStore(database).create(a_batch(number))
    assert book.claim(batch, 100)
    assert book.begin(batch.id, num_rows=3, now_s=101)
    return batch


def result(line: int, *, is_ok: bool = True) -> RowResult:
    return RowResult(line=line, is_ok=is_ok, content=b"%d\n" % line, output_tokens=2)


def content(database: Database, file_id: str) -> bytes:
    return b"".join(part for _, part in FileStore(database).parts(file_id, 0))


def test_a_file_comes_back_as_it_was(database: Database) -> None:
    files = FileStore(database)
    stored = store_file(files, a_file(), b"ab", b"c")
    assert stored.bytes == 3
    assert files.get("", "file-0", 100) == stored
    assert content(database, "file-0") == b"abc"


def test_an_upload_is_seen_by_nobody_before_its_end_and_is_swept_if_it_has_none(database: Database) -> None:
    files, batches = FileStore(database), BatchStore(database)
    files.begin(a_file(), until_s=200)
    files.append("file-0", [b"x"], first=1)
    for attempt in (
        lambda: files.get("", "file-0", 100),
        lambda: files.delete("", "file-0", 100),
        lambda: batches.create(a_batch()),
    ):
        with pytest.raises(JobObjectNotFound):
            attempt()
    assert files.page("", PageQuery(limit=9), 100, FilePurpose.PARTIAL) == ([], False)
    assert files.expired(199) == []
    assert files.expired(200) == ["file-0"]
    prune(files, "file-0")
    assert content(database, "file-0") == b""
    with pytest.raises(JobObjectNotFound):
        files.complete(a_file())


def test_a_large_file_is_removed_part_by_part_and_is_gone_at_once(database: Database) -> None:
    files = FileStore(database)
    store_file(files, a_file(), *[b"x"] * 40)
    files.delete("", "file-0", 100)
    with pytest.raises(JobObjectNotFound):
        files.get("", "file-0", 100)
    assert [files.prune("file-0") for _ in range(3)] == [True, True, False]
    assert content(database, "file-0") == b""
    assert files.expired(100) == []


def test_expired_files_are_hidden_then_swept_but_not_inputs_in_use(database: Database) -> None:
    files, batches = FileStore(database), BatchStore(database)
    for number in (0, 1):
        store_file(files, a_file(number, expires_at=200))
    batches.create(a_batch())
    with pytest.raises(JobObjectNotFound):
        files.get("", "file-1", 200)
    assert files.page("", PageQuery(limit=9), 200) == ([], False)
    assert files.expired(200) == ["file-1"]
    prune(files, "file-1")
    assert content(database, "file-0") == b"x"
    assert content(database, "file-1") == b""


def test_the_input_of_a_batch_cannot_be_deleted_before_its_end(database: Database) -> None:
    book, files = ledger(database), FileStore(database)
    batch = begun(database, book)
    with pytest.raises(FileInUse, match="batch_0"):
        files.delete("", "file-0", 102)
    book.finish(batch.id, BatchStatus.EXPIRED, now_s=103)
    files.delete("", "file-0", 104)
    prune(files, "file-0")
    assert content(database, "file-0") == b""


def test_others_see_nothing(database: Database) -> None:
    files, batches = FileStore(database), BatchStore(database)
    store_file(files, a_file(owner="ann"))
    batches.create(a_batch(owner="ann"))
    for attempt in (
        lambda: files.get("bob", "file-0", 100),
        lambda: files.delete("bob", "file-0", 100),
        lambda: files.page("bob", PageQuery(limit=1, after="file-0"), 100),
        lambda: batches.get("bob", "batch_0"),
        lambda: batches.cancel("bob", "batch_0", 100),
        lambda: batches.page("bob", PageQuery(limit=1, after="batch_0")),
        lambda: batches.create(a_batch(1, owner="bob")),
    ):
        with pytest.raises(JobObjectNotFound):
            attempt()


def test_a_row_ends_once(database: Database) -> None:
    book = ledger(database)
    batch = begun(database, book)
    book.record(batch, [result(1), result(3, is_ok=False)])
    with pytest.raises(IntegrityError):
        book.record(batch, [result(2), result(1)])
    assert book.ended_rows(batch.id) == {1, 3}
    stored = BatchStore(database).get("", batch.id)
    assert (stored.completed, stored.failed, stored.output_tokens) == (1, 1, 4)


def test_the_output_is_in_the_order_of_the_input(database: Database) -> None:
    book = ledger(database)
    batch = begun(database, book)
    for line in (3, 1, 2):
        book.record(batch, [result(line)])
    assert BatchStore(database).get("", batch.id).output_file_id is None
    assert book.begin_end(batch.id, now_s=102)
    assert book.finish(batch.id, BatchStatus.COMPLETED, now_s=103) is BatchStatus.COMPLETED
    stored = BatchStore(database).get("", batch.id)
    assert (stored.output_file_id, stored.error_file_id, stored.lease_holder) == ("file-out-0", None, None)
    assert content(database, "file-out-0") == b"1\n2\n3\n"
    assert FileStore(database).get("", "file-out-0", 103).bytes == 6


def test_a_wrong_input_is_kept_with_its_errors(database: Database) -> None:
    book, batches = ledger(database), BatchStore(database)
    store_file(FileStore(database), a_file())
    batch = batches.create(a_batch())
    book.claim(batch, 100)
    errors = [LineError("invalid_json_line", "no", None, 3)]
    book.finish(batch.id, BatchStatus.FAILED, now_s=101, errors=errors)
    stored = batches.get("", batch.id)
    assert (stored.status, stored.failed_at, stored.errors) == (BatchStatus.FAILED, 101, errors)


def test_one_holds_a_batch(database: Database) -> None:
    first, second = ledger(database), ledger(database)
    batch = begun(database, first)
    assert second.unfinished("m", 110) == []
    assert not second.claim(batch, 110)
    first.release(batch.id)
    (free,) = second.unfinished("m", 110)
    assert second.claim(free, 110)
    for write in (
        lambda: first.record(batch, [result(1)]),
        lambda: first.begin_end(batch.id, now_s=111),
        lambda: first.finish(batch.id, BatchStatus.EXPIRED, now_s=111),
        lambda: first.status(batch.id),
    ):
        with pytest.raises(LeaseLost):
            write()
    first.release(batch.id)
    assert first.renew(111) == {}
    assert second.renew(111) == {batch.id: BatchStatus.IN_PROGRESS}
    assert second.ended_rows(batch.id) == set()


def test_the_lease_of_another_machine_runs_out_unless_it_is_renewed(database: Database) -> None:
    first, second = BatchLedger(database, holder="elsewhere 1 1 x", lease_s=30), ledger(database)
    begun(database, first)
    first.renew(120)
    assert second.unfinished("m", 149) == []
    assert [batch.id for batch in second.unfinished("m", 150)] == ["batch_0"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts ticks since the boot")
def test_a_process_keeps_its_lease_when_the_clock_is_set(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wall clock, and the time of the boot that is reckoned from it, jump."""
    first, second = ledger(database), ledger(database)
    begun(database, first)
    monkeypatch.setattr(psutil.Process, "create_time", lambda self: 12345.0)
    assert second.unfinished("m", 1e9) == []


def test_the_lease_of_a_dead_process_is_free_at_once() -> None:
    holder = new_holder()
    node, pid, started, nonce = holder.split(" ")
    unused = next(n for n in range(2**22, 1, -1) if not psutil.pid_exists(n))
    for other, is_free in {
        holder: False,
        f"{node} {unused} {started} {nonce}": True,
        f"{node} {pid} {started}1 {nonce}": True,
        f"elsewhere {unused} {started} {nonce}": False,
    }.items():
        assert is_left_behind(other, 100.0, 99.0) == is_free, other


def test_batches_of_other_models_are_left_alone_until_they_only_have_to_be_ended(database: Database) -> None:
    book, batches = ledger(database), BatchStore(database)
    store_file(FileStore(database), a_file())
    for number in (0, 1):
        batches.create(a_batch(number, model="other"))
    assert book.unfinished("m", 110) == []
    batches.cancel("", "batch_1", 110)
    assert [batch.id for batch in book.unfinished("m", 110)] == ["batch_1"]
    assert [batch.id for batch in book.unfinished("m", 1000)] == ["batch_0", "batch_1"]


def test_a_cancellation_wins_over_the_end_of_the_work(database: Database) -> None:
    book, batches = ledger(database), BatchStore(database)
    batch = begun(database, book)
    book.record(batch, [result(1)])
    assert batches.cancel("", batch.id, 102).status is BatchStatus.CANCELLING
    assert batches.cancel("", batch.id, 105).cancelling_at == 102
    assert not book.begin_end(batch.id, now_s=103)
    assert book.finish(batch.id, BatchStatus.EXPIRED, now_s=104) is BatchStatus.CANCELLED
    assert batches.get("", batch.id).output_file_id == "file-out-0"
    with pytest.raises(BatchConflict):
        batches.cancel("", batch.id, 106)


def test_states_move_one_way() -> None:
    assert not BatchStatus.FINALIZING.may_become(BatchStatus.CANCELLING)
    assert not BatchStatus.CANCELLING.may_become(BatchStatus.COMPLETED)


def _execute(path: Path, *statements: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_a_database_of_the_first_version_is_brought_forward_and_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    database = open_database(str(path))
    store_file(FileStore(database), a_file(), b"kept")
    database.close()
    for table in ("responses", "response_items", "response_events", "conversations", "conversation_items"):
        _execute(path, f"DROP TABLE {table}")
    _execute(path, "DROP TABLE usage", "UPDATE schema_version SET version = 1")
    for _ in range(2):
        database = open_database(str(path))
        assert FileStore(database).get("", "file-0", 0).bytes == 4
        assert ResponseStore(database).purge(0) == 0
        database.close()


def test_a_database_without_seconds_of_sound_gets_them(where: str) -> None:
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
        database = open_database(where)
        store, page = UsageStore(database), PageQuery(limit=9, is_ascending=True)
        store.add({UsageSlot("2026-11-02", "ann", "m"): Amounts(audio_seconds=30.0)})
        used = store.page(UsageQuery(page=page)).total.amounts
        assert used == Amounts(requests=1, input_tokens=2, output_tokens=3, cpu_ms=1.5, audio_seconds=seconds)
        database.close()


def test_a_database_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    open_database(str(path)).close()
    _execute(path, "UPDATE schema_version SET version = 99")
    with pytest.raises(StartupError, match="of version 99, this program needs 5"):
        open_database(str(path))


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("mysql://h/d", "mysql is not supported"),
        ("no url://", "neither a path nor"),
        ("/proc/nowhere/jobs.db", "cannot open"),
        # Refused for what is missing, the driver or the server; in either case without the password.
        ("postgresql://ann:hunter2@127.0.0.1:1/x", "cannot (open the jobs database|use) postgresql"),
    ],
)
def test_a_database_that_cannot_be_had_is_one_line(where: str, said: str) -> None:
    with pytest.raises(StartupError, match=said) as refusal:
        open_database(where)
    assert "\n" not in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StartupError, match="cannot open"):
        open_database(str(tmp_path / "jobs.db"))


def test_sqlite_syncs_every_commit(sqlite: Database) -> None:
    with sqlite.read() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_every_statement_is_postgresql_too(sqlite: Database) -> None:
    """All that the tests of a whole life execute is compiled for the other dialect, server or not."""
    compiled: list[str] = []

    @event.listens_for(Engine, "before_execute")
    def compile_it(_: object, statement: object, *rest: object) -> None:
        if hasattr(statement, "compile"):
            compiled.append(str(statement.compile(dialect=postgresql.dialect())))

    try:
        book, files = ledger(sqlite), FileStore(sqlite)
        batch = begun(sqlite, book)
        book.unfinished("m", 110)
        book.record(batch, [result(1), result(2, is_ok=False)])
        book.ended_rows(batch.id)
        book.renew(111)
        book.release(batch.id)
        book.claim(BatchStore(sqlite).get("", batch.id), 112)
        book.begin_end(batch.id, now_s=113)
        book.finish(batch.id, BatchStatus.COMPLETED, now_s=114)
        BatchStore(sqlite).page("", PageQuery(limit=1, after=batch.id))
        files.page("", PageQuery(limit=1, after="file-0", is_ascending=True), 114, FilePurpose.BATCH)
        files.delete("", "file-0", 114)
        files.expired(114)
        files.prune("file-0")
    finally:
        event.remove(Engine, "before_execute", compile_it)
    assert len(compiled) > 25
    assert any("FOR UPDATE" in sql for sql in compiled)
    assert any("IS NOT DISTINCT FROM" in sql for sql in compiled)
