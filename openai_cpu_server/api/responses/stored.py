"""Stored responses: `GET`, `DELETE`, `/cancel` and `/input_items` of `/v1/responses/{id}`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from functools import partial

import anyio
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.renderer import events
from openai_cpu_server.api.generation.route import NO_STORE_HEADERS, event_source
from openai_cpu_server.api.parts import page_ends
from openai_cpu_server.api.responses.objects import (
    SERVER_ERROR,
    ItemList,
    ResponseDeleted,
    ResponseObject,
    cancelled,
    failed,
)
from openai_cpu_server.api.responses.reader import NO_DATABASE
from openai_cpu_server.api.responses.running import Background, LiveResponse
from openai_cpu_server.api.responses.stream import EventNumbers, encoded
from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound, unknown_parameter, wrong, wrong_value
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ErrorBody, ErrorObject, json_response, page_of
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import ResponseRecord, ResponseStatus
from openai_cpu_server.jobs.responses import ResponseRepository

_LISTED, _MAX_LISTED = 20, 100
_POLL_S = 1.0
"""Interval for polling a response of another server."""
_IGNORED = ("include", "include[]", "include_obfuscation")
"""OpenAI's parameters without an effect, because everything is shown."""
_LEFT_BEHIND = "The server that made this response has ended."


class StoredResponses:
    """`kept`, `background`: None if responses are not stored."""

    def __init__(
        self, kept: ResponseRepository | None, background: Background | None, options: ApiOptions
    ) -> None:
        self._kept = kept
        self._background = background
        self._options = options

    async def one(self, request: Request) -> ASGIApp:
        _check_known(request.query_params)
        owner, response_id = _named(request)
        after = _starting_after(request.query_params)
        if _wants_stream(request.query_params):
            told = await self._events(owner, response_id, after + 1)
            return logged_stream(told, {}, keep_alive_s=self._options.keep_alive_s)
        return _json(await self._shown(owner, response_id))

    async def delete(self, request: Request) -> Response:
        kept, (owner, response_id) = self._there(), _named(request)
        if (live := self._live(owner, response_id)) is not None:
            await live.cancelled()
        await kept.delete(owner, response_id)
        return json_response(ResponseDeleted(response_id))

    async def cancel(self, request: Request) -> Response:
        """Cancel a response. Repeating this is allowed. Raises InvalidRequest if the response has ended."""
        kept, (owner, response_id) = self._there(), _named(request)
        record = await self._record(owner, response_id)
        if not record.is_background:
            raise wrong("Cannot cancel a response that was not created with 'background'.", "id")
        if record.status is ResponseStatus.CANCELLED:
            return _json(record.response)
        if record.status.has_ended:
            raise _has_ended(record.status)
        if (live := self._live(owner, response_id)) is not None:
            await live.cancelled()
            status = ResponseStatus(live.response.status)
            if status is not ResponseStatus.CANCELLED:  # its own end was faster
                raise _has_ended(status)
            return _json(encoded(live.response))
        ended = cancelled(_object(record), _object(record).output)
        if not await kept.end(_with(record, ended)):
            return _json(await self._shown(owner, response_id))
        return _json(encoded(ended))

    async def input_items(self, request: Request) -> Response:
        known = frozenset({"limit", "after", "order", "include", "include[]"})
        page = page_of(request.query_params, known=known, default=_LISTED, most=_MAX_LISTED)
        items, has_more = await self._there().inputs(*_named(request), page)
        told = [msgspec.Raw(item.content) for item in items]
        listed = ItemList(data=told, **page_ends(items), has_more=has_more)
        size = sum(len(item.content) for item in items)
        return _json(await off_loop(size, partial(msgspec.json.encode, listed)))

    def _there(self) -> ResponseRepository:
        if self._kept is None:
            raise JobObjectNotFound(f"There are no responses: {NO_DATABASE}.")
        return self._kept

    def _live(self, owner: str, response_id: str) -> LiveResponse | None:
        return self._background.find(owner, response_id) if self._background else None

    async def _shown(self, owner: str, response_id: str) -> bytes:
        if (live := self._live(owner, response_id)) is not None:
            if not ResponseStatus(live.response.status).has_ended:
                return encoded(live.response)
            await live.log.ended()  # whoever sees its end may go on from it, so it is stored by then
        return (await self._record(owner, response_id)).response

    async def _record(self, owner: str, response_id: str) -> ResponseRecord:
        """A response whose server has died has failed."""
        kept = self._there()
        record = await kept.get(owner, response_id)
        if not kept.is_left_behind(record):
            return record
        error = ErrorObject(ErrorBody(_LEFT_BEHIND, SERVER_ERROR, None, SERVER_ERROR))
        ended = _with(record, failed(_object(record), _object(record).output, error))
        return ended if await kept.end(ended) else await kept.get(owner, response_id)

    async def _events(self, owner: str, response_id: str, first: int) -> AsyncIterator[bytes]:
        if (live := self._live(owner, response_id)) is not None:
            return live.log.read(first)
        record = await self._record(owner, response_id)
        if not record.is_background:
            raise wrong("Only a response that was created with 'background' can be streamed again.", "stream")
        return self._replayed(record, first)

    async def _replayed(self, record: ResponseRecord, first: int) -> AsyncIterator[bytes]:
        """A response of another server is replayed once it has ended."""
        kept = self._there()
        while not record.status.has_ended:
            await anyio.sleep(_POLL_S)
            record = await self._record(record.owner, record.id)
        stored = await kept.events(record.id)
        if stored is None:  # who made it could not write its end
            yield events([EventNumbers(first).event("response.failed", {"response": _object(record)})])
            return
        for event in stored[first:]:
            yield event


def logged_stream(told: AsyncIterator[bytes], headers: Mapping[str, str], *, keep_alive_s: float) -> ASGIApp:
    return event_source(told, {**NO_STORE_HEADERS, **headers}, keep_alive_s=keep_alive_s)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _named(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


_response = msgspec.json.Decoder(ResponseObject)


def _object(record: ResponseRecord) -> ResponseObject:
    return _response.decode(record.response)


def _with(record: ResponseRecord, response: ResponseObject) -> ResponseRecord:
    status = ResponseStatus(response.status)
    return msgspec.structs.replace(record, status=status, response=encoded(response))


def _has_ended(status: ResponseStatus) -> InvalidRequest:
    return wrong(f"Cannot cancel a response that is {status.value}.", "id")


def _check_known(query: QueryParams) -> None:
    for name in query:
        if name not in ("stream", "starting_after", *_IGNORED):
            raise unknown_parameter(name)


def _wants_stream(query: QueryParams) -> bool:
    given = query.get("stream", "false")
    if given not in ("true", "false"):
        raise wrong_value("stream", "'true' or 'false'")
    return given == "true"


def _starting_after(query: QueryParams) -> int:
    given = query.get("starting_after")
    if given is None:
        return -1
    if not (given.isascii() and given.isdecimal() and len(given) < 10):
        raise wrong_value("starting_after", "the number of an event")
    return int(given)
