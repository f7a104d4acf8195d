"""What keys have used: sums by day, key and model, to which several servers add."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Float,
    RowMapping,
    and_,
    case,
    cast,
    func,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects import postgresql, sqlite

from openai_cpu_server.contract.usage import Amounts, Price
from openai_cpu_server.jobs.records import Page
from openai_cpu_server.jobs.store.tables import usage
from openai_cpu_server.storage.database import Database

_COLUMNS: dict[str, Column[str]] = {"day": usage.c.day, "key": usage.c.owner, "model": usage.c.model}
GROUPS = tuple(_COLUMNS)
"""What sums may be told apart by."""
_AMOUNTS = Amounts.__struct_fields__
_MILLION = 1_000_000


class Slot(NamedTuple):
    """Whose amounts are one sum."""

    day: str
    """`YYYY-MM-DD`, in UTC."""
    key: str
    model: str


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which sums are asked for. None: all."""

    start: str | None = None
    """The first day."""
    end: str | None = None
    """The last day."""
    keys: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    by: tuple[str, ...] = GROUPS
    """What is told apart; the rest is added up."""
    prices: Mapping[str, Price] = {}
    """By model."""
    page: Page
    after: tuple[str, ...] | None = None
    """The values of `by` in the last row that the client has seen."""


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """One sum; None where it is not told apart."""

    day: str | None = None
    key: str | None = None
    model: str | None = None
    amounts: Amounts
    cost: float | None
    """None: no model in it has a price."""


class UsagePage(NamedTuple):
    rows: list[UsageSum]
    has_more: bool
    total: UsageSum
    """All that is asked for, on whatever page."""


class UsageStore:
    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, amounts: Mapping[Slot, Amounts]) -> None:
        """Adds to what is there, in one transaction. In one order, so that servers do not block each other
        for good."""
        rows = [_row(slot, amounts[slot]) for slot in sorted(amounts)]
        with self._database.write() as connection:
            connection.execute(_adding(connection), rows)

    def page(self, query: UsageQuery) -> UsagePage:
        columns = [_COLUMNS[name] for name in query.by]
        sums = (*_sums(), _cost(query.prices).label("cost"))
        asked = select(*sums).where(*_conditions(query))
        rows = select(*(_COLUMNS[name].label(name) for name in query.by), *sums).where(*_conditions(query))
        if query.after is not None:
            seen, these = tuple_(*query.after), tuple_(*columns)
            rows = rows.where(these > seen if query.page.is_ascending else these < seen)
        ordered = [column if query.page.is_ascending else column.desc() for column in columns]
        rows = rows.group_by(*columns).order_by(*ordered).limit(query.page.limit + 1)
        with self._database.read() as connection:
            found = connection.execute(rows).mappings().all() if columns else []
            total = connection.execute(asked).mappings().one()
        page = [_sum(row) for row in found[: query.page.limit]]
        return UsagePage(page, len(found) > query.page.limit, _sum(total))


def _row(slot: Slot, amounts: Amounts) -> dict[str, object]:
    return {"day": slot.day, "owner": slot.key, "model": slot.model, **msgspec.structs.asdict(amounts)}


def _adding(connection: Connection) -> postgresql.Insert | sqlite.Insert:
    """Both databases have the statement, SQLAlchemy one of it for each."""
    is_sqlite = connection.dialect.name == "sqlite"
    insert = sqlite.insert(usage) if is_sqlite else postgresql.insert(usage)
    summed = {name: usage.c[name] + insert.excluded[name] for name in _AMOUNTS}
    return insert.on_conflict_do_update(index_elements=usage.primary_key.columns, set_=summed)


def _conditions(query: UsageQuery) -> list[ColumnElement[bool]]:
    found = []
    if query.start is not None:
        found.append(usage.c.day >= query.start)
    if query.end is not None:
        found.append(usage.c.day <= query.end)
    if query.keys is not None:
        found.append(usage.c.owner.in_(query.keys))
    if query.models is not None:
        found.append(usage.c.model.in_(query.models))
    return [and_(*found)] if found else []


def _sums() -> Iterable[ColumnElement[float]]:
    """PostgreSQL's sums of integers are decimals, which fit as well."""
    return (func.coalesce(func.sum(usage.c[name]), 0).label(name) for name in _AMOUNTS)


def _cost(prices: Mapping[str, Price]) -> ColumnElement[float]:
    if not prices:
        return cast(null(), Float)
    priced = [(usage.c.model == model, _price(price)) for model, price in prices.items()]
    return cast(func.sum(case(*priced, else_=null())), Float)


def _price(price: Price) -> ColumnElement[float]:
    computed = cast(usage.c.input_tokens - usage.c.cached_tokens, Float)
    cached, output = cast(usage.c.cached_tokens, Float), cast(usage.c.output_tokens, Float)
    cost = computed * price.input + cached * price.cached + output * price.output
    return cast(cost / _MILLION, Float)


def _sum(row: RowMapping) -> UsageSum:
    told = {name: row[name] for name in GROUPS if name in row}
    amounts = msgspec.convert({name: _number(row, name) for name in _AMOUNTS}, Amounts)
    cost: float | None = row["cost"]
    return UsageSum(**told, amounts=amounts, cost=None if cost is None else float(cost))


def _number(row: RowMapping, name: str) -> int | float:
    return float(row[name]) if name == "cpu_ms" else int(row[name])
