"""Response whose model calls MCP tools, in generations until no call is left or the client must act."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import anyio
import msgspec

from openai_cpu_server.api.generation.call import ResolvedRequest, fingerprint
from openai_cpu_server.api.generation.generation import GenerationService
from openai_cpu_server.api.generation.params import (
    ConversationParam,
    EarlierAnswer,
    GenerationParams,
    LimitParam,
    ToolsParam,
    ToolUse,
)
from openai_cpu_server.api.generation.renderer import Chunk, GatheredAnswer, Renderer
from openai_cpu_server.api.generation.running import RunningCall, StreamItem
from openai_cpu_server.api.responses.conversation import ApprovedCall, round_turns
from openai_cpu_server.api.responses.items import McpCallItem, OutputItem, new_item_id
from openai_cpu_server.api.responses.stream import ResponseStream
from openai_cpu_server.api.responses.toolbox import McpTools, OfferedTool
from openai_cpu_server.api.responses.writing import PendingCall
from openai_cpu_server.contract.figures import Figures, of_rounds
from openai_cpu_server.contract.mcp import McpAnswer, McpObserver
from openai_cpu_server.contract.messages import PromptProgress, TokenEvent
from openai_cpu_server.errors import (
    DeadlineExceeded,
    InvalidRequest,
    NotThinking,
    PromptTooLong,
    RequestCancelled,
    RequestEnded,
)
from openai_cpu_server.http.clients import Client
from openai_cpu_server.http.context import RequestContext
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import EndedCall, ended_rounds

_TOO_LONG = "context_length_exceeded"
_NO_ROOM = "the result is too long for what is left of the context"
_STOPPED = "the answer was stopped, so this call was not made"
_LEFT = "the answer was stopped while this call was made"
_CALLS_ENOUGH = "'max_tool_calls' is reached, so this call was not made"


def not_offered(call: ApprovedCall) -> InvalidRequest:
    asked = call.request
    message = f"'{asked.name}' of '{asked.server_label}' is none of the tools that this request offers."
    return InvalidRequest(message, param=call.param, code="unknown_mcp_tool")


class AnsweredCall(NamedTuple):
    request: ApprovedCall
    one: OfferedTool
    answer: McpAnswer

    @property
    def item(self) -> McpCallItem:
        asked, said = self.request.request, self.answer
        return McpCallItem(
            id=new_item_id(McpCallItem),
            server_label=asked.server_label,
            name=asked.name,
            arguments=asked.arguments,
            output=None if said.is_error else said.text,
            error=said.text if said.is_error else None,
        )


class ToolCaller:
    def __init__(self, box: McpTools, observer: McpObserver) -> None:
        self._box = box
        self._observer = observer
        self.num_calls = 0
        self.seconds = 0.0

    async def approved(self, calls: Sequence[ApprovedCall]) -> list[AnsweredCall]:
        """Make approved calls. Raises InvalidRequest for a tool that is no longer offered."""
        found = [(call, self._offered(call)) for call in calls]
        answers = await self.answers([(one, call.request.arguments) for call, one in found])
        return [AnsweredCall(call, one, said) for (call, one), said in zip(found, answers, strict=True)]

    async def answers(self, calls: Sequence[tuple[OfferedTool, str]]) -> list[McpAnswer]:
        began_s = time.monotonic()
        answers: dict[int, McpAnswer] = {}

        async def answer(at: int, one: OfferedTool, arguments: str) -> None:
            answers[at] = await self._answer(one, arguments)

        try:
            async with anyio.create_task_group() as group:
                for at, (one, arguments) in enumerate(calls):
                    group.start_soon(answer, at, one, arguments)
        finally:
            self.seconds += time.monotonic() - began_s
        return [answers[at] for at in range(len(calls))]

    async def _answer(self, one: OfferedTool, arguments: str) -> McpAnswer:
        began_s = time.monotonic()
        self.num_calls += 1
        said = McpAnswer("it was left", is_error=True)
        try:
            said = await self._box.call(one, arguments, _parsed(arguments))
        finally:
            seconds = time.monotonic() - began_s
            self._observer.mcp_called(one.server.name, failed=said.is_error, seconds=seconds)
        return msgspec.structs.replace(said, duration_ms=round(1000 * seconds, 1))

    def _offered(self, call: ApprovedCall) -> OfferedTool:
        if (one := self._box.find(call.request.server_label, call.request.name)) is None:
            raise not_offered(call)
        return one


class RoundPlan(NamedTuple):
    ask: GenerationParams
    box: McpTools
    max_calls: int | None
    listed: frozenset[str]
    approved: Sequence[AnsweredCall]


class ToolLoop:
    """Implements `OpenCall`. Leaving the context also ends a running tool call, and closes the toolbox."""

    def __init__(
        self,
        plan: RoundPlan,
        first: RunningCall,
        service: GenerationService,
        context: RequestContext,
        caller: ToolCaller,
        observer: McpObserver,
    ) -> None:
        self._plan = plan
        self._ask = plan.ask
        self._running = first
        self._service = service
        self._context = context
        self._caller = caller
        self._observer = observer
        self._is_open = True
        self._rounds: list[EndedCall] = []
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._is_stopped = False

    @property
    def call(self) -> ResolvedRequest:
        return self._running.call

    @property
    def model(self) -> ServedModel:
        return self._running.model

    @property
    def figures(self) -> Figures:
        now = [self._running.figures] if self._is_open else []
        return of_rounds([*(one.figures for one in self._rounds), *now])

    @property
    def names(self) -> tuple[str, str]:
        return self._running.names

    @property
    def client(self) -> Client:
        return self._running.client

    async def __aenter__(self) -> ToolLoop:
        self._service.calls.begin(self)
        await self._running.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._service.calls.end(self)
        try:
            await self._leave(*error)
        finally:
            self._note()
            with anyio.CancelScope(shield=True):
                await self._plan.box.close()

    def cancel(self) -> None:
        self._is_cancelled = True
        self._running.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def stop(self) -> None:
        self._is_stopped = True
        with contextlib.suppress(RequestEnded):  # this generation, but not all
            self._running.stop()
        if self._scope is not None:
            self._scope.cancel()

    def stop_thinking(self) -> None:
        if not self._is_open:
            raise NotThinking(self.call.id)
        self._running.stop_thinking()

    async def gather(self) -> dict[str, GatheredAnswer]:
        """Run only the first generation, without tool calls."""
        return await self._running.gather()

    async def tell(self, renderer: Renderer) -> AsyncGenerator[StreamItem, None]:
        """Yield the events of all rounds. Raises errors of generations, DeadlineExceeded,
        RequestCancelled."""
        assert isinstance(renderer, ResponseStream), "only responses have such tools"
        stream = renderer
        yield [*stream.begin(), *self._before(stream)]
        while True:
            async with aclosing(self._running.tell(_Round(stream))) as told:
                async for said in told:
                    yield said
            await self._leave(None, None, None)
            calls = stream.writing.waiting
            for call, answer in zip(calls, await self._answers(calls), strict=True):
                yield stream.writing.tell_answer(call, answer)
            if not (calls and stream.is_whole and self._may_go_on(stream)):
                break
            await self._go_on(stream)
        yield stream.end(self.figures)

    # -- inside -------------------------------------------------------------------------------------------

    def _before(self, stream: ResponseStream) -> list[Chunk]:
        plan = self._plan
        listings = [one for one in plan.box.listings if one.label not in plan.listed]
        if not listings and not plan.approved:
            return []
        chunks = list(stream.lives())
        for listing in listings:
            chunks += stream.writing.tell_listing(listing)
        for call, one, answer in plan.approved:
            asked = call.request
            chunks += stream.writing.tell_call(one, asked.arguments, asked.id, answer)
        stream.writing.start_round()
        return chunks

    async def _leave(self, *error: Any) -> None:
        if not self._is_open:
            return
        self._is_open = False
        await self._running.__aexit__(*error)
        ticket = self._context.ticket
        if ticket.call is not None:
            self._rounds.append(ticket.call)
            ticket.generated(ended_rounds(self._rounds))

    async def _begin(self, ask: GenerationParams) -> None:
        await self._context.settle()
        self._running = await self._service.begin(ask, self._context)
        self._ask = ask
        self._is_open = True
        await self._running.__aenter__()
        if self._is_cancelled:
            self._running.cancel()
        elif self._is_stopped:
            self.stop()

    async def _answers(self, calls: Sequence[PendingCall]) -> list[McpAnswer]:
        if self._is_stopped:
            return [McpAnswer(_STOPPED, is_error=True)] * len(calls)
        most = self._plan.max_calls
        room = len(calls) if most is None else max(0, most - self._caller.num_calls)
        answers: list[McpAnswer] = []
        with anyio.CancelScope(deadline=self._deadline_s) as self._scope:
            if self._is_cancelled:
                self._scope.cancel()
            made = [(call.writer.one, call.writer.arguments) for call in calls[:room]]
            answers = await self._caller.answers(made)
        if self._scope.cancelled_caught:
            if self._is_cancelled:
                raise RequestCancelled("The request was cancelled on the server.")
            if not self._is_stopped:
                raise DeadlineExceeded(min(self._limits_s))
            return [McpAnswer(_LEFT, is_error=True)] * len(calls)
        return answers + [McpAnswer(_CALLS_ENOUGH, is_error=True)] * (len(calls) - len(answers))

    @property
    def _limits_s(self) -> list[float]:
        return [s for s in (self._ask.timeout_s, self._context.timeout_s) if s is not None]

    @property
    def _deadline_s(self) -> float:
        """Time of the event loop's clock."""
        gone_s = time.monotonic() - self._context.ticket.started_s
        return anyio.current_time() - gone_s + min(self._limits_s, default=float("inf"))

    def _may_go_on(self, stream: ResponseStream) -> bool:
        if stream.writing.waits_for_client or self._is_stopped:
            return False
        if self._left is not None and self._left <= 0:
            stream.is_whole = False
            return False
        return True

    @property
    def _left(self) -> int | None:
        """Tokens left of the client's `max_tokens`, or None."""
        limit = self._plan.ask.max_tokens
        return None if limit is None else limit.tokens - self.figures.output_tokens

    async def _go_on(self, stream: ResponseStream) -> None:
        """Results that exceed the context are replaced by an error."""
        items = stream.writing.of_round
        try:
            await self._begin(self._following(stream, items))
        except (PromptTooLong, InvalidRequest) as error:
            if not (isinstance(error, PromptTooLong) or error.code == _TOO_LONG):
                raise
            await self._begin(self._following(stream, [_unread(item) for item in items]))
        stream.go_on(self._running.call, self._running.model.pieces)

    def _following(self, stream: ResponseStream, items: Sequence[OutputItem]) -> GenerationParams:
        ask, limit, left = self._ask, self._plan.ask.max_tokens, self._left
        info, tokens = self.model.engine.info, stream.written_in_round
        own = EarlierAnswer(tokens, fingerprint(info)) if tokens and info is not None else None
        said = round_turns(items, own)
        assert isinstance(ask.prompt, ConversationParam), "a response is a conversation"
        messages = (*ask.prompt.messages, *said)
        return msgspec.structs.replace(
            ask,
            call_id=self.call.id,
            prompt=msgspec.structs.replace(ask.prompt, messages=messages),
            num_bytes=ask.num_bytes + sum(len(message.text) for message in said),
            max_tokens=limit and left and LimitParam(left, limit.path, is_ceiling=True),
            tools=self._tools(),
        )

    def _tools(self) -> ToolsParam | None:
        """A required call has been made. In the last round no MCP tool can be called."""
        asked, box, most = self._plan.ask.tools, self._plan.box, self._plan.max_calls
        if asked is None or asked.use is None:
            return asked
        chosen = None if asked.use is ToolUse.NAMED else asked.chosen
        has_calls = most is None or self._caller.num_calls < most
        if len(self._rounds) < box.limits.rounds and has_calls:
            return msgspec.structs.replace(asked, use=ToolUse.AUTO, chosen=chosen)
        known = chosen or tuple(function.name for function in asked.functions)
        own = tuple(name for name in known if name not in box.offered)
        use = ToolUse.AUTO if own else None
        return msgspec.structs.replace(asked, use=use, chosen=own or None, is_shown=True)

    def _note(self) -> None:
        notes, caller = self._context.ticket.notes, self._caller
        notes["mcp_rounds"] = len(self._rounds)
        notes["mcp_calls"] = caller.num_calls
        notes["mcp_ms"] = round(1000 * caller.seconds, 1)
        self._observer.mcp_rounds(len(self._rounds))


class _Round(Renderer):
    """One of several generations. The stream begins before the first and ends after the last."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        return self._stream.prompt(request_id, progress, figures) if self._stream.is_silent else ()

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        return self._stream.event(event)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        return self._stream.writing.end_round(is_whole=self._stream.is_whole)


def _unread(item: OutputItem) -> OutputItem:
    if not isinstance(item, McpCallItem):
        return item
    return msgspec.structs.replace(item, output=None, error=_NO_ROOM)


def _parsed(arguments: str) -> dict[str, object] | None:
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
