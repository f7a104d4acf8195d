"""Stores that cannot be opened: one line at start, and nobody's file is harmed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from openai_cpu_server.answers.open import open_answers
from openai_cpu_server.answers.sqlite import SqliteAnswers
from openai_cpu_server.answers.store import Bounds, Entry
from openai_cpu_server.errors import StartupError

BOUNDS = Bounds(60, 10_000)


def test_on_is_the_file_in_the_users_directory(tmp_path: Path) -> None:
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
    with pytest.raises(StartupError, match=r"jobs\.db is a database of something else"):
        open_answers(str(path), BOUNDS, default=path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Sir " * 1000)
    with pytest.raises(StartupError, match="cannot open the cache of answers"):
        open_answers(str(path), BOUNDS, default=path)
    assert path.read_text() == "Dear Sir " * 1000


@pytest.mark.anyio
async def test_a_file_of_another_version_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteAnswers.open(path, BOUNDS)
    await store.put(Entry(key="k", answer=b"x"))
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
