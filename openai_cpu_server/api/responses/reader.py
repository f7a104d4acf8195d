from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec

from openai_cpu_server.api.generation.params import (
    Attachment,
    EarlierAnswer,
    FunctionParam,
    GenerationParams,
    MessageParam,
)
from openai_cpu_server.api.generation.to_params import adapted_names
from openai_cpu_server.api.responses import conversation
from openai_cpu_server.api.responses.items import Item, ItemWithSource, decoded_item
from openai_cpu_server.api.responses.objects import WrittenSummary
from openai_cpu_server.api.responses.schema import McpServerTool, ResponsesBody
from openai_cpu_server.api.responses.to_params import (
    check_supported,
    ignored_tools,
    new_items,
    references,
    to_params,
    unsupported_names,
)
from openai_cpu_server.errors import DiskFull, InvalidRequest, JobObjectNotFound, missing, wrong
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.http.parse import Ignored, parse
from openai_cpu_server.jobs.records import ResponseStatus, StorageLimits, StoredAmount
from openai_cpu_server.jobs.responses import ResponseRepository

NO_DATABASE = "this server stores no responses because it has no jobs database (--jobs-db)"
_MANAGEMENT = "context_management"
USABLE = (ResponseStatus.COMPLETED, ResponseStatus.INCOMPLETE)


class ResponseParams(msgspec.Struct, frozen=True):
    body: ResponsesBody
    messages: tuple[MessageParam, ...]
    earlier: tuple[ItemWithSource, ...]
    items: tuple[ItemWithSource, ...]
    approved: tuple[conversation.ApprovedCall, ...]
    attached: tuple[Attachment, ...]
    ignored: Ignored
    num_bytes: int
    owner: str
    is_stored: bool
    summary: WrittenSummary | None = None
    """Replaces earlier items in the prompt."""

    @property
    def adds_to(self) -> str | None:
        """Return the conversation that gets the items. A mere summary changes none."""
        return None if self.body.is_compacting else self.body.conversation_id

    @property
    def listed(self) -> frozenset[str]:
        return conversation.listed_servers((*self.earlier, *self.items))

    def generation(
        self, offered: Sequence[FunctionParam] = (), results: Sequence[ItemWithSource] = ()
    ) -> GenerationParams:
        """`offered`: tools of MCP servers. `results`: of approved calls."""
        return msgspec.structs.replace(
            to_params(self.body, (*self.messages, *conversation.to_messages(results)), offered),
            num_bytes=self.num_bytes,
            ignored=self.ignored,
            attached=(*self.attached, *conversation.item_attachments(results)),
        )

    def compacting(self) -> ResponseParams:
        body = self.body.compacting().model_copy(update={"truncation": "auto"})
        trigger = ItemWithSource(conversation.trigger_item(), _MANAGEMENT)
        shown = [*conversation.current([*self.earlier, *self.items]), trigger]
        messages = conversation.with_instructions(conversation.to_messages(shown), body.instructions)
        return msgspec.structs.replace(self, body=body, messages=tuple(messages), is_stored=False)

    def with_summary(self, summary: WrittenSummary) -> ResponseParams:
        shown = conversation.summed_up(
            [*self.earlier, *self.items], ItemWithSource(summary.item, _MANAGEMENT)
        )
        return msgspec.structs.replace(
            self,
            messages=tuple(
                conversation.with_instructions(conversation.to_messages(shown), self.body.instructions)
            ),
            attached=tuple(conversation.item_attachments(shown)),
            summary=summary,
        )

    def without_output(self) -> ResponseParams:
        return msgspec.structs.replace(self, body=self.body.model_copy(update={"max_output_tokens": 1}))


class LastResponse(msgspec.Struct, frozen=True):
    """A WebSocket's last response, continued without being stored."""

    id: str
    items: tuple[ItemWithSource, ...]


