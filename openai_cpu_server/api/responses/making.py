"""A response while it is made: submitted, told with signs of life, and stored at its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial

import anyio
import msgspec

from openai_cpu_server.api.asking.ask import AskedFunction, AskedLimit, EarlierAnswer
from openai_cpu_server.api.asking.call import fingerprint
from openai_cpu_server.api.asking.generation import UNWATCHED, CascadeAttempt, GenerationService
from openai_cpu_server.api.asking.renderer import Chunk
from openai_cpu_server.api.asking.running import OpenCall, RunningCall, Said, TimedEvent
from openai_cpu_server.api.responses.body import ResponsesBody
from openai_cpu_server.api.responses.conversation import is_answered, is_trigger, turns
from openai_cpu_server.api.responses.items import OWN_SUMMARY, CompactionItem, Item, SourcedItem
from openai_cpu_server.api.responses.objects import ResponseObject, WrittenSummary, new_response
from openai_cpu_server.api.responses.rounds import (
    AnsweredCall,
    RoundPlan,
    ToolCaller,
    ToolRounds,
    not_offered,
)
from openai_cpu_server.api.responses.stream import ResponseStream, encoded
from openai_cpu_server.api.responses.toolbox import Toolbox, ToolboxOpener
from openai_cpu_server.api.responses.turns import USABLE, AskedResponse, LastResponse
from openai_cpu_server.contract.mcp import McpObserver, McpServers
from openai_cpu_server.errors import JobObjectNotFound, JobsUnavailable
from openai_cpu_server.http.body import off_loop
from openai_cpu_server.http.context import EndedRequests, RequestContext, served
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.keys import Identity
from openai_cpu_server.http.options import ApiOptions
from openai_cpu_server.jobs.records import (
    ConversationTurn,
    ItemRecord,
    KeptItem,
    ResponseRecord,
    ResponseStatus,
)
from openai_cpu_server.jobs.responses import KeptResponses
from openai_cpu_server.models.registry import Ability, choose_able, fetch


async def alive(
    told: AsyncGenerator[Said, None], stream: ResponseStream, *, first_s: float, every_s: float
) -> AsyncIterator[Said]:
    """What is told, and where nothing comes for so long, that it lives.

    They stand among the events, and not beside them as keep-alive comments do, for they are numbered.
    `every_s`: 0 is never, as with comments.
    """
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


async def _left(coming: asyncio.Future[Said | None]) -> None:
    """Nobody waits for it any more. What reads the call must have ended before that is closed."""
    coming.cancel()
    with anyio.CancelScope(shield=True):
        await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()  # it counts as seen


logger = logging.getLogger(__name__)


class RunningResponse:
    """One response that was submitted. Whoever gets it must enter `running`."""

    def __init__(
        self,
        read: AskedResponse,
        running: OpenCall,
        status: ResponseStatus,
        kept: KeptResponses | None,
        *,
        box: Toolbox | None = None,
        keep_alive_s: float,
        request_id: str,
    ) -> None:
        """`request_id`: errors name it."""
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

    async def told(self) -> AsyncIterator[Said]:
        """What a client that listens hears. The response is stored before it hears of the end, be that a
        failure."""
        try:
            async for said in self._told():
                yield said
        except Exception as error:  # its client has heard of its id
            await self._keep(self.stream.failed(error_object(error, request_id=self._request_id)))
            raise

    async def _told(self) -> AsyncIterator[Said]:
        news = self.running.tell(self.stream)
        async for said in alive(news, self.stream, first_s=_FIRST_SIGN_S, every_s=self._keep_alive_s):
            if self.stream.has_ended:
                await self._keep()
            yield said

    async def warmed(self) -> Sequence[Chunk]:
        """What a client hears of a response whose prompt is only to be read."""
        async with self.running:
            await self.running.gather()
        chunks = self.stream.warmed(self.running.figures)
        await self._keep()
        return chunks

    async def whole(self) -> bytes:
        """The response of a call that is not streamed. Raises what the call failed with."""
        async with self.running:
            async for _ in self._told():
                pass
        return await off_loop(_SHOWN * self.running.figures.total_tokens, partial(encoded, self.response))

    def recent(self) -> LastResponse:
        """Its conversation, to be gone on from."""
        answer = EarlierAnswer(self.stream.written, self._vocabulary())
        outputs = [SourcedItem(item, "previous_response_id", answer) for item in self.response.output]
        inputs = [SourcedItem(one.item, "previous_response_id") for one in self.read.items]
        return LastResponse(self.response.id, (*self.read.earlier, *inputs, *outputs))

    def record(self, kept: KeptResponses, response: ResponseObject | None = None) -> ResponseRecord:
        """It as it is now; `response`: as it is to be seen."""
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
        """An answer that was computed is given also where it cannot be stored."""
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
        """What its conversation gets, if it is one of one and has come to an end of its own."""
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
"""So long it takes at most until a response that waits knows of that."""
_SHOWN = 4
"""About as many bytes a token has in an answer."""


_MOST_SUMMARY = 2048
"""A summary has at most so many tokens, thoughts included."""
_FULL = 0.75
"""The share of the context from which on a conversation is summed up, where no threshold is named."""
_SUMMARY_ROUTE = "/v1/responses/compact"
"""What the log calls the making of a summary."""
CallingTools = Callable[[], Awaitable[list[AnsweredCall]]]


class ResponseMaker:
    """Begins responses on the way of all generating calls."""

    def __init__(
        self,
        service: GenerationService,
        options: ApiOptions,
        kept: KeptResponses | None,
        endings: EndedRequests,
        mcp: McpServers | None,
        observer: McpObserver,
    ) -> None:
        """`mcp`: None, no tools are called here."""
        self._service = service
        self._options = options
        self._kept = kept
        self._endings = endings
        self._toolboxes = None if mcp is None else ToolboxOpener(mcp)
        self._observer = observer

    async def begin(
        self,
        read: AskedResponse,
        context: RequestContext,
        attempt: CascadeAttempt = UNWATCHED,
        *,
        status: ResponseStatus = ResponseStatus.IN_PROGRESS,
        watched: Callable[[CallingTools], Awaitable[list[AnsweredCall]]] = lambda calling: calling(),
    ) -> RunningResponse:
        """Where `context_management` asks for it, what was said is summed up first. `watched`: makes calls
        that were approved, as long as somebody wants them."""
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

    async def opened(self, body: ResponsesBody, identity: Identity) -> Toolbox | None:
        """Whoever gets it must close it. None: the body asks for no tools of MCP servers. Raises
        InvalidRequest."""
        return None if self._toolboxes is None else await self._toolboxes.open(body, identity)

    async def _with_tools(
        self,
        read: AskedResponse,
        context: RequestContext,
        attempt: CascadeAttempt,
        box: Toolbox,
        watched: Callable[[CallingTools], Awaitable[list[AnsweredCall]]],
    ) -> tuple[AskedResponse, ToolRounds]:
        """It owns the box from now on."""
        caller = ToolCaller(box, self._observer)
        try:
            read = await self._fitting(read, context, attempt, box.functions)
            approved = await watched(partial(caller.approved, read.approved)) if read.approved else []
            said = turns([SourcedItem(one.item, one.request.param) for one in approved])
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
        return read, ToolRounds(plan, running, self._service, context, caller, self._observer)

    async def _fitting(
        self,
        read: AskedResponse,
        context: RequestContext,
        attempt: CascadeAttempt,
        offered: Sequence[AskedFunction] = (),
    ) -> AskedResponse:
        """With a summary in place of what was said, where that is asked for and too long."""
        if not await self._is_to_sum_up(read, context, offered):
            return read
        return await self._summed_up(read, context, attempt, offered)

    async def _is_to_sum_up(
        self, read: AskedResponse, context: RequestContext, offered: Sequence[AskedFunction]
    ) -> bool:
        """A prompt that exceeds the threshold is. Where nothing was answered yet, nothing can be left out."""
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
        read: AskedResponse,
        context: RequestContext,
        attempt: CascadeAttempt,
        offered: Sequence[AskedFunction],
    ) -> AskedResponse:
        """With a summary that the model writes now. One that says nothing changes nothing."""
        ticket = context.ticket.inner(context.ticket.origin, path=_SUMMARY_ROUTE)
        ticket.client = context.ticket.client
        asking = read.summing_up()
        limit = AskedLimit(_MOST_SUMMARY, "context_management", is_ceiling=True)
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
    asking: AskedResponse, running: RunningCall, heard: Sequence[TimedEvent]
) -> WrittenSummary | None:
    """What was written, as an item. None: nothing was."""
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


def _kept_item(item: Item, answer_id: str | None = None) -> KeptItem:
    return KeptItem(id=item.id, content=msgspec.json.encode(item), answer_id=answer_id)


def _record(item: Item, *, is_output: bool) -> ItemRecord:
    return ItemRecord(id=item.id, content=msgspec.json.encode(item), is_output=is_output)
