from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial

import anyio
import msgspec

from openai_cpu_server.api.generation.call import fingerprint
from openai_cpu_server.api.generation.event_log import EventLog
from openai_cpu_server.api.generation.generation import WITHOUT_GUARD, CascadeAttempt, GenerationService
from openai_cpu_server.api.generation.params import EarlierAnswer, FunctionParam, LimitParam
from openai_cpu_server.api.generation.renderer import Chunk, events
from openai_cpu_server.api.generation.running import OpenCall, StreamItem, chunks_of
from openai_cpu_server.api.responses.conversation import is_answered, is_trigger
from openai_cpu_server.api.responses.items import OWN_SUMMARY, CompactionItem, ItemWithSource
from openai_cpu_server.api.responses.mcp_tools import McpTools, open_tools
from openai_cpu_server.api.responses.objects import ResponseObject, WrittenSummary, new_response
from openai_cpu_server.api.responses.reader import USABLE, LastResponse, ResponseParams
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.api.responses.stream import ResponseStream, encoded
from openai_cpu_server.api.responses.tool_loop import AnsweredCall, ToolCaller, ToolLoop, not_offered
from openai_cpu_server.contract.mcp import McpObserver, McpServers
from openai_cpu_server.errors import JobObjectNotFound, JobsUnavailable, RequestCancelled
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import RequestContext, RequestHistory, RequestLog, served
from openai_cpu_server.http.errors import error_object, failure_of
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.jobs.records import (
    ConversationItem,
    ConversationTurn,
    ItemRecord,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.responses import RENEW_S, ResponseRepository
from openai_cpu_server.models.registry import Ability, choose_able, ensure_served

logger = logging.getLogger(__name__)
_FIRST_KEEPALIVE_S = 1.0
"""Longest time until a waiting response reports it."""
_BYTES_PER_TOKEN = 4
_MAX_SUMMARY_TOKENS = 2048
"""Includes thoughts."""
_FULL = 0.75
"""Share of the context from which a conversation is summarized by default."""
_SUMMARY_ROUTE = "/v1/responses/compact"
_CLOSE_S = 5.0


class RunningResponse:
    """The owner must enter `call`."""

    def __init__(
        self,
        params: ResponseParams,
        call: OpenCall,
        status: ResponseStatus,
        repository: ResponseRepository | None,
        *,
        tools: McpTools | None,
        keep_alive_s: float,
        request_id: str,
    ) -> None:
        self.params = params
        self.call = call
        self._repository = repository if params.is_stored else None
        self._conversations = repository.conversations if repository and params.adds_to else None
        self._keep_alive_s = keep_alive_s
        self._request_id = request_id
        response = new_response(params.body, call.call, status, is_stored=params.is_stored)
        self.stream = ResponseStream(
            call.call,
            call.model.pieces,
            response,
            is_compacting=params.body.is_compacting,
            summary=params.summary,
            tools=tools,
        )

    @property
    def response(self) -> ResponseObject:
        return self.stream.response

    async def items(self) -> AsyncIterator[StreamItem]:
        """Store the response before its client sees the end, which may be a failure."""
        try:
            async for item in self._with_keepalives(self.call.emit(self.stream)):
                if self.stream.has_ended:
                    await self._store(self.response)
                yield item
        except Exception as error:  # its client has heard of its id
            await self._store(self.stream.failed(error_object(error, request_id=self._request_id)))
            raise

    async def warmed(self) -> Sequence[Chunk]:
        async with self.call:
            await self.call.gather()
        chunks = self.stream.warmed(self.call.figures)
        await self._store(self.response)
        return chunks

    async def whole(self) -> bytes:
        async with self.call:
            async for _ in self.call.emit(self.stream):
                pass
            await self._store(self.response)
        size = _BYTES_PER_TOKEN * self.call.figures.total_tokens
        return await off_loop(size, partial(encoded, self.response))

    def recent(self) -> LastResponse:
        answer = EarlierAnswer(self.stream.written, self._vocabulary())
        outputs = [ItemWithSource(item, "previous_response_id", answer) for item in self.response.output]
        inputs = [ItemWithSource(one.item, "previous_response_id") for one in self.params.items]
        return LastResponse(self.response.id, (*self.params.earlier, *inputs, *outputs))

    def record(self, repository: ResponseRepository, response: ResponseObject) -> ResponseRecord:
        return ResponseRecord(
            id=response.id,
            owner=self.params.owner,
            previous_id=self.params.body.previous_response_id,
            status=ResponseStatus(response.status),
            is_background=response.background,
            created_at=response.created_at,
            expires_at=repository.expiry(response.created_at),
            response=encoded(response),
            written=msgspec.msgpack.encode(self.stream.written) if self.stream.written else b"",
            vocabulary=self._vocabulary(),
        )

    def inputs(self) -> list[ItemRecord]:
        items = [one.item for one in self.params.items if not is_trigger(one.item)]
        return [ItemRecord(id=item.id, content=msgspec.json.encode(item)) for item in items]

    def turn(self, response: ResponseObject) -> ConversationTurn | None:
        """Return None without a conversation, or after a failure or cancellation."""
        conversation_id, conversations = self.params.adds_to, self._conversations
        is_usable = ResponseStatus(response.status) in USABLE
        if conversation_id is None or conversations is None or not is_usable:
            return None
        items = [
            ConversationItem(id=one.item.id, content=msgspec.json.encode(one.item))
            for one in self.params.items
        ]
        for number, item in enumerate(response.output):
            has_tokens = number == 0 and self.stream.written
            stored = ConversationItem(
                id=item.id,
                content=msgspec.json.encode(item),
                answer_id=response.id,
                written=msgspec.msgpack.encode(self.stream.written) if has_tokens else b"",
                vocabulary=self._vocabulary() if has_tokens else "",
            )
            items.append(stored)
        return conversations.turn(conversation_id, items)

    async def _with_keepalives(self, items: AsyncGenerator[StreamItem, None]) -> AsyncIterator[StreamItem]:
        wait_s = min(_FIRST_KEEPALIVE_S, self._keep_alive_s) or None
        async with aclosing(items):
            while self.stream.is_silent:
                coming = asyncio.ensure_future(anext(items, None))
                try:
                    while not (await asyncio.wait({coming}, timeout=wait_s))[0]:
                        wait_s = self._keep_alive_s or None
                        yield self.stream.keepalive()
                finally:
                    await _cancelled(coming)
                item = coming.result()
                if item is None:
                    return
                yield item
            async for item in items:
                yield item

    async def _store(self, response: ResponseObject) -> None:
        """A failure to store is logged, and the client still gets the response."""
        repository = self._repository
        try:
            if repository is not None:
                items = [*self.inputs(), *outputs_of(response)]
                await repository.add(self.record(repository, response), items, self.turn(response))
            elif self._conversations is not None and (turn := self.turn(response)) is not None:
                await self._conversations.append(self.params.owner, turn, only_new=True)
        except (JobsUnavailable, JobObjectNotFound) as error:
            logger.error("response %s was not stored: %s", self.response.id, error)

    def _vocabulary(self) -> str:
        info = self.call.model.engine.info
        return "" if info is None else fingerprint(info)


async def _cancelled(coming: asyncio.Future[StreamItem | None]) -> None:
    """The reader of the call must have ended before the call is closed."""
    coming.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # it counts as seen


def outputs_of(response: ResponseObject) -> list[ItemRecord]:
    return [
        ItemRecord(id=item.id, content=msgspec.json.encode(item), is_output=True) for item in response.output
    ]


CallingTools = Callable[[], Awaitable[list[AnsweredCall]]]
DisconnectGuard = Callable[[CallingTools], Awaitable[list[AnsweredCall]]]


@dataclass
class ResponseMaker:
    service: GenerationService
    repository: ResponseRepository | None
    history: RequestHistory
    mcp: McpServers | None
    """Absent (None) if the server calls no tools."""
    observer: McpObserver

    async def begin(
        self,
        params: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt = WITHOUT_GUARD,
        *,
        status: ResponseStatus = ResponseStatus.IN_PROGRESS,
        disconnect_guard: DisconnectGuard = lambda calling: calling(),
    ) -> RunningResponse:
        """Summarize first if `context_management` requests it. Raises InvalidRequest."""
        tools = await self.open_tools(params.body, context.identity)
        call: OpenCall
        if tools is None:
            if params.approved:
                raise not_offered(params.approved[0])
            params = await self._fitting(params, context, attempt)
            call = await self.service.begin(params.generation(), context, attempt)
        else:
            params, call = await self._begin_loop(params, context, attempt, tools, disconnect_guard)
        return RunningResponse(
            params,
            call,
            status,
            self.repository,
            tools=tools,
            keep_alive_s=self.service.options.keep_alive_s,
            request_id=context.request_log.id,
        )

    async def open_tools(self, body: ResponsesBody, identity: Identity) -> McpTools | None:
        return None if self.mcp is None else await open_tools(self.mcp, body, identity)

    async def _begin_loop(
        self,
        params: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt,
        tools: McpTools,
        disconnect_guard: DisconnectGuard,
    ) -> tuple[ResponseParams, ToolLoop]:
        """Takes ownership of the tools."""
        caller = ToolCaller(tools, self.observer)
        try:
            params = await self._fitting(params, context, attempt, tools.functions)
            calling = partial(caller.call_approved, params.approved)
            approved = await disconnect_guard(calling) if params.approved else []
            results = [ItemWithSource(one.item, one.approved.param) for one in approved]
            first = params.generation(tools.functions, results)
            running = await self.service.begin(first, context, attempt)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await tools.close()
            raise
        listed = params.listed
        if params.body.is_compacting:
            listed = frozenset(one.label for one in tools.listings)  # a summary is shown alone
        limit = params.body.max_tool_calls
        return params, ToolLoop(first, limit, listed, approved, running, self.service, context, caller)

    async def _fitting(
        self,
        params: ResponseParams,
        context: RequestContext,
        attempt: CascadeAttempt,
        offered: Sequence[FunctionParam] = (),
    ) -> ResponseParams:
        """Summarize a conversation that is too long, unless it has no answer. An empty summary is ignored."""
        management, body = params.body.context_management, params.body
        if not management or not is_answered([*params.earlier, *params.items]):
            return params
        allowed = context.identity.allowed_models
        await ensure_served(self.service.models, body.model, allowed)
        chosen = choose_able(self.service.models, body.model, allowed, Ability.GENERATE, adapter=body.lora)
        limit = management[0].compact_threshold or int(_FULL * chosen.model.loaded().context_limit)
        num_tokens, _ = await self.service.prompt_tokens(params.generation(offered), chosen, context)
        if num_tokens <= limit:
            return params
        inner = context.inner(context.request_log.origin, path=_SUMMARY_ROUTE)
        compacting = params.compacting()
        max_tokens = LimitParam.ceiling(_MAX_SUMMARY_TOKENS, "context_management")
        generation = msgspec.structs.replace(compacting.generation(offered), max_tokens=max_tokens)
        async with served(inner.request_log, self.history.end) as request:
            running = await self.service.begin(generation, inner)
            attempt.submitted(running)
            async with running:
                held = await attempt.disconnect_guard(running.hold)
        if request.error is not None:
            raise request.error
        await context.reservation.settle()
        response = new_response(compacting.body, running.call, ResponseStatus.IN_PROGRESS, is_stored=False)
        stream = ResponseStream(running.call, running.model.pieces, response, is_compacting=True)
        for event, _ in held:
            stream.event(event)
        stream.end(running.figures)
        (item,) = stream.response.output
        assert isinstance(item, CompactionItem), "a summary is one"
        is_empty = not item.encrypted_content[len(OWN_SUMMARY) :].strip()
        return params if is_empty else params.with_summary(WrittenSummary(item, running.figures))


@dataclass(eq=False)
class LiveResponse:
    running: RunningResponse
    request_log: RequestLog
    reservation: Reservation
    log: EventLog = field(default_factory=EventLog)

    @property
    def response(self) -> ResponseObject:
        return self.running.response

    async def cancelled(self) -> None:
        """Wait until the end is stored, which may be a different end."""
        self.running.call.cancel()
        await self.log.ended()


class Background:
    """The owner must `close` it before the database."""

    def __init__(self, repository: ResponseRepository, history: RequestHistory) -> None:
        self._repository = repository
        self._history = history
        self._live: dict[str, LiveResponse] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def begin(self, live: LiveResponse) -> None:
        """Store and start the response, even if the client leaves meanwhile. Raises JobsUnavailable."""
        live.reservation.keep()
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._run(live, stored))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        await asyncio.shield(stored)

    def find(self, owner: str, response_id: str) -> LiveResponse | None:
        live = self._live.get(response_id)
        return live if live is not None and live.running.params.owner == owner else None

    async def close(self) -> None:
        """Wait after the engines' end until running responses are stored."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_CLOSE_S)
        for task in self._tasks:
            task.cancel()

    async def _run(self, live: LiveResponse, stored: asyncio.Future[None]) -> None:
        running, repository = live.running, self._repository
        record = repository.leased(running.record(repository, running.response))
        try:
            await repository.add(record, running.inputs())
        except BaseException as error:
            await running.call.__aexit__(None, None, None)
            await live.reservation.end()
            stored.set_exception(error)
            return
        self._live[record.id] = live
        stored.set_result(None)
        renewing = asyncio.create_task(self._renew(live))
        try:
            last = await self._make(live)
        finally:
            renewing.cancel()
            await live.reservation.end()
            self._history.end(live.request_log)
        response = running.response
        try:
            log = [*live.log.events, *(events([chunk]) for chunk in last)]
            record = running.record(repository, response)
            await repository.finish(record, outputs_of(response), log, running.turn(response))
        except JobsUnavailable as error:
            logger.error("response %s was not stored: %s", response.id, error.reason)
        finally:
            live.log.add(last)
            live.log.end()
            del self._live[response.id]

    async def _make(self, live: LiveResponse) -> Sequence[Chunk]:
        """Return the last events, which wait until the response is stored."""
        stream, request_log = live.running.stream, live.request_log
        try:
            async with live.running.call as call:
                async for item in call.emit(stream):
                    chunks = chunks_of(item, stream)
                    if stream.has_ended:
                        request_log.status = 200
                        return chunks
                    live.log.add(chunks)
        except Exception as error:
            request_log.failed(error)
            request_log.status = failure_of(error).status
            if isinstance(error, RequestCancelled):
                return stream.cancel()
            return stream.error(error_object(error, request_id=request_log.id))
        raise AssertionError("a call ends with an event")

    async def _renew(self, live: LiveResponse) -> None:
        """Show other servers that the response is live. A failure means that one of them has cancelled it."""
        while True:
            await asyncio.sleep(RENEW_S)
            with contextlib.suppress(JobsUnavailable):
                record = live.running.record(self._repository, live.response)
                if not await self._repository.renew(record):
                    live.running.call.cancel()
