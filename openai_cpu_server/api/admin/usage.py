from __future__ import annotations

import re
from datetime import date

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.state import AppState, page_ends, response_of
from openai_cpu_server.errors import Forbidden, wrong_value
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response, page_of
from openai_cpu_server.http.keys import INFERENCE, Identity, Scope
from openai_cpu_server.http.routes import ApiRoute, ApiRouter
from openai_cpu_server.jobs.store.database import storable
from openai_cpu_server.jobs.usage import GROUPS, UsageQuery, UsageSum

_LISTED, _MAX_LISTED = 100, 1000
_MOST_NAMES = 100
_QUERY_FIELDS = frozenset({"start", "end", "model", "key", "group_by", "limit", "after", "order"})
_NAMELESS = "-"
"""Empty name, which no key has."""


class UsageRow(msgspec.Struct, frozen=True, kw_only=True):
    """Sum of usage. `day`, `key` and `model` are null if `group_by` does not contain them."""

    id: str
    object: str = "usage"
    day: str | None
    """`YYYY-MM-DD` in UTC."""
    key: str | None
    """Empty without a named key, as for `--api-key`."""
    model: str | None
    requests: int
    """Computed calls and batch rows."""
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    audio_seconds: float
    cpu_seconds: float
    recalled_requests: int
    """Calls answered by the answer cache, which other numbers exclude."""
    recalled_input_tokens: int
    recalled_output_tokens: int
    cost: float | None
    """Price at present. Null if no model in the sum has one."""


class UsageList(msgspec.Struct, frozen=True, kw_only=True):
    object: str = "list"
    data: list[UsageRow]
    total: UsageRow
    first_id: str | None
    last_id: str | None
    has_more: bool


class UsageRoutes:
    def __init__(self, state: AppState) -> None:
        assert state.jobs is not None, "not served without"
        self._jobs = state.jobs
        self._prices = state.options.prices

    @ApiRoute(
        "GET",
        "/v1/usage",
        INFERENCE,
        "Operation",
        query={
            "start": {"type": "string", "format": "date", "description": "the first day, in UTC"},
            "end": {"type": "string", "format": "date", "description": "the last day"},
            "model": {"type": "string", "description": "only this one; may be given several times"},
            "key": {"type": "string", "description": "only the key of this name; may be given several times"},
            "group_by": {
                "type": "string",
                "default": ",".join(GROUPS),
                "description": "the rest is added up",
            },
            **PAGE_QUERY,
            "order": {"enum": list(ORDERS), "default": "desc"},
        },
        answer=UsageList,
        errors=(503,),
    )
    async def list(self, request: Request) -> Response:
        """Sum up the caller's use, or all use for an administrator, by day, key and model."""
        query = self._query(request.query_params, context_of(request.scope).identity)
        page = await self._jobs.usage.page(query)
        rows = [_row(one, query.by) for one in page.rows]
        listing = UsageList(data=rows, total=_row(page.total, ()), **page_ends(rows), has_more=page.has_more)
        return json_response(listing)

    def _query(self, query: QueryParams, identity: Identity) -> UsageQuery:
        page = page_of(query, names=_QUERY_FIELDS, default=_LISTED, most=_MAX_LISTED)
        by = _groups(query)
        start, end = _day(query, "start"), _day(query, "end")
        if start is not None and end is not None and end < start:
            raise wrong_value("end", "a day that is not before 'start'")
        return UsageQuery(
            start=start,
            end=end,
            keys=_keys(query, identity),
            models=_names(query, "model"),
            by=by,
            prices=self._prices,
            page=page,
            after=None if page.after is None else _seen(page.after, by),
        )


def _keys(query: QueryParams, identity: Identity) -> tuple[str, ...] | None:
    names = _names(query, "key")
    if identity.may(Scope.ADMIN):
        return names
    own = (identity.holder or "",)
    if names is not None and names != own:
        raise Forbidden(Scope.ADMIN.value)
    return own


def _names(query: QueryParams, param: str) -> tuple[str, ...] | None:
    names = tuple(dict.fromkeys(query.getlist(param)))
    if len(names) > _MOST_NAMES:
        raise wrong_value(param, f"at most {_MOST_NAMES} of them")
    return tuple(map(storable, names)) or None


def _groups(query: QueryParams) -> tuple[str, ...]:
    """An empty name sums up everything."""
    if "group_by" not in query:
        return GROUPS
    names = {name for one in query.getlist("group_by") for name in one.split(",") if name}
    if not names <= set(GROUPS):
        raise wrong_value("group_by", f"some of {', '.join(GROUPS)}")
    return tuple(name for name in GROUPS if name in names)


def _day(query: QueryParams, param: str) -> str | None:
    text = query.get(param)
    if text is None:
        return None
    try:
        return date.fromisoformat(
            text if re.fullmatch(r"\d{4}-\d{2}-\d{2}", text, re.ASCII) else ""
        ).isoformat()
    except ValueError:
        raise wrong_value(param, "a day in UTC, YYYY-MM-DD") from None


def _seen(row_id: str, by: tuple[str, ...]) -> tuple[str, ...]:
    parts = storable(row_id).split("/", len(by) - 1) if by else []
    if not by or len(parts) != len(by):
        raise wrong_value("after", "the id of a row of the same 'group_by'")
    named = zip(by, parts, strict=True)
    return tuple("" if (name, part) == ("key", _NAMELESS) else part for name, part in named)


def _row(one: UsageSum, by: tuple[str, ...]) -> UsageRow:
    used = one.amounts
    # The model comes last in an id, because only its name may contain a slash.
    parts = {"day": one.day, "key": one.key or _NAMELESS, "model": one.model}
    return response_of(
        UsageRow,
        used,
        id="/".join(parts[name] or "" for name in by) or "all",
        day=one.day,
        key=one.key,
        model=one.model,
        audio_seconds=round(used.audio_seconds, 3),
        cpu_seconds=round(used.cpu_ms / 1000, 6),
        cost=None if one.cost is None else round(one.cost, 9),
    )


ROUTER = ApiRouter[AppState](UsageRoutes, is_served=lambda state: state.jobs is not None)
