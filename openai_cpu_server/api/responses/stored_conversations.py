from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from openai_cpu_server.api.generation.schema import Notes
from openai_cpu_server.api.responses.objects import ItemList
from openai_cpu_server.api.responses.reader import NO_DATABASE, ResponseReader
from openai_cpu_server.api.responses.routes import item_page, listed_items, owner_and_id
from openai_cpu_server.api.responses.schema import CompactionTrigger, InputItem
from openai_cpu_server.api.responses.to_params import new_items, references, unsupported_names
from openai_cpu_server.api.state import AppState, check_query_names, read_body, response_of
from openai_cpu_server.errors import InvalidRequest, JobObjectNotFound, wrong
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import RequestContext, context_of
from openai_cpu_server.http.errors import ORDERS, PAGE_QUERY, json_response
from openai_cpu_server.http.keys import REQUESTS, WORK
from openai_cpu_server.http.parse import Body, Ignored
from openai_cpu_server.http.routes import ApiRoute, ApiRouter, JsonSchema
from openai_cpu_server.jobs.records import ConversationItem, StoredAmount
from openai_cpu_server.jobs.responses import ResponseRepository
from openai_cpu_server.jobs.store.storage import CONVERSATION_BYTES

_MAX_ITEMS = 20
"""OpenAI's limit."""
_INCLUDES = ("include", "include[]")


class ConversationBody(Body):
    items: Annotated[list[InputItem], Field(max_length=_MAX_ITEMS, fail_fast=True)] | None = None
    metadata: Notes | None = None


class ConversationChange(Body):
    metadata: Notes | None


class NewItemsBody(Body):
    items: Annotated[list[InputItem], Field(min_length=1, max_length=_MAX_ITEMS, fail_fast=True)]


