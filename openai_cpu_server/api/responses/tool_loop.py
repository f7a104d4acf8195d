from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import msgspec

from openai_cpu_server import errors
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
from openai_cpu_server.api.responses.conversation import ApprovedCall, round_attachments, round_messages
from openai_cpu_server.api.responses.items import McpCallItem, OutputItem, new_item_id
from openai_cpu_server.api.responses.mcp_tools import McpTools, OfferedTool
from openai_cpu_server.api.responses.stream import PendingCall, ResponseStream
from openai_cpu_server.contract.figures import Figures, of_rounds
from openai_cpu_server.contract.mcp import McpAnswer, McpObserver
from openai_cpu_server.contract.messages import PromptProgress, TokenEvent
from openai_cpu_server.http.context import RequestContext
from openai_cpu_server.http.keys import Client
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import EndedCall, ended_rounds

_TOO_LONG = "context_length_exceeded"
_NO_ROOM = "the result is too long for the rest of the context"
_STOPPED = "the answer was stopped, so this call was not made"
_LEFT = "the answer was stopped while this call was made"
_CALLS_ENOUGH = "'max_tool_calls' is reached, so this call was not made"


def not_offered(call: ApprovedCall) -> errors.InvalidRequest:
    request = call.request
    message = f"'{request.name}' of '{request.server_label}' is not among the tools of this request."
    return errors.InvalidRequest(message, param=call.param, code="unknown_mcp_tool")


class AnsweredCall(NamedTuple):
    approved: ApprovedCall
    tool: OfferedTool
    answer: McpAnswer

    @property
    def item(self) -> McpCallItem:
        request, answer = self.approved.request, self.answer
        return McpCallItem(
            id=new_item_id(McpCallItem),
            server_label=request.server_label,
            name=request.name,
            arguments=request.arguments,
            output=None if answer.is_error else answer.text,
            error=answer.text if answer.is_error else None,
        )


@dataclass
class ToolCaller:
    tools: McpTools
    observer: McpObserver
    num_calls: int = 0
    seconds: float = 0.0

    async def call_approved(self, calls: Sequence[ApprovedCall]) -> list[AnsweredCall]:
        """Make approved calls. Raises InvalidRequest for a tool that is no longer offered."""
        found: list[tuple[OfferedTool, str]] = []
        for call in calls:
            if (tool := self.tools.find(call.request.server_label, call.request.name)) is None:
                raise not_offered(call)
            found.append((tool, call.request.arguments))
        answers = await self.call_all(found)
        return [AnsweredCall(*each) for each in zip(calls, (tool for tool, _ in found), answers, strict=True)]

    async def call_all(self, calls: Sequence[tuple[OfferedTool, str]]) -> list[McpAnswer]:
        """Make the calls concurrently."""
        began_s = time.monotonic()
        answers: dict[int, McpAnswer] = {}

        async def call(number: int, tool: OfferedTool, arguments: str) -> None:
            answers[number] = await self._call(tool, arguments)

        try:
            async with anyio.create_task_group() as group:
                for number, (tool, arguments) in enumerate(calls):
                    group.start_soon(call, number, tool, arguments)
        finally:
            self.seconds += time.monotonic() - began_s
        return [answers[number] for number in range(len(calls))]

    async def _call(self, tool: OfferedTool, arguments: str) -> McpAnswer:
        began_s = time.monotonic()
        self.num_calls += 1
        answer = McpAnswer("it was left", is_error=True)
        try:
            try:
                fields = msgspec.json.decode(arguments or "{}", type=dict[str, object])
            except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
                answer = McpAnswer(f"the arguments are not a JSON object: {arguments[:200]}", is_error=True)
            else:
                answer = await tool.server.call(tool.tool.name, fields)
        finally:
            seconds = time.monotonic() - began_s
            self.observer.mcp_called(tool.server.name, failed=answer.is_error, seconds=seconds)
        return msgspec.structs.replace(answer, duration_ms=round(1000 * seconds, 1))


