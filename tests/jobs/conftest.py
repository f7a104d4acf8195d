"""Databases of jobs: tests of stores and of several servers run on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.thorough)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Path or URL of an empty database."""
    return _new(request, tmp_path)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same, for tests of a single server."""
    return _new(request, tmp_path)


def _new(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "deep" / "jobs.db")
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.new_database()