@dataclass(frozen=True)
class ResponseReader:
    repository: ResponseRepository | None
    """Absent (None) without stored responses."""
    options: ApiOptions
    has_mcp: bool = False

    @property
    def _max_bytes(self) -> int:
        return 2 * self.options.max_body_bytes

    async def read(
        self,
        data: bytes,
        identity: Identity,
        recent: LastResponse | None = None,
        *,
        stores_by_default: bool = True,
        is_compacting: bool = False,
    ) -> ResponseParams:
        """Return the response to make. Raises InvalidRequest, StorageFull, DiskFull."""
        reading = partial(parse, ResponsesBody, data, lenient=self.options.lenient)
        body, ignored = await off_loop(len(data), reading)
        if is_compacting:
            body = body.compacting()
        if body.store is None and not stores_by_default:
            body = body.model_copy(update={"store": False})
        params = await self.of_body(body, ignored, identity.holder or "", size=len(data), recent=recent)
        return await self._with_room(params, identity.storage, len(data))

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
        if not self.has_mcp:
            _check_no_mcp(body)
        is_stored = self._is_stored(body)
        if body.conversation is not None and body.previous_response_id is not None:
            message = "'conversation' and 'previous_response_id' cannot be combined."
            raise InvalidRequest(message, param="conversation", code="mutually_exclusive_parameters")
        earlier = await self._earlier(body, owner, recent)
        referenced = {one.item.id: one.item for one in earlier}
        ids = [item_id for item_id in references(body.input) if item_id not in referenced]
        referenced |= await self.items_by_id(ids, owner)
        size += sum(len(one.param) for one in earlier) * 64

        def convert() -> ResponseParams:
            items = new_items(body.input, referenced)
            shown = conversation.current([*earlier, *items])
            if shown and all(conversation.is_trigger(one.item) for one in shown):
                raise missing("input")
            messages = conversation.with_instructions(conversation.to_messages(shown), body.instructions)
            approved = conversation.approved_calls(earlier, items)
            names = [*ignored_tools(body), *unsupported_names(body.input)]
            return ResponseParams(
                body=body,
                messages=tuple(messages),
                earlier=earlier,
                items=tuple(items),
                approved=() if body.is_compacting else tuple(approved),
                attached=tuple(conversation.item_attachments(shown)),
                ignored=Ignored((*ignored.names, *adapted_names(names, messages).names)),
                num_bytes=size,
                owner=owner,
                is_stored=is_stored,
            )

        return await off_loop(size, convert)

    async def items_by_id(self, ids: Sequence[str], owner: str) -> dict[str, Item]:
        if not ids or self.repository is None:
            return {}
        stored = await self.repository.conversations.content_by_id(owner, ids)
        stored |= await self.repository.content_by_id(owner, [each for each in ids if each not in stored])
        size = sum(map(len, stored.values()))
        return await off_loop(size, lambda: {name: decoded_item(item) for name, item in stored.items()})

    async def _with_room(
        self, params: ResponseParams, limits: StorageLimits, num_bytes: int
    ) -> ResponseParams:
        """Do not store a response on a nearly full disk if storing is only the default."""
        if self.repository is None or not (params.is_stored or params.adds_to):
            return params
        try:
            await self.repository.storage.check(params.owner, limits, StoredAmount(num_bytes=num_bytes))
        except DiskFull:
            if params.body.store or params.body.background or params.adds_to:
                raise
            return msgspec.structs.replace(params, is_stored=False)
        return params

    def _is_stored(self, body: ResponsesBody) -> bool:
        if body.background and body.store is False:
            raise wrong("'background' needs a stored response, so 'store' must not be false.", "store")
        if self.repository is None and (body.background or body.store):
            param = "background" if body.background else "store"
            raise InvalidRequest(
                f"'{param}' is not supported: {NO_DATABASE}.", param=param, code="unsupported_parameter"
            )
        return self.repository is not None and body.store is not False

    async def _earlier(
        self, body: ResponsesBody, owner: str, recent: LastResponse | None
    ) -> tuple[ItemWithSource, ...]:
        if body.conversation_id is not None:
            return await self._in_conversation(body.conversation_id, owner)
        previous_id = body.previous_response_id
        if previous_id is None:
            return ()
        if recent is not None and recent.id == previous_id:
            return recent.items
        return await self._chained(previous_id, owner)

    async def _chained(self, previous_id: str, owner: str) -> tuple[ItemWithSource, ...]:
        if self.repository is None:
            raise _no_previous(f"'previous_response_id' is not supported: {NO_DATABASE}.")
        try:
            links = await self.repository.chain(owner, previous_id, max_bytes=self._max_bytes)
        except JobObjectNotFound as error:
            raise _no_previous(f"Previous {str(error)[0].lower()}{str(error)[1:]}") from None
        last = links[-1].record
        if last.status not in USABLE:
            raise _no_previous(
                f"The response '{previous_id}' cannot be continued: it is {last.status.value}."
            )
        if "conversation" in msgspec.json.decode(last.response, type=dict[str, msgspec.Raw]):
            raise _no_previous(
                f"The response '{previous_id}' belongs to a conversation: continue it with 'conversation'."
            )

        def decode() -> Iterator[ItemWithSource]:
            for link in links:
                answer = _answer(link.record.written, link.record.vocabulary)
                for item in link.items:
                    own_answer = answer if item.is_output else None
                    yield ItemWithSource(decoded_item(item.content), "previous_response_id", own_answer)

        size = sum(len(item.content) for link in links for item in link.items)
        return await off_loop(size, lambda: tuple(decode()))

    async def _in_conversation(self, conversation_id: str, owner: str) -> tuple[ItemWithSource, ...]:
        if self.repository is None:
            message = f"'conversation' is not supported: {NO_DATABASE}."
            raise InvalidRequest(message, param="conversation", code="unsupported_parameter")
        conversations = self.repository.conversations
        try:
            items = await conversations.items(owner, conversation_id, max_bytes=self._max_bytes)
        except JobObjectNotFound as error:
            raise JobObjectNotFound(str(error), param="conversation") from None

        def decode() -> Iterator[ItemWithSource]:
            """Items of one answer share its tokens."""
            answers: dict[str | None, EarlierAnswer | None] = {None: None}
            for item in items:
                if item.answer_id not in answers:
                    answers[item.answer_id] = _answer(item.written, item.vocabulary)
                yield ItemWithSource(decoded_item(item.content), "conversation", answers[item.answer_id])

        size = sum(len(item.content) for item in items)
        return await off_loop(size, lambda: tuple(decode()))


def _check_no_mcp(body: ResponsesBody) -> None:
    for index, tool in enumerate(body.tools or ()):
        if isinstance(tool, McpServerTool):
            param = f"tools[{index}].type"
            message = f"'{param}': 'mcp' is not supported, because this server has no MCP servers."
            raise InvalidRequest(message, param=param, code="unsupported_parameter")


def _answer(written: bytes, vocabulary: str) -> EarlierAnswer | None:
    if not written:
        return None
    return EarlierAnswer(msgspec.msgpack.decode(written, type=tuple[int, ...]), vocabulary)


def _no_previous(message: str) -> InvalidRequest:
    return InvalidRequest(message, param="previous_response_id", code="previous_response_not_found")
