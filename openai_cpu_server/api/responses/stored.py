"""Stored responses: `GET`, `DELETE`, `/cancel` and `/input_items` of `/v1/responses/{id}`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import anyio
import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from openai_cpu_server.api.generation.renderer import events
from openai_cpu_server.api.generation.route import NO_STORE_HEADERS, event_source
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
from openai_cpu_server.api.state import page_ends
from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound, unknown_parameter, wrong, wrong_value
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import context_of
from openai_cpu_server.http.errors import ErrorBody, ErrorObject, json_response, page_of
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import (
    ConversationItem,
    ItemRecord,
    PageQuery,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.responses import ResponseRepository

_LISTED, _MAX_LISTED = 20, 100
_POLL_S = 1.0
"""Interval for polling a response of another server."""
_IGNORED = ("include", "include[]", "include_obfuscation")
"""OpenAI's parameters without an effect, because everything is shown."""
_LEFT_BEHIND = "The server that made this response has ended."


@dataclass(frozen=True)
class StoredResponses:
    """Routes of stored responses. `repository` and `background` are None if none are stored."""

    repository: ResponseRepository | None
    background: Background | None
    options: ApiOptions

    async def one(self, request: Request) -> ASGIApp:
        first, (owner, response_id) = _first_event(request.query_params), owner_and_id(request)
        if first is None:
            return _json(await self._shown(owner, response_id))
        stored = await self._events(owner, response_id, first)
        return logged_stream(stored, {}, keep_alive_s=self.options.keep_alive_s)

    async def delete(self, request: Request) -> Response:
        repository, (owner, response_id) = self._require_repository(), owner_and_id(request)
        if (live := self._live(owner, response_id)) is not None:
            await live.cancelled()
        await repository.delete(owner, response_id)
        return json_response(ResponseDeleted(response_id))

    async def cancel(self, request: Request) -> Response:
        """Cancel a response. Repeating this is allowed. Raises InvalidRequest if the response has ended."""
        repository, (owner, response_id) = self._require_repository(), owner_and_id(request)
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
        if not await repository.end(_with(record, ended)):
            return _json(await self._shown(owner, response_id))
        return _json(encoded(ended))

    async def input_items(self, request: Request) -> Response:
        items, has_more = await self._require_repository().inputs(*owner_and_id(request), item_page(request))
        return await listed_items(items, has_more=has_more)

    def _require_repository(self) -> ResponseRepository:
        if self.repository is None:
            raise JobObjectNotFound(f"Responses are not supported: {NO_DATABASE}.")
        return self.repository

    def _live(self, owner: str, response_id: str) -> LiveResponse | None:
        return self.background.find(owner, response_id) if self.background else None

    async def _shown(self, owner: str, response_id: str) -> bytes:
        if (live := self._live(owner, response_id)) is not None:
            if not ResponseStatus(live.response.status).has_ended:
                return encoded(live.response)
            await live.log.ended()  # a client that sees the end may continue it, so it must be stored
        return (await self._record(owner, response_id)).response

    async def _record(self, owner: str, response_id: str) -> ResponseRecord:
        """A response whose server has died has failed."""
        repository = self._require_repository()
        record = await repository.get(owner, response_id)
        if not repository.is_left_behind(record):
            return record
        error = ErrorObject(ErrorBody(_LEFT_BEHIND, SERVER_ERROR, None, SERVER_ERROR))
        ended = _with(record, failed(_object(record), _object(record).output, error))
        return ended if await repository.end(ended) else await repository.get(owner, response_id)

    async def _events(self, owner: str, response_id: str, first: int) -> AsyncIterator[bytes]:
        if (live := self._live(owner, response_id)) is not None:
            return live.log.read(first)
        record = await self._record(owner, response_id)
        if not record.is_background:
            raise wrong("Only a response that was created with 'background' can be streamed again.", "stream")
        return self._replayed(record, first)

    async def _replayed(self, record: ResponseRecord, first: int) -> AsyncIterator[bytes]:
        """A response of another server is replayed once it has ended."""
        repository = self._require_repository()
        while not record.status.has_ended:
            await anyio.sleep(_POLL_S)
            record = await self._record(record.owner, record.id)
        stored = await repository.events(record.id)
        if stored is None:  # its server could not write the end
            yield events([EventNumbers(first).event("response.failed", {"response": _object(record)})])
            return
        for event in stored[first:]:
            yield event


def logged_stream(
    stored: AsyncIterator[bytes], headers: Mapping[str, str], *, keep_alive_s: float
) -> ASGIApp:
    return event_source(stored, {**NO_STORE_HEADERS, **headers}, keep_alive_s=keep_alive_s)


def owner_and_id(request: Request) -> tuple[str, str]:
    return context_of(request.scope).owner, request.path_params["id"]


def item_page(request: Request) -> PageQuery:
    fields = frozenset({"limit", "after", "order", "include", "include[]"})
    return page_of(request.query_params, names=fields, default=_LISTED, most=_MAX_LISTED)


async def listed_items(
    items: Sequence[ItemRecord | ConversationItem],
    headers: Mapping[str, str] = MappingProxyType({}),
    *,
    has_more: bool,
) -> Response:
    content = [msgspec.Raw(item.content) for item in items]
    page = ItemList(data=content, **page_ends(items), has_more=has_more)
    body = await off_loop(sum(map(len, content)), partial(msgspec.json.encode, page))
    return Response(body, media_type="application/json", headers=dict(headers))


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


_response = msgspec.json.Decoder(ResponseObject)


def _object(record: ResponseRecord) -> ResponseObject:
    return _response.decode(record.response)


def _with(record: ResponseRecord, response: ResponseObject) -> ResponseRecord:
    status = ResponseStatus(response.status)
    return msgspec.structs.replace(record, status=status, response=encoded(response))


def _has_ended(status: ResponseStatus) -> InvalidRequest:
    return wrong(f"Cannot cancel a response that is {status.value}.", "id")


def _first_event(query: QueryParams) -> int | None:
    """Return the number of the first event to stream, or None for the object."""
    for name in query:
        if name not in ("stream", "starting_after", *_IGNORED):
            raise unknown_parameter(name)
    after, stream = query.get("starting_after"), query.get("stream", "false")
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 10):
        raise wrong_value("starting_after", "the number of an event")
    if stream not in ("true", "false"):
        raise wrong_value("stream", "'true' or 'false'")
    if stream == "false":
        return None
    return 0 if after is None else int(after) + 1
