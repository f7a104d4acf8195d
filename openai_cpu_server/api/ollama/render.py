"""Ollama's answers, with durations in nanoseconds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from datetime import datetime, timezone
from functools import partial
from typing import Union

import msgspec
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.logprobs import TokenEntry, chat_logprobs
from openai_cpu_server.api.generation.renderer import (
    Chunk,
    EndedBy,
    GatheredCall,
    ProgressChunk,
    Renderer,
    content_of,
    ended_by,
    escaped_line_ends,
    finish_reason,
    new_tool_call_id,
    reasoning_of,
)
from openai_cpu_server.api.generation.route import NO_STORE_HEADERS, while_connected
from openai_cpu_server.api.generation.running import AnswerStream, RunningCall, chunks_of
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, PromptProgress, TokenEvent
from openai_cpu_server.contract.pull import PullStep
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.http import errors
from openai_cpu_server.http.context import request_log_of
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.tool_formats import CallArguments, CallBegin, Part

OLLAMA = "/api"
NDJSON = "application/x-ndjson"


class OllamaError(msgspec.Struct, frozen=True):
    error: str


def ollama_error(error: Exception, request_id: str) -> OllamaError:
    return OllamaError(errors.error_object(error, request_id=request_id).error.message)


OLLAMA_ERROR_SHAPE = errors.ErrorShape(
    (OLLAMA,),
    lambda error, request_id: errors.json_response(
        ollama_error(error, request_id), errors.failure_of(error).status, errors.headers_of(error)
    ),
)


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="microseconds").replace("+00:00", "Z")


class OllamaFunctionCall(msgspec.Struct, frozen=True):
    index: int
    name: str
    arguments: msgspec.Raw


class OllamaToolCall(msgspec.Struct, frozen=True):
    id: str
    function: OllamaFunctionCall


class OllamaAnswerMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    role: str
    content: str
    thinking: str = ""
    tool_calls: tuple[OllamaToolCall, ...] = ()


class OllamaLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Whole answer, or one line of it. Fields behind `done` are only in the last one."""

    model: str
    created_at: str
    message: Union[OllamaAnswerMessage, None] = None
    response: Union[str, None] = None
    thinking: str = ""
    logprobs: tuple[TokenEntry, ...] = ()
    prompt_progress: ProgressChunk | None = None
    done: bool
    done_reason: str = ""
    """`stop` or `length`; `load` or `unload` for an empty request."""
    ended_by: EndedBy = msgspec.UNSET
    total_duration: int | None = None
    load_duration: int | None = None
    """Includes the wait in the queue, as in Ollama."""
    prompt_eval_count: int | None = None
    prompt_eval_duration: int | None = None
    eval_count: int | None = None
    eval_duration: int | None = None
    context: tuple[int, ...] = ()
    """Prompt and answer, which the next `/api/generate` may continue."""


def _nanoseconds(milliseconds: float) -> int:
    return round(milliseconds * 1e6)


def _ended(line: OllamaLine, finish: Finish, figures: Figures) -> OllamaLine:
    return msgspec.structs.replace(
        line,
        done=True,
        done_reason=finish_reason(finish),
        ended_by=ended_by(finish),
        total_duration=_nanoseconds(figures.latency_ms),
        load_duration=_nanoseconds(figures.queue_ms),
        prompt_eval_count=figures.prompt_tokens,
        prompt_eval_duration=_nanoseconds(figures.prefill_ms),
        eval_count=figures.output_tokens,
        eval_duration=_nanoseconds(figures.generation_ms),
    )


def _scored(line: OllamaLine, scores: Sequence[TokenLogprob], pieces: PieceTexts) -> OllamaLine:
    if not scores:
        return line
    return msgspec.structs.replace(line, logprobs=tuple(chat_logprobs(scores, pieces).content))


def _with_context(line: OllamaLine, call: ResolvedRequest, answer: Sequence[int]) -> OllamaLine:
    if not call.details.tokens:
        return line
    return msgspec.structs.replace(line, context=(*call.requests[0].tokens, *answer))


class OpenCalls:
    """Collects whole calls, because Ollama does not stream them. A cut call is dropped."""

    def __init__(self) -> None:
        self._name: str | None = None
        self._num_calls = 0
        self._arguments: list[str] = []

    def read(self, parts: Sequence[Part]) -> tuple[OllamaToolCall, ...]:
        """Return calls followed by another part."""
        done: list[OllamaToolCall] = []
        for part in parts:
            if isinstance(part, CallArguments):
                self._arguments.append(part.text)
                continue
            done += self.close()
            if isinstance(part, CallBegin):
                self._name = part.name
        return tuple(done)

    def close(self) -> tuple[OllamaToolCall, ...]:
        name, text = self._name, "".join(self._arguments) or "{}"
        self._name, self._arguments = None, []
        if name is None:
            return ()
        try:
            arguments = msgspec.json.decode(text, type=msgspec.Raw)
        except (msgspec.DecodeError, RecursionError):
            return ()
        self._num_calls += 1
        return (OllamaToolCall(new_tool_call_id(), OllamaFunctionCall(self._num_calls - 1, name, arguments)),)


