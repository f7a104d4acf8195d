"""Reader of a response's body, which fetches everything that the response continues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
from msgspec import UNSET

from openai_cpu_server.api.generation.body import ForeignKind
from openai_cpu_server.api.generation.params import (
    Attached,
    EarlierAnswer,
    FunctionParam,
    GenerationParams,
    MessageParam,
)
from openai_cpu_server.api.generation.to_params import adapted_names
from openai_cpu_server.api.responses.body import McpServerTool, ResponsesBody
from openai_cpu_server.api.responses.conversation import (
    ApprovedCall,
    approved_calls,
    attached_in,
    current,
    listed_servers,
    summed_up,
    trigger_item,
    turns,
    with_instructions,
)
from openai_cpu_server.api.responses.items import Item, ItemWithSource, decoded
from openai_cpu_server.api.responses.objects import ConversationRef, WrittenSummary
from openai_cpu_server.api.responses.sent_items import new_items, references, told_in_words
from openai_cpu_server.api.responses.to_params import check_supported, left_out, response_ask
from openai_cpu_server.errors import DiskFull, InvalidRequest, JobObjectNotFound, wrong
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, parse
from openai_cpu_server.jobs.records import (
    ChainedResponse,
    ConversationItem,
    ResponseStatus,
    StorageLimits,
    StoredAmount,
)
from openai_cpu_server.jobs.responses import ResponseRepository

NO_DATABASE = "this server keeps no responses, for it has no jobs database (--jobs-db)"
_MANAGEMENT = "context_management"
USABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)


class ResponseParams(msgspec.Struct, frozen=True):
    body: ResponsesBody
    messages: tuple[MessageParam, ...]
    earlier: tuple[ItemWithSource, ...]
    items: tuple[ItemWithSource, ...]
    approved: tuple[ApprovedCall, ...]
    attached: tuple[Attached, ...]
    ignored: Ignored
    num_bytes: int
    owner: str
    is_stored: bool
    summary: WrittenSummary | None = None
    """Replaces earlier items in the prompt."""

    @property
    def adds_to(self) -> str | None:
        """Conversation that gets the items. A mere summary changes none."""
        return None if self.body.is_compacting else self.body.conversation_id

    @property
    def listed(self) -> frozenset[str]:
        return listed_servers((*self.earlier, *self.items))

    def ask(
        self, offered: Sequence[FunctionParam] = (), said: Sequence[MessageParam] = ()
    ) -> GenerationParams:
        """`offered`: tools of MCP servers. `said`: results of approved calls."""
        return msgspec.structs.replace(
            response_ask(self.body, (*self.messages, *said), offered),
            num_bytes=self.num_bytes,
            ignored=self.ignored,
            attached=self.attached,
        )

    def summing_up(self) -> ResponseParams:
        body = self.body.compacting().model_copy(update={"truncation": "auto"})
        asked = ItemWithSource(trigger_item(), _MANAGEMENT)
        shown = [*current([*self.earlier, *self.items]), asked]
        messages = with_instructions(turns(shown), body.instructions)
        return msgspec.structs.replace(self, body=body, messages=tuple(messages), is_stored=False)

    def summed_up(self, summary: WrittenSummary) -> ResponseParams:
        shown = summed_up([*self.earlier, *self.items], ItemWithSource(summary.item, _MANAGEMENT))
        return msgspec.structs.replace(
            self,
            messages=tuple(with_instructions(turns(shown), self.body.instructions)),
            attached=tuple(attached_in(shown)),
            summary=summary,
        )

    def without_output(self) -> ResponseParams:
        """Return a copy that ends after prefilling."""
        return msgspec.structs.replace(self, body=self.body.model_copy(update={"max_output_tokens": 1}))


class LastResponse(msgspec.Struct, frozen=True):
    """Last response of a WebSocket, which can be continued without being stored."""

    id: str
    items: tuple[ItemWithSource, ...]


class _OfConversation(msgspec.Struct, frozen=True):
    conversation: ConversationRef | msgspec.UnsetType = UNSET


class ResponseReader:
    """`kept`: None if responses are not stored. `has_mcp`: False to leave out MCP tools."""

    def __init__(
        self, kept: ResponseRepository | None, options: ApiOptions, *, has_mcp: bool = False
    ) -> None:
        self._kept = kept
        self._has_mcp = has_mcp
        self._options = options

    async def read(
        self,
        data: bytes,
        identity: Identity,
        recent: LastResponse | None = None,
        *,
        stores_unasked: bool = True,
        is_compacting: bool = False,
    ) -> ResponseParams:
        """Return the response to make. Raises InvalidRequest, also for an unknown previous response,
        StorageFull and DiskFull. `stores_unasked`: default of `store`."""
        reading = partial(parse, ResponsesBody, data, lenient=self._options.lenient)
        body, ignored = await off_loop(len(data), reading)
        if is_compacting:
            body = body.compacting()
        if body.store is None and not stores_unasked:
            body = body.model_copy(update={"store": False})
        read = await self.of_body(body, ignored, identity.holder or "", size=len(data), recent=recent)
        return await self._with_room(read, identity.storage, len(data))

    async def of_body(
        self,
        body: ResponsesBody,
        ignored: Ignored,
        owner: str,
        *,
        size: int,
        recent: LastResponse | None = None,
    ) -> ResponseParams:
        """`size`: bytes of the body. Raises InvalidRequest."""
        check_supported(body)
        if not self._has_mcp:
            body = _without_mcp(body)
        is_stored = self._is_stored(body)
        if body.conversation is not None and body.previous_response_id is not None:
            message = (
                "Go on from a response or in a conversation: 'conversation' excludes 'previous_response_id'."
            )
            raise InvalidRequest(message, param="conversation", code="mutually_exclusive_parameters")
        earlier = await self._earlier(body, owner, recent)
        found = await self._found(references(body.input), owner, earlier)
        size += sum(len(one.param) for one in earlier) * 64
        messages, items, attached, approved = await off_loop(
            size, partial(_conversation, body, earlier, found)
        )
        told = [*left_out(body), *told_in_words(body.input)]
        return ResponseParams(
            body=body,
            messages=messages,
            earlier=earlier,
            items=items,
            approved=() if body.is_compacting else approved,
            attached=attached,
            ignored=Ignored((*ignored.names, *adapted_names(told, messages).names)),
            num_bytes=size,
            owner=owner,
            is_stored=is_stored,
        )

    async def _with_room(self, read: ResponseParams, limits: StorageLimits, num_bytes: int) -> ResponseParams:
        """On a nearly full disk, a response that is stored only by default is not stored."""
        if self._kept is None or not (read.is_stored or read.adds_to):
            return read
        try:
            await self._kept.storage.check(read.owner, limits, StoredAmount(num_bytes=num_bytes))
        except DiskFull:
            if read.body.store or read.body.background or read.adds_to:
                raise
            return msgspec.structs.replace(read, is_stored=False)
        return read

    def _is_stored(self, body: ResponsesBody) -> bool:
        if body.background and body.store is False:
            raise wrong("'background' needs a stored response: 'store' must not be false.", "store")
        if self._kept is None and (body.background or body.store):
            param = "background" if body.background else "store"
            raise InvalidRequest(
                f"'{param}' is not possible: {NO_DATABASE}.", param=param, code="unsupported_parameter"
            )
        return self._kept is not None and body.store is not False

    async def _earlier(
        self, body: ResponsesBody, owner: str, recent: LastResponse | None
    ) -> tuple[ItemWithSource, ...]:
        wanted = body.previous_response_id
        if body.conversation_id is not None:
            return await self._of_conversation(body.conversation_id, owner)
        if wanted is None:
            return ()
        if recent is not None and recent.id == wanted:
            return recent.items
        if self._kept is None:
            raise _no_previous(f"'previous_response_id' is not possible: {NO_DATABASE}.")
        try:
            links = await self._kept.chain(owner, wanted, max_bytes=2 * self._options.max_body_bytes)
        except JobObjectNotFound as error:
            raise _no_previous(f"Previous {str(error)[0].lower()}{str(error)[1:]}") from None
        if links[-1].record.status not in USABLE:
            status = links[-1].record.status.value
            raise _no_previous(f"The response '{wanted}' cannot be gone on from: it is {status}.")
        if msgspec.json.decode(links[-1].record.response, type=_OfConversation).conversation is not UNSET:
            raise _no_previous(
                f"The response '{wanted}' is one of a conversation: go on with 'conversation'."
            )
        size = sum(len(item.content) for link in links for item in link.items)
        return await off_loop(size, lambda: tuple(one for link in links for one in _of_link(link)))

    async def _of_conversation(self, conversation_id: str, owner: str) -> tuple[ItemWithSource, ...]:
        if self._kept is None:
            message = f"'conversation' is not possible: {NO_DATABASE}."
            raise InvalidRequest(message, param="conversation", code="unsupported_parameter")
        most_bytes = 2 * self._options.max_body_bytes
        try:
            items = await self._kept.conversations.items(owner, conversation_id, max_bytes=most_bytes)
        except JobObjectNotFound as error:
            raise JobObjectNotFound(str(error), param="conversation") from None
        size = sum(len(item.content) for item in items)
        return await off_loop(size, lambda: tuple(_of_items(items)))

    async def found(self, ids: Sequence[str], owner: str) -> dict[str, Item]:
        if not ids or self._kept is None:
            return {}
        stored = await self._kept.conversations.content_by_id(owner, ids)
        stored |= await self._kept.content_by_id(owner, [each for each in ids if each not in stored])
        size = sum(map(len, stored.values()))
        return await off_loop(size, lambda: {name: decoded(item) for name, item in stored.items()})

    async def _found(
        self, ids: Sequence[str], owner: str, earlier: Sequence[ItemWithSource]
    ) -> dict[str, Item]:
        found = {one.item.id: one.item for one in earlier}
        return found | await self.found([item_id for item_id in ids if item_id not in found], owner)


def _conversation(
    body: ResponsesBody, earlier: Sequence[ItemWithSource], found: dict[str, Item]
) -> tuple[
    tuple[MessageParam, ...], tuple[ItemWithSource, ...], tuple[Attached, ...], tuple[ApprovedCall, ...]
]:
    items = new_items(body.input, found)
    everything = current([*earlier, *items])
    messages = with_instructions(turns(everything), body.instructions)
    approved = approved_calls(earlier, items)
    return tuple(messages), tuple(items), tuple(attached_in(everything)), tuple(approved)


def _without_mcp(body: ResponsesBody) -> ResponsesBody:
    if not any(isinstance(tool, McpServerTool) for tool in body.tools or ()):
        return body
    tools = [
        ForeignKind.model_construct(type=tool.type) if isinstance(tool, McpServerTool) else tool
        for tool in body.tools or ()
    ]
    return body.model_copy(update={"tools": tools})


def _of_link(link: ChainedResponse) -> list[ItemWithSource]:
    answer = _answer(link.record.written, link.record.vocabulary)
    return [
        ItemWithSource(decoded(item.content), "previous_response_id", answer if item.is_output else None)
        for item in link.items
    ]


def _of_items(items: Sequence[ConversationItem]) -> Iterator[ItemWithSource]:
    """Items of one answer share its tokens."""
    answers: dict[str, EarlierAnswer | None] = {}
    for item in items:
        if item.answer_id is not None and item.answer_id not in answers:
            answers[item.answer_id] = _answer(item.written, item.vocabulary)
        answer = None if item.answer_id is None else answers[item.answer_id]
        yield ItemWithSource(decoded(item.content), "conversation", answer)


def _answer(written: bytes, vocabulary: str) -> EarlierAnswer | None:
    if not written:
        return None
    return EarlierAnswer(msgspec.msgpack.decode(written, type=tuple[int, ...]), vocabulary)


def _no_previous(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="previous_response_id", code="previous_response_not_found")
