"""Opening of stores: a refusal is one line, and files of other programs are not changed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from openai_cpu_server.answers.cache import open_answers
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import AnswerEntry, StoreBounds, StoreFailed
from openai_cpu_server.errors import StartupError

BOUNDS = StoreBounds(60, 10_000)


def test_on_opens_the_file_in_the_users_directory(tmp_path: Path) -> None:
    store = open_answers("on", BOUNDS, default=tmp_path / "data" / "answers.db")
    assert isinstance(store, SqliteAnswers)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "data").iterdir()}
    assert modes["answers.db"] == 0o600
    assert set(modes.values()) == {0o600}


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE answers (precious)")
    theirs.close()
    before = path.read_bytes()
    with pytest.raises(StartupError, match=r"jobs\.db is a database of another program"):
        open_answers(str(path), BOUNDS, default=path)
    assert path.read_bytes() == before


def test_a_file_that_is_not_a_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir " * 1000)
    with pytest.raises(StartupError, match="cannot open the cache of answers"):
        open_answers(str(path), BOUNDS, default=path)
    assert path.read_text() == "Dear Sir " * 1000


@pytest.mark.anyio
async def test_a_file_of_another_version_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteAnswers.open(path, BOUNDS)
    await store.put(AnswerEntry(key="k", answer=b"x"))
    await store.close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    store = SqliteAnswers.open(path, BOUNDS)
    assert (await store.get("k"), await store.size()) == (None, (0, 0))
    await store.close()


@pytest.mark.parametrize("where", ["http://host", "redis://user:secret@host:port", "postgresql://secret@x"])
def test_a_wrong_address_is_not_repeated(where: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError) as refused:
        open_answers(where, BOUNDS, default=tmp_path / "a.db")
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


BY_AN_EARLIER_SERVER = """
CREATE TABLE answers (
    key TEXT PRIMARY KEY,
    grp TEXT,
    vector BLOB,
    answer BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    expires_at REAL NOT NULL,
    used_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX by_group ON answers (grp, used_at) WHERE grp IS NOT NULL;
CREATE INDEX by_use ON answers (used_at, bytes);
CREATE INDEX by_expiry ON answers (expires_at);
CREATE TABLE totals (entries INTEGER NOT NULL, bytes INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER came AFTER INSERT ON answers BEGIN
    UPDATE totals SET entries = entries + 1, bytes = bytes + new.bytes;
END;
CREATE TRIGGER went AFTER DELETE ON answers BEGIN
    UPDATE totals SET entries = entries - 1, bytes = bytes - old.bytes;
END;
INSERT INTO answers VALUES ('k', NULL, NULL, X'61', 202, 1e12, 1.0);
PRAGMA application_id = 0x6F637361;
PRAGMA user_version = 1;
"""


@pytest.mark.anyio
async def test_the_file_of_an_earlier_server_can_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as file:
        file.executescript(BY_AN_EARLIER_SERVER)
    file.close()
    store = SqliteAnswers.open(path, BOUNDS)
    assert (await store.get("k"), await store.size()) == (b"a", (1, 202))
    assert (await store.put(AnswerEntry(key="l", answer=b"x"))).entries == 2
    await store.close()


@pytest.mark.anyio
async def test_a_file_is_the_same_to_an_earlier_server(tmp_path: Path) -> None:
    """Compare schemas, because both servers may run while one replaces the other."""
    path = tmp_path / "a.db"
    await SqliteAnswers.open(path, BOUNDS).close()
    with sqlite3.connect(path) as ours, sqlite3.connect(":memory:") as theirs:
        theirs.executescript(BY_AN_EARLIER_SERVER)
        one, other = (
            (
                file.execute("SELECT type, name, tbl_name FROM sqlite_master ORDER BY name").fetchall(),
                [row[1:4] for row in file.execute("PRAGMA table_info(answers)").fetchall()],
                file.execute("PRAGMA user_version").fetchone(),
            )
            for file in (ours, theirs)
        )
        assert one == other
    ours.close()
    theirs.close()


@pytest.mark.anyio
async def test_a_failing_database_is_reported_by_the_type_of_its_error(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteAnswers.open(path, BOUNDS)
    with sqlite3.connect(path) as file:
        file.execute("DROP TABLE answers")
    file.close()
    with pytest.raises(StoreFailed, match=r"^OperationalError$"):
        await store.get("k")
    await store.close()
    with pytest.raises(StoreFailed):
        await store.get("k")