class ConversationObject(msgspec.Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    object: str = "conversation"


class ConversationDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "conversation.deleted"
    deleted: bool = True


_INCLUDE: Mapping[str, JsonSchema] = {
    "include[]": {"type": "string", "description": "has no effect: all fields are returned"}
}
_route = partial(ApiRoute, access=REQUESTS, tag="Responses")


class ConversationRoutes:
    def __init__(self, state: AppState) -> None:
        self._repository = state.jobs.responses if state.jobs else None
        self._reader = ResponseReader(self._repository, state.options)

    @_route(
        "POST",
        "/v1/conversations",
        access=WORK,
        body=ConversationBody,
        answer=ConversationObject,
        errors=(404,),
    )
    async def create(self, request: Request) -> Response:
        """Create a stored conversation, with or without items."""
        repository, context = self._require_repository(), context_of(request.scope)
        body, ignored, size = await read_body(ConversationBody, request)
        await _check_room(repository, context, size)
        items, names = await self._items(body.items or (), context.owner, size)
        await repository.purge()
        new_id, metadata = "conv_" + secrets.token_hex(24), body.metadata or {}
        record = await repository.conversations.create(context.owner, new_id, metadata, items)
        return json_response(response_of(ConversationObject, record), headers=_headers(ignored, names))

    @_route("GET", "/v1/conversations/{id}", answer=ConversationObject)
    async def one(self, request: Request) -> Response:
        """Return a conversation."""
        record = await self._require_repository().conversations.get(*owner_and_id(request))
        return json_response(response_of(ConversationObject, record))

    @_route("POST", "/v1/conversations/{id}", body=ConversationChange, answer=ConversationObject)
    async def change(self, request: Request) -> Response:
        """Replace the metadata of a conversation."""
        repository = self._require_repository()
        body, ignored, _ = await read_body(ConversationChange, request)
        record = await repository.conversations.change(*owner_and_id(request), body.metadata or {})
        return json_response(response_of(ConversationObject, record), headers=ignored.headers)

    @_route("DELETE", "/v1/conversations/{id}", answer=ConversationDeleted)
    async def delete(self, request: Request) -> Response:
        """Delete a conversation with its items."""
        owner, conversation_id = owner_and_id(request)
        await self._require_repository().conversations.delete(owner, conversation_id)
        return json_response(ConversationDeleted(conversation_id))

    @_route(
        "GET",
        "/v1/conversations/{id}/items",
        query={**PAGE_QUERY, "order": {"enum": list(ORDERS)}, **_INCLUDE},
        answer=ItemList,
    )
    async def items(self, request: Request) -> Response:
        """List the items of a conversation."""
        page = item_page(request)
        items, has_more = await self._require_repository().conversations.page(*owner_and_id(request), page)
        return await listed_items(items, has_more=has_more)

    @_route(
        "POST",
        "/v1/conversations/{id}/items",
        access=WORK,
        query=_INCLUDE,
        body=NewItemsBody,
        answer=ItemList,
    )
    async def add_items(self, request: Request) -> Response:
        """Add items to a conversation."""
        repository, context = self._require_repository(), context_of(request.scope)
        check_query_names(request, *_INCLUDES)
        body, ignored, size = await read_body(NewItemsBody, request)
        await _check_room(repository, context, size)
        items, names = await self._items(body.items, context.owner, size)
        owner, conversation_id = owner_and_id(request)
        await repository.conversations.append(owner, repository.conversations.turn(conversation_id, items))
        return await listed_items(items, _headers(ignored, names), has_more=False)

    @_route("GET", "/v1/conversations/{id}/items/{item_id}", query=_INCLUDE, errors=(400,))
    async def item(self, request: Request) -> Response:
        """Return an item of a conversation."""
        check_query_names(request, *_INCLUDES)
        found = await self._require_repository().conversations.item(
            *owner_and_id(request), request.path_params["item_id"]
        )
        return Response(found.content, media_type="application/json")

    @_route("DELETE", "/v1/conversations/{id}/items/{item_id}", answer=ConversationObject)
    async def delete_item(self, request: Request) -> Response:
        """Delete an item of a conversation."""
        item_id = request.path_params["item_id"]
        record = await self._require_repository().conversations.delete_item(*owner_and_id(request), item_id)
        return json_response(response_of(ConversationObject, record))

    def _require_repository(self) -> ResponseRepository:
        if self._repository is None:
            raise JobObjectNotFound(f"Conversations are not supported: {NO_DATABASE}.")
        return self._repository

    async def _items(
        self, sent: Sequence[InputItem], owner: str, size: int
    ) -> tuple[list[ConversationItem], list[str]]:
        """Return the names of unsupported parts, too."""
        for index, one in enumerate(sent):
            if isinstance(one, CompactionTrigger):
                raise wrong("Only a response can contain a 'compaction_trigger'.", f"items[{index}].type")
        referenced = await self._reader.items_by_id(references(sent), owner)

        def convert() -> tuple[list[ConversationItem], list[str]]:
            try:
                sourced = new_items(sent, referenced)
            except InvalidRequest as error:
                raise InvalidRequest(str(error), param=_in_items(error.param), code=error.code) from None
            seen: set[str] = set()
            for one in sourced:
                if one.item.id in seen:
                    raise wrong(f"Two items have the id '{one.item.id}'.", f"{_in_items(one.param)}.id")
                seen.add(one.item.id)
            names = [str(_in_items(name)) for name in unsupported_names(sent)]
            items = [
                ConversationItem(id=one.item.id, content=msgspec.json.encode(one.item)) for one in sourced
            ]
            return items, names

        return await off_loop(size, convert)


def _in_items(param: str | None) -> str | None:
    return None if param is None else "items" + param.removeprefix("input")


def _headers(ignored: Ignored, names: Sequence[str]) -> dict[str, str]:
    return Ignored((*ignored.names, *names)).headers


async def _check_room(repository: ResponseRepository, context: RequestContext, num_bytes: int) -> None:
    amount = StoredAmount(num_bytes=num_bytes + CONVERSATION_BYTES)
    await repository.storage.check(context.owner, context.identity.storage, amount)


ROUTER = ApiRouter[AppState](ConversationRoutes)
