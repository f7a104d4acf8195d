"""Usage by day, key and model, from several servers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import NamedTuple

import anyio
import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from openai_cpu_server.contract.figures import Amounts, Price
from openai_cpu_server.jobs.records import PageQuery
from openai_cpu_server.jobs.store import database as db
from openai_cpu_server.storage.breaker import CircuitBreaker

_COLUMNS: dict[str, sa.Column[str]] = {
    "day": db.usage.c.day,
    "key": db.usage.c.owner,
    "model": db.usage.c.model,
}
GROUPS = tuple(_COLUMNS)
_AMOUNTS = Amounts.__struct_fields__
_TIMES = ("cpu_ms", "audio_seconds")
_MILLION = 1_000_000


class UsageSlot(NamedTuple):
    day: str
    """`YYYY-MM-DD`, in UTC."""
    key: str
    model: str


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Filters of None select all."""

    start: str | None = None
    end: str | None = None
    keys: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    by: tuple[str, ...] = GROUPS
    prices: Mapping[str, Price] = {}
    page: PageQuery
    after: tuple[str, ...] | None = None
    """Values of `by` in the last row that the client has seen."""


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Ungrouped columns are None."""

    day: str | None = None
    key: str | None = None
    model: str | None = None
    amounts: Amounts
    cost: float | None
    """Unset without a price."""


class UsagePage(NamedTuple):
    rows: list[UsageSum]
    has_more: bool
    total: UsageSum


logger = logging.getLogger(__name__)

WRITE_S = 5.0
"""Seconds that a killed process loses."""


@dataclass(eq=False)
class UsageBook(db.Repository):
    """Unwritten sums stay in memory, one for each key, model and day."""

    write_s: float = WRITE_S

    def __post_init__(self) -> None:
        self._unwritten: dict[UsageSlot, Amounts] = {}
        self._lock = anyio.Lock()
        self._breaker = CircuitBreaker(
            fails="the usage of keys cannot be written: %s",
            back="the usage of keys is written again",
            failure=db.unavailable_reason,
        )

    def add(self, key: str, model: str, amounts: Amounts) -> None:
        now = datetime.fromtimestamp(self.clock(), tz=timezone.utc)
        self._add(UsageSlot(now.date().isoformat(), key, model), amounts)

    async def run(self) -> None:
        while True:
            await anyio.sleep(self.write_s)
            await self.save()

    async def save(self) -> None:
        try:
            await self._breaker.attempt(self._write_new)
        except Exception:
            logger.exception("the usage of keys cannot be written")

    async def page(self, query: UsageQuery) -> UsagePage:
        """Other servers' last seconds are missing."""
        await self._write_new()
        return await self._page(query)

    @db.reads
    def _page(self, connection: sa.Connection, query: UsageQuery) -> UsagePage:
        columns = [_COLUMNS[name] for name in query.by]
        sums = [sa.func.coalesce(sa.func.sum(db.usage.c[name]), 0).label(name) for name in _AMOUNTS]
        sums.append(_cost(query.prices).label("cost"))
        conditions = _conditions(query)
        total = connection.execute(sa.select(*sums).where(*conditions)).mappings().one()
        if not columns:
            return UsagePage([], False, _sum(total))
        rows = sa.select(*(_COLUMNS[name].label(name) for name in query.by), *sums).where(*conditions)
        if query.after is not None:
            seen, these = sa.tuple_(*query.after), sa.tuple_(*columns)
            rows = rows.where(these > seen if query.page.is_ascending else these < seen)
        ordered = [column if query.page.is_ascending else column.desc() for column in columns]
        rows = rows.group_by(*columns).order_by(*ordered).limit(query.page.limit + 1)
        found = connection.execute(rows).mappings().all()
        page = [_sum(row) for row in found[: query.page.limit]]
        return UsagePage(page, len(found) > query.page.limit, _sum(total))

    async def _write_new(self) -> None:
        """Failed writes lose nothing."""
        async with self._lock:
            new, self._unwritten = self._unwritten, {}
            if not new:
                return
            try:
                with anyio.CancelScope(shield=True):  # a cancelled write may have taken effect
                    await self.write(new)
            except Exception:
                for slot, amounts in new.items():
                    self._add(slot, amounts)
                raise

    @db.writes
    def write(self, connection: sa.Connection, amounts: Mapping[UsageSlot, Amounts]) -> None:
        """Add in sorted order, so that servers do not deadlock."""
        rows = [
            {"day": slot.day, "owner": slot.key, "model": slot.model, **msgspec.structs.asdict(amounts[slot])}
            for slot in sorted(amounts)
        ]
        is_sqlite = connection.dialect.name == "sqlite"
        insert = sqlite.insert(db.usage) if is_sqlite else postgresql.insert(db.usage)
        sums = {name: db.usage.c[name] + insert.excluded[name] for name in _AMOUNTS}
        key = db.usage.primary_key.columns
        connection.execute(insert.on_conflict_do_update(index_elements=key, set_=sums), rows)

    def _add(self, slot: UsageSlot, amounts: Amounts) -> None:
        self._unwritten[slot] = self._unwritten.get(slot, Amounts()) + amounts


def _conditions(query: UsageQuery) -> list[sa.ColumnElement[bool]]:
    conditions = []
    if query.start is not None:
        conditions.append(db.usage.c.day >= query.start)
    if query.end is not None:
        conditions.append(db.usage.c.day <= query.end)
    if query.keys is not None:
        conditions.append(db.usage.c.owner.in_(query.keys))
    if query.models is not None:
        conditions.append(db.usage.c.model.in_(query.models))
    return conditions


def _cost(prices: Mapping[str, Price]) -> sa.ColumnElement[float]:
    names = ("input_tokens", "cached_tokens", "output_tokens", "audio_seconds")
    tokens, cached, output, audio_s = (sa.cast(db.usage.c[name], sa.Float) for name in names)
    costs = [
        (
            db.usage.c.model == model,
            ((tokens - cached) * price.input + cached * price.cached + output * price.output) / _MILLION
            + audio_s * (price.audio_minute / 60),
        )
        for model, price in prices.items()
    ]
    if not costs:
        return sa.cast(sa.null(), sa.Float)
    return sa.cast(sa.func.sum(sa.case(*costs, else_=sa.null())), sa.Float)


def _sum(row: sa.RowMapping) -> UsageSum:
    group = {name: row[name] for name in GROUPS if name in row}
    # PostgreSQL's sums of integers are decimals.
    numbers = {name: float(row[name]) if name in _TIMES else int(row[name]) for name in _AMOUNTS}
    amounts = msgspec.convert(numbers, db.learned(Amounts))
    cost: float | None = row["cost"]
    return UsageSum(**group, amounts=amounts, cost=None if cost is None else float(cost))
