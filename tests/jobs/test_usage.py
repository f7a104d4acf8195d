"""Usage of keys: sums in memory and in the database, of one server and of several."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from openai_cpu_server.contract.figures import Amounts, Price
from openai_cpu_server.errors import JobsUnavailable
from openai_cpu_server.jobs.records import PageQuery
from openai_cpu_server.jobs.usage import UsageBook, UsageQuery, UsageSlot
from tests.jobs.support import jobs_at
from tests.jobs.test_stores import stores_at
from tests.waiting import eventually

pytestmark = pytest.mark.anyio

MONDAY, TUESDAY = "2026-11-23", "2026-11-24"
NOON_S = 1795435200.0  # of that Monday
ALL = PageQuery(limit=100, is_ascending=True)
ONE = Amounts(requests=1, input_tokens=10, cached_tokens=4, output_tokens=2, audio_seconds=30.0, cpu_ms=1.5)


def query(**fields: object) -> UsageQuery:
    return UsageQuery(**{"page": ALL, **fields})  # type: ignore[arg-type]


async def test_usage_survives_a_restart_and_servers_add_up(where: str) -> None:
    clock = lambda: NOON_S  # noqa: E731
    async with jobs_at(where, clock=clock) as one, jobs_at(where, clock=clock) as other:
        for jobs in (one, other):
            jobs.usage.add("alice", "m", ONE)
            jobs.usage.add("alice", "m", Amounts(cpu_ms=0.5))
        other.usage.add("", "m", Amounts(recalled_requests=1, recalled_input_tokens=3))
        (row,) = (await one.usage.page(query())).rows
        assert (row.day, row.key, row.model) == (MONDAY, "alice", "m")
        assert row.amounts == ONE + Amounts(cpu_ms=0.5), "the other server has not written yet"
    async with jobs_at(where) as later:
        page = await later.usage.page(query())
    assert [row.key for row in page.rows] == ["", "alice"]
    assert page.rows[1].amounts == ONE + ONE + Amounts(cpu_ms=1.0)
    assert page.total.amounts == page.rows[0].amounts + page.rows[1].amounts


@pytest.fixture
async def book(where: str) -> AsyncIterator[UsageBook]:
    async with stores_at(where) as stores:
        for day in (MONDAY, TUESDAY):
            slots = [UsageSlot(day, key, model) for key in ("a", "b") for model in ("m", "org/n")]
            await stores.usage.write(dict.fromkeys(slots, ONE))
        yield stores.usage


async def rows(book: UsageBook, **fields: object) -> list[tuple[str | None, str | None, str | None, int]]:
    page = await book.page(query(**fields))
    return [(row.day, row.key, row.model, row.amounts.requests) for row in page.rows]


async def test_usage_is_filtered_and_grouped(book: UsageBook) -> None:
    assert len(await rows(book)) == 8
    assert await rows(book, start=TUESDAY, keys=("a",), models=("m",)) == [(TUESDAY, "a", "m", 1)]
    assert await rows(book, end=MONDAY, by=("day",)) == [(MONDAY, None, None, 4)]
    by_both = await rows(book, by=("key", "model"), models=("org/n",))
    assert by_both == [(None, key, "org/n", 2) for key in ("a", "b")]
    assert await rows(book, keys=("absent",)) == await rows(book, by=()) == []
    assert (await book.page(query(by=()))).total.amounts.requests == 8
    assert (await book.page(query(keys=("absent",)))).total.amounts == Amounts()


@pytest.mark.parametrize("is_ascending", [True, False])
async def test_pages_have_each_row_once(book: UsageBook, is_ascending: bool) -> None:
    found, after, has_more = [], None, True
    while has_more:
        limit = PageQuery(limit=3, is_ascending=is_ascending)
        page = await book.page(query(page=limit, after=after))
        found += [(str(row.day), str(row.key), str(row.model)) for row in page.rows]
        after, has_more = found[-1], page.has_more
        assert page.total.amounts.requests == 8
    assert found == sorted(set(found), reverse=not is_ascending)
    assert len(found) == 8


async def test_only_models_with_a_price_have_costs(book: UsageBook) -> None:
    prices = {"m": Price(input=1e6, cached=1e5, output=2e6, audio_minute=0.5)}
    cost = 6 + 4 / 10 + 4 + 0.25
    page = await book.page(query(prices=prices, by=("model",)))
    assert [row.cost for row in page.rows] == [pytest.approx(4 * cost), None]
    assert page.total.cost == pytest.approx(4 * cost)
    assert (await book.page(query())).total.cost is None


async def test_usage_is_not_lost_while_the_database_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="openai_cpu_server")
    path = tmp_path / "jobs.db"
    async with stores_at(str(path)) as stores:
        book, connection = stores.usage, sqlite3.connect(path)
        connection.execute("ALTER TABLE usage RENAME TO away")
        book.add("a", "m", ONE)
        with pytest.raises(JobsUnavailable):
            await book.page(query())
        for _ in range(2):
            await book.save()
        book.add("a", "m", ONE)
        connection.execute("ALTER TABLE away RENAME TO usage")
        connection.close()
        await book.save()
        page = await book.page(query())
    assert page.total.amounts == ONE + ONE
    away, back = caplog.messages
    assert away.startswith("the usage of keys cannot be written: ")
    assert back == "the usage of keys is written again"


async def test_usage_is_written_periodically(tmp_path: Path) -> None:
    async with stores_at(str(tmp_path / "jobs.db")) as stores, anyio.create_task_group() as group:
        connection = sqlite3.connect(tmp_path / "jobs.db")
        book = UsageBook(stores.database, stores.threads, clock=lambda: NOON_S, write_s=0.01)
        group.start_soon(book.run)
        book.add("a", "m", ONE)
        await eventually(lambda: connection.execute("SELECT day FROM usage").fetchall())
        group.cancel_scope.cancel()
    connection.close()
