"""Running response: submitted, streamed with signs of life, and stored at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import anyio
import msgspec

from openai_cpu_server.api.generation.call import fingerprint
from openai_cpu_server.api.generation.generation import UNWATCHED, CascadeAttempt, GenerationService
from openai_cpu_server.api.generation.params import EarlierAnswer, FunctionParam, LimitParam
from openai_cpu_server.api.generation.renderer import Chunk
from openai_cpu_server.api.generation.running import OpenCall, RunningCall, StreamItem, TimedEvent
from openai_cpu_server.api.responses.body import ResponsesBody
from openai_cpu_server.api.responses.conversation import is_answered, is_trigger, turns
from openai_cpu_server.api.responses.items import OWN_SUMMARY, CompactionItem, Item, ItemWithSource
from openai_cpu_server.api.responses.objects import ResponseObject, WrittenSummary, new_response
from openai_cpu_server.api.responses.rounds import (
    AnsweredCall,
    RoundPlan,
    ToolCaller,
    ToolLoop,
    not_offered,
)
from openai_cpu_server.api.responses.stream import ResponseStream, encoded
from openai_cpu_server.api.responses.toolbox import McpTools, ToolboxOpener
from openai_cpu_server.api.responses.turns import USABLE, LastResponse, ResponseParams
from openai_cpu_server.contract.mcp import McpObserver, McpServers
from openai_cpu_server.errors import JobObjectNotFound, JobsUnavailable
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import RequestContext, RequestHistory, served
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import (
    ConversationItem,
    ConversationTurn,
    ItemRecord,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.responses import ResponseRepository
from openai_cpu_server.models.registry import Ability, choose_able, fetch


async def alive(
    told: AsyncGenerator[StreamItem, None], stream: ResponseStream, *, first_s: float, every_s: float
) -> AsyncIterator[StreamItem]:
    """Yield events, and signs of life while none come. Keep-alive comments cannot replace them, because
    the signs are numbered events. `every_s`: 0 for none."""
    wait_s = min(first_s, every_s) or None
    async with aclosing(told):
        while stream.is_silent:
            coming = asyncio.ensure_future(anext(told, None))
            try:
                while not (await asyncio.wait({coming}, timeout=wait_s))[0]:
                    wait_s = every_s or None
                    yield stream.lives()
            finally:
                await _left(coming)
            said = coming.result()
            if said is None:
                return
            yield said
        async for said in told:
            yield said


async def _left(coming: asyncio.Future[StreamItem | None]) -> None:
    """The reader of the call must have ended before the call is closed."""
    coming.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # it counts as seen


logger = logging.getLogger(__name__)


class RunningResponse:
    """Submitted response. The owner must enter `running`."""

    def __init__(
        self,
        read: ResponseParams,
        running: OpenCall,
        status: ResponseStatus,
        kept: ResponseRepository | None,
        *,
        box: McpTools | None = None,
        keep_alive_s: float,
        request_id: str,
    ) -> None:
        self.read = read
        self.running = running
        self._kept = kept if read.is_stored else None
        self._conversations = kept.conversations if kept and read.adds_to else None
        self._keep_alive_s = keep_alive_s
        self._request_id = request_id
        response = new_response(read.body, running.call, status, is_stored=read.is_stored)
        self.stream = ResponseStream(
            running.call,
            running.model.pieces,
            response,
            is_compacting=read.body.is_compacting,
            summary=read.summary,
            box=box,
        )

    @property
    def response(self) -> ResponseObject:
        return self.stream.response

    async def told(self) -> AsyncIterator[StreamItem]:
        """Yield the events. The response is stored before its client sees the end, which may be a failure."""
        try:
            async for said in self._told():
                yield said
        except Exception as error:  # its client has heard of its id
            await self._keep(self.stream.failed(error_object(error, request_id=self._request_id)))
            raise

    async def _told(self) -> AsyncIterator[StreamItem]:
        news = self.running.tell(self.stream)
        async for said in alive(news, self.stream, first_s=_FIRST_SIGN_S, every_s=self._keep_alive_s):
            if self.stream.has_ended:
                await self._keep()
            yield said

    async def warmed(self) -> Sequence[Chunk]:
        async with self.running:
            await self.running.gather()
        chunks = self.stream.warmed(self.running.figures)
        await self._keep()
        return chunks

    async def whole(self) -> bytes:
        async with self.running:
            async for _ in self._told():
                pass
        return await off_loop(_SHOWN * self.running.figures.total_tokens, partial(encoded, self.response))

    def recent(self) -> LastResponse:
        answer = EarlierAnswer(self.stream.written, self._vocabulary())
        outputs = [ItemWithSource(item, "previous_response_id", answer) for item in self.response.output]
        inputs = [ItemWithSource(one.item, "previous_response_id") for one in self.read.items]
        return LastResponse(self.response.id, (*self.read.earlier, *inputs, *outputs))

    def record(self, kept: ResponseRepository, response: ResponseObject | None = None) -> ResponseRecord:
        response = response or self.response
        return ResponseRecord(
            id=response.id,
            owner=self.read.owner,
            previous_id=self.read.body.previous_response_id,
            status=ResponseStatus(response.status),
            is_background=response.background,
            created_at=response.created_at,
            expires_at=kept.expiry(response.created_at),
            response=encoded(response),
            written=msgspec.msgpack.encode(self.stream.written) if self.stream.written else b"",
            vocabulary=self._vocabulary(),
        )

    def inputs(self) -> list[ItemRecord]:
        return [_record(one.item, is_output=False) for one in self.read.items if not is_trigger(one.item)]

    def outputs(self) -> list[ItemRecord]:
        return _outputs(self.response)

    async def _keep(self, response: ResponseObject | None = None) -> None:
        """A failure to store is logged, and the client still gets the response."""
        kept, response = self._kept, response or self.response
        try:
            if kept is not None:
                items = [*self.inputs(), *_outputs(response)]
                await kept.add(self.record(kept, response), items, self.turn(response))
            elif self._conversations is not None and (turn := self.turn(response)) is not None:
                await self._conversations.append(self.read.owner, turn, only_new=True)
        except (JobsUnavailable, JobObjectNotFound) as error:
            logger.error("response %s was not stored: %s", self.response.id, error)

    def turn(self, response: ResponseObject) -> ConversationTurn | None:
        """Return new items of the conversation, or None without one or after a failure or cancellation."""
        named, conversations = self.read.adds_to, self._conversations
        if named is None or conversations is None or ResponseStatus(response.status) not in USABLE:
            return None
        inputs = [_kept_item(one.item) for one in self.read.items]
        outputs = [_kept_item(item, response.id) for item in response.output]
        if outputs and self.stream.written:
            written = msgspec.msgpack.encode(self.stream.written)
            outputs[0] = msgspec.structs.replace(outputs[0], written=written, vocabulary=self._vocabulary())
        return conversations.turn(named, [*inputs, *outputs])

    def _vocabulary(self) -> str:
        info = self.running.model.engine.info
        return "" if info is None else fingerprint(info)


_FIRST_SIGN_S = 1.0
"""Longest time until a waiting response reports that it waits."""
_SHOWN = 4
"""Approximate bytes of a token in a response."""


_MOST_SUMMARY = 2048
"""Tokens of the longest summary, thoughts included."""
_FULL = 0.75
"""Share of the context above which a conversation is summarized, without a threshold in the request."""
_SUMMARY_ROUTE = "/v1/responses/compact"
CallingTools = Callable[[], Awaitable[list[AnsweredCall]]]


class ResponseMaker:
    def __init__(
        self,
        service: GenerationService,
        options: ApiOptions,
        kept: ResponseRepository | None,
        endings: RequestHistory,
        mcp: McpServers | None,
        observer: McpObserver,
    ) -> None:
        """`mcp`: None if the server calls no tools."""
        self._service = service
        self._options = options
        self._kept = kept
        self._endings = endings
        self._toolboxes = None if mcp is None else ToolboxOpener(mcp)
        self._observer = observer

    async def begin(
        self,
        read: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt = UNWATCHED,
        *,
        status: ResponseStatus = ResponseStatus.IN_PROGRESS,
        watched: Callable[[CallingTools], Awaitable[list[AnsweredCall]]] = lambda calling: calling(),
    ) -> RunningResponse:
        """Start a response, after a summary if `context_management` asks for one. Raises InvalidRequest."""
        box = await self.opened(read.body, context.identity)
        running: OpenCall
        if box is None:
            if read.approved:
                raise not_offered(read.approved[0])
            read = await self._fitting(read, context, attempt)
            running = await self._service.begin(read.ask(), context, attempt)
        else:
            read, running = await self._with_tools(read, context, attempt, box, watched)
        return RunningResponse(
            read,
            running,
            status,
            self._kept,
            keep_alive_s=self._options.keep_alive_s,
            request_id=context.ticket.id,
            box=box,
        )

    async def opened(self, body: ResponsesBody, identity: Identity) -> McpTools | None:
        """Return a toolbox, which the caller must close, or None without MCP tools. Raises InvalidRequest."""
        return None if self._toolboxes is None else await self._toolboxes.open(body, identity)

    async def _with_tools(
        self,
        read: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt,
        box: McpTools,
        watched: Callable[[CallingTools], Awaitable[list[AnsweredCall]]],
    ) -> tuple[ResponseParams, ToolLoop]:
        """Takes ownership of the box."""
        caller = ToolCaller(box, self._observer)
        try:
            read = await self._fitting(read, context, attempt, box.functions)
            approved = await watched(partial(caller.approved, read.approved)) if read.approved else []
            said = turns([ItemWithSource(one.item, one.request.param) for one in approved])
            ask = read.ask(box.functions, said)
            running = await self._service.begin(ask, context, attempt)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await box.close()
            raise
        listed = read.listed
        if read.body.is_compacting:
            listed = frozenset(one.label for one in box.listings)  # a summary is told alone
        plan = RoundPlan(ask, box, read.body.max_tool_calls, listed, approved)
        return read, ToolLoop(plan, running, self._service, context, caller, self._observer)

    async def _fitting(
        self,
        read: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt,
        offered: Sequence[FunctionParam] = (),
    ) -> ResponseParams:
        if not await self._is_to_sum_up(read, context, offered):
            return read
        return await self._summed_up(read, context, attempt, offered)

    async def _is_to_sum_up(
        self, read: ResponseParams, context: RequestContext, offered: Sequence[FunctionParam]
    ) -> bool:
        """A conversation without an answer has nothing that can be left out."""
        asked = read.body.context_management
        if not asked or not is_answered([*read.earlier, *read.items]):
            return False
        allowed, body = context.identity.allowed_models, read.body
        await fetch(self._service.models, body.model, allowed)
        chosen = choose_able(self._service.models, body.model, allowed, Ability.GENERATE, adapter=body.lora)
        limit = asked[0].compact_threshold or int(_FULL * chosen.model.loaded().context_limit)
        counted = await self._service.prompt_tokens(read.ask(offered), chosen, context)
        return counted.num_tokens > limit

    async def _summed_up(
        self,
        read: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt,
        offered: Sequence[FunctionParam],
    ) -> ResponseParams:
        """An empty summary is ignored."""
        ticket = context.ticket.inner(context.ticket.origin, path=_SUMMARY_ROUTE)
        ticket.client = context.ticket.client
        asking = read.summing_up()
        limit = LimitParam(_MOST_SUMMARY, "context_management", is_ceiling=True)
        ask = msgspec.structs.replace(asking.ask(offered), max_tokens=limit)
        async with served(ticket, self._endings.end) as summing:
            inner = RequestContext(ticket, context.sender, context.lease, timeout_s=context.timeout_s)
            running = await self._service.begin(ask, inner)
            attempt.submitted(running)
            async with running:
                heard = await attempt.watched(running.hold)
        if summing.error is not None:
            raise summing.error
        await context.settle()
        summary = _summary(asking, running, heard)
        return read if summary is None else read.summed_up(summary)


def _summary(
    asking: ResponseParams, running: RunningCall, heard: Sequence[TimedEvent]
) -> WrittenSummary | None:
    response = new_response(asking.body, running.call, ResponseStatus.IN_PROGRESS, is_stored=False)
    stream = ResponseStream(running.call, running.model.pieces, response, is_compacting=True)
    for event, _ in heard:
        stream.event(event)
    stream.end(running.figures)
    (item,), usage = stream.response.output, stream.response.usage
    assert isinstance(item, CompactionItem), "a summary is one"
    assert usage is not None, "it has ended"
    return WrittenSummary(item, usage) if item.encrypted_content[len(OWN_SUMMARY) :].strip() else None


def _outputs(response: ResponseObject) -> list[ItemRecord]:
    return [_record(item, is_output=True) for item in response.output]


def _kept_item(item: Item, answer_id: str | None = None) -> ConversationItem:
    return ConversationItem(id=item.id, content=msgspec.json.encode(item), answer_id=answer_id)


def _record(item: Item, *, is_output: bool) -> ItemRecord:
    return ItemRecord(id=item.id, content=msgspec.json.encode(item), is_output=is_output)