class OllamaRenderer:
    def __init__(self, *, is_chat: bool) -> None:
        self._is_chat = is_chat

    def whole(self, gathered: GatheredCall) -> bytes:
        call, answer = gathered.call, gathered.only
        parts, calls = answer.parts(call.reader()), OpenCalls()
        line = self.line(call.model, parts, (*calls.read(parts), *calls.close()))
        line = _scored(_ended(line, answer.ended, gathered.figures), answer.logprobs, gathered.pieces)
        return msgspec.json.encode(_with_context(line, call, answer.tokens))

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> OllamaStream:
        return OllamaStream(call, self, pieces)

    def line(
        self, model: str, parts: Sequence[Part] = (), calls: tuple[OllamaToolCall, ...] = ()
    ) -> OllamaLine:
        text, thoughts = content_of(parts), reasoning_of(parts)
        if not self._is_chat:
            return OllamaLine(model=model, created_at=now(), response=text, thinking=thoughts, done=False)
        message = OllamaAnswerMessage(role="assistant", content=text, thinking=thoughts, tool_calls=calls)
        return OllamaLine(model=model, created_at=now(), message=message, done=False)

    def unasked(self, model: str, done_reason: str) -> OllamaLine:
        """Answer a request that loaded or unloaded the model."""
        return msgspec.structs.replace(self.line(model), done=True, done_reason=done_reason)


class OllamaStream(Renderer):
    def __init__(self, call: ResolvedRequest, renderer: OllamaRenderer, pieces: PieceTexts) -> None:
        self._call = call
        self._renderer = renderer
        self._pieces = pieces
        self._scores: list[TokenLogprob] = []
        """Scores whose text is not out yet."""
        self._tokens: list[int] = []
        self._reader = call.reader()
        self._calls = OpenCalls()
        self._finish: Finish | None = None

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        parts = self._reader.read(event)
        calls = self._calls.read(parts)
        self._scores += event.logprobs
        if self._call.details.tokens:
            self._tokens += event.tokens
        if event.finish is not None:
            finish_reason(event.finish)
            self._finish = event.finish
            calls += self._calls.close()
        if not (calls or content_of(parts) or reasoning_of(parts)):
            return ()
        line = self._renderer.line(self._call.model, parts, calls)
        return (_chunk(self._with_scores(line)),)

    def _with_scores(self, line: OllamaLine) -> OllamaLine:
        scores, self._scores = self._scores, []
        return _scored(line, scores, self._pieces)

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """Clients show an empty text as nothing."""
        line = self._renderer.line(self._call.model)
        line = msgspec.structs.replace(line, prompt_progress=ProgressChunk.of(progress, figures))
        return (_chunk(line),)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        assert self._finish is not None, "all sequences have ended"
        line = _ended(self._renderer.line(self._call.model), self._finish, figures)
        return (_chunk(_with_context(self._with_scores(line), self._call, self._tokens)),)

    def error(self, error: errors.ErrorObject) -> Sequence[Chunk]:
        return (Chunk(msgspec.json.encode(OllamaError(error.error.message))),)


def _chunk(line: OllamaLine) -> Chunk:
    return Chunk(escaped_line_ends(msgspec.json.encode(line)))


class OllamaProgress(msgspec.Struct, frozen=True, omit_defaults=True):
    status: str
    digest: str = ""
    total: int = 0
    completed: int | msgspec.UnsetType = msgspec.UNSET


DONE = OllamaProgress("success")


def progress_of(step: PullStep) -> OllamaProgress | None:
    match step:
        case PullStep(status="asking"):
            return OllamaProgress("pulling manifest")
        case PullStep(status="pulling", digest=str(digest)):
            shown = digest.removeprefix("sha256:")[:12]
            completed = step.completed or 0
            return OllamaProgress(f"pulling {shown}", digest, step.total or 0, completed)
        case PullStep(status="verifying"):
            return OllamaProgress("verifying sha256 digest")
        case PullStep(status="success"):
            return DONE
    return None


async def lines_of(running: RunningCall, renderer: Renderer) -> AsyncIterator[bytes]:
    async for item in AnswerStream(running.emit(renderer), renderer, running.request_log):
        if line := b"".join(chunk.json + b"\n" for chunk in chunks_of(item, renderer)):
            yield line


class JsonLines(StreamingResponse):
    """Response that ends with its client and owns the call, if any."""

    media_type = NDJSON

    def __init__(
        self,
        lines: AsyncIterator[bytes],
        headers: Mapping[str, str],
        call: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        super().__init__(lines, headers={**NO_STORE_HEADERS, **headers})
        self._call = call or nullcontext()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._call:
                await while_connected(receive, partial(self.stream_response, send))
        except (ClientDisconnect, OSError):
            request_log_of(scope).client_gone()