@dataclass(eq=False)
class ToolLoop:
    """Implements `OpenCall`. Leaving the context ends a running tool call, and closes the tools."""

    first: GenerationParams
    max_calls: int | None
    listed: frozenset[str]
    """Servers whose tools the conversation has listed."""
    approved: Sequence[AnsweredCall]
    running: RunningCall
    service: GenerationService
    context: RequestContext
    caller: ToolCaller

    def __post_init__(self) -> None:
        self._params = self.first
        self._is_open = True
        self._rounds: list[EndedCall] = []
        self._scope: anyio.CancelScope | None = None
        self._is_cancelled = False
        self._is_stopped = False

    @property
    def call(self) -> ResolvedRequest:
        return self.running.call

    @property
    def model(self) -> ServedModel:
        return self.running.model

    @property
    def figures(self) -> Figures:
        now = [self.running.figures] if self._is_open else []
        return of_rounds([*(one.figures for one in self._rounds), *now])

    @property
    def names(self) -> tuple[str, str]:
        return self.running.names

    @property
    def client(self) -> Client:
        return self.running.client

    async def __aenter__(self) -> ToolLoop:
        self.service.calls.begin(self)
        await self.running.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.service.calls.end(self)
        try:
            await self._leave(*error)
        finally:
            notes, caller = self.context.request_log.notes, self.caller
            notes["mcp_rounds"] = len(self._rounds)
            notes["mcp_calls"] = caller.num_calls
            notes["mcp_ms"] = round(1000 * caller.seconds, 1)
            caller.observer.mcp_rounds(len(self._rounds))
            with anyio.CancelScope(shield=True):
                await caller.tools.close()

    def cancel(self) -> None:
        self._is_cancelled = True
        self.running.cancel()
        if self._scope is not None:
            self._scope.cancel()

    def stop(self) -> None:
        self._is_stopped = True
        with contextlib.suppress(errors.RequestEnded):  # this generation, but not all
            self.running.stop()
        if self._scope is not None:
            self._scope.cancel()

    def stop_thinking(self) -> None:
        if not self._is_open:
            raise errors.NotThinking(self.call.id)
        self.running.stop_thinking()

    async def gather(self) -> dict[str, GatheredAnswer]:
        """Run only the first generation, without tool calls."""
        return await self.running.gather()

    async def emit(self, renderer: Renderer) -> AsyncGenerator[StreamItem, None]:
        """Yield all rounds' events. Raises errors of generations, and those of its own end."""
        assert isinstance(renderer, ResponseStream), "only responses have such tools"
        stream = renderer
        yield [*stream.begin(), *self._before(stream)]
        while True:
            async with aclosing(self.running.emit(_Round(stream))) as items:
                async for item in items:
                    yield item
            await self._leave(None, None, None)
            calls = stream.output.pending
            for call, answer in zip(calls, await self._answers(calls), strict=True):
                yield stream.output.write_answer(call, answer)
            if not (calls and stream.is_whole) or stream.output.waits_for_client or self._is_stopped:
                break
            if (left := self._left_tokens) is not None and left <= 0:
                stream.is_whole = False
                break
            await self._start_round(stream)
        yield stream.end(self.figures)

    def _before(self, stream: ResponseStream) -> list[Chunk]:
        listings = [one for one in self.caller.tools.listings if one.label not in self.listed]
        if not listings and not self.approved:
            return []
        chunks = list(stream.keepalive())
        for listing in listings:
            chunks += stream.output.write_listing(listing)
        for (request, _), tool, answer in self.approved:
            chunks += stream.output.write_call(tool, request.arguments, request.id, answer)
        stream.output.start_round()
        return chunks

    async def _leave(self, *error: Any) -> None:
        if not self._is_open:
            return
        self._is_open = False
        await self.running.__aexit__(*error)
        request_log = self.context.request_log
        if request_log.call is not None:
            self._rounds.append(request_log.call)
            request_log.generated(ended_rounds(self._rounds))

    async def _answers(self, calls: Sequence[PendingCall]) -> list[McpAnswer]:
        if self._is_stopped:
            return [McpAnswer(_STOPPED, is_error=True)] * len(calls)
        most = self.max_calls
        room = len(calls) if most is None else max(0, most - self.caller.num_calls)
        limits_s = [s for s in (self._params.timeout_s, self.context.timeout_s) if s is not None]
        gone_s = time.monotonic() - self.context.request_log.started_s
        deadline_s = anyio.current_time() - gone_s + min(limits_s, default=float("inf"))
        answers: list[McpAnswer] = []
        with anyio.CancelScope(deadline=deadline_s) as self._scope:
            if self._is_cancelled:
                self._scope.cancel()
            answers = await self.caller.call_all([(one.call.tool, one.call.text) for one in calls[:room]])
        if self._scope.cancelled_caught:
            if self._is_cancelled:
                raise errors.RequestCancelled("The request was cancelled on the server.")
            if not self._is_stopped:
                raise errors.DeadlineExceeded(min(limits_s))
            return [McpAnswer(_LEFT, is_error=True)] * len(calls)
        return answers + [McpAnswer(_CALLS_ENOUGH, is_error=True)] * (len(calls) - len(answers))

    @property
    def _left_tokens(self) -> int | None:
        limit = self.first.max_tokens
        return None if limit is None else limit.tokens - self.figures.output_tokens

    async def _start_round(self, stream: ResponseStream) -> None:
        """Replace results that exceed the context by an error."""
        items = stream.output.of_round
        try:
            await self._begin(self._following(stream, items))
        except (errors.PromptTooLong, errors.InvalidRequest) as error:
            if not (isinstance(error, errors.PromptTooLong) or error.code == _TOO_LONG):
                raise
            short = [
                msgspec.structs.replace(item, output=None, error=_NO_ROOM)
                if isinstance(item, McpCallItem)
                else item
                for item in items
            ]
            await self._begin(self._following(stream, short))
        stream.start_round(self.running.call, self.running.model.pieces)

    async def _begin(self, params: GenerationParams) -> None:
        await self.context.reservation.settle()
        self.running = await self.service.begin(params, self.context)
        self._params = params
        self._is_open = True
        await self.running.__aenter__()
        if self._is_cancelled:
            self.running.cancel()
        elif self._is_stopped:
            self.stop()

    def _following(self, stream: ResponseStream, items: Sequence[OutputItem]) -> GenerationParams:
        params, limit, left = self._params, self.first.max_tokens, self._left_tokens
        info, tokens = self.model.engine.info, stream.written_in_round
        own = EarlierAnswer(tokens, fingerprint(info)) if tokens and info is not None else None
        new = round_messages(items, own)
        assert isinstance(params.prompt, ConversationParam), "a response is a conversation"
        messages = (*params.prompt.messages, *new)
        return msgspec.structs.replace(
            params,
            call_id=self.call.id,
            prompt=msgspec.structs.replace(params.prompt, messages=messages),
            attached=(*params.attached, *round_attachments(items)),
            num_bytes=params.num_bytes + sum(len(message.text) for message in new),
            max_tokens=limit and left and LimitParam.ceiling(left, limit.path),
            tools=self._tools(),
        )

    def _tools(self) -> ToolsParam | None:
        """A required call has been made. In the last round no MCP tool can be called."""
        first, tools, most = self.first.tools, self.caller.tools, self.max_calls
        if first is None or first.use is None:
            return first
        chosen = None if first.use is ToolUse.NAMED else first.chosen
        has_calls = most is None or self.caller.num_calls < most
        if len(self._rounds) < tools.limits.rounds and has_calls:
            return msgspec.structs.replace(first, use=ToolUse.AUTO, chosen=chosen)
        names = chosen or tuple(function.name for function in first.functions)
        own = tuple(name for name in names if name not in tools.offered)
        use = ToolUse.AUTO if own else None
        return msgspec.structs.replace(first, use=use, chosen=own or None, is_shown=True)


class _Round(Renderer):
    """One generation of a stream that spans all."""

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        return self._stream.prompt(request_id, progress, figures) if self._stream.is_silent else ()

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        return self._stream.event(event)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        return self._stream.end_round()
