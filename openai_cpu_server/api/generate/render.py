"""Answers of `/generate`: a text, its JSON if requested, and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, PromptProgress, TokenEvent
from openai_cpu_server.http.errors import ErrorBody, ErrorObject
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.tool_formats import Content, Part, ThinkingText

NO_JSON = msgspec.Raw(b"null")


class GenerateMetrics(msgspec.Struct, frozen=True, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    cached_tokens: int
    ttft_ms: float
    """Time from the call's arrival in the queue to its first token."""
    tokens_per_second: float
    queue_ms: float
    latency_ms: float

    @classmethod
    def of(cls, figures: Figures) -> GenerateMetrics:
        return cls(
            prompt_tokens=figures.prompt_tokens,
            completion_tokens=figures.output_tokens,
            total_tokens=figures.total_tokens,
            cached_tokens=figures.cached_tokens,
            ttft_ms=round(figures.queue_ms + figures.prefill_ms, 3),
            tokens_per_second=round(figures.tokens_per_second, 3),
            queue_ms=round(figures.queue_ms, 3),
            latency_ms=round(figures.latency_ms, 3),
        )


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    text: str
    structured_data: msgspec.Raw
    """Text as JSON, or null if not requested or cut."""
    reasoning: Union[str, UnsetType] = UNSET
    finish_reason: str
    ended_by: renderer.EndedBy = UNSET
    metrics: GenerateMetrics


class BatchedGeneration(msgspec.Struct, frozen=True, kw_only=True):
    """Result in a batch: an answer, or an error."""

    status: int
    error: Union[ErrorBody, None]
    id: Union[str, UnsetType] = UNSET
    model: Union[str, UnsetType] = UNSET
    text: Union[str, UnsetType] = UNSET
    structured_data: Union[msgspec.Raw, UnsetType] = UNSET
    reasoning: Union[str, UnsetType] = UNSET
    finish_reason: Union[str, UnsetType] = UNSET
    ended_by: renderer.EndedBy = UNSET
    metrics: Union[GenerateMetrics, UnsetType] = UNSET


class GeneratedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a batch, which `batch_bytes` writes."""

    results: list[BatchedGeneration]
    succeeded: int
    failed: int


def _generated(call: ResolvedRequest, text: str, finish: Finish, figures: Figures) -> Generated:
    return Generated(
        id=call.id,
        model=call.model,
        text=text,
        structured_data=_as_json(text) if call.details.as_json else NO_JSON,
        finish_reason=renderer.finish_reason(finish),
        ended_by=renderer.ended_by(finish),
        metrics=GenerateMetrics.of(figures),
    )


class GenerateRenderer:
    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        call, answer = gathered.call, gathered.only
        parts = answer.parts(call.reader())
        generated = _generated(call, renderer.content_of(parts), answer.ended, gathered.figures)
        return msgspec.json.encode(
            msgspec.structs.replace(generated, reasoning=renderer.reasoning_of(parts) or UNSET)
        )

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> GenerateStream:
        return GenerateStream(call)


class GenerateStream(renderer.Renderer):
    """Stream of texts. The last object has the metrics, and the whole text as JSON."""

    def __init__(self, call: ResolvedRequest) -> None:
        self._call = call
        self._reader = call.reader()
        self._texts: list[str] = []
        self._finish: Finish | None = None

    def event(self, event: TokenEvent) -> Sequence[renderer.Chunk]:
        parts = self._reader.read(event)
        if event.finish is not None:
            self._finish = event.finish
            renderer.finish_reason(event.finish)
        return [chunk for part in parts for chunk in self._shown(part)]

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[renderer.Chunk]:
        return (renderer.Chunk(b'{"text":"",%b}' % renderer.progress_field(progress, figures)),)

    def end(self, figures: Figures) -> Sequence[renderer.Chunk]:
        assert self._finish is not None, "all sequences have ended"
        last = _generated(self._call, "".join(self._texts), self._finish, figures)
        return (renderer.Chunk(msgspec.json.encode(msgspec.structs.replace(last, text=""))),)

    def _shown(self, part: Part) -> Sequence[renderer.Chunk]:
        if isinstance(part, ThinkingText):
            return (renderer.Chunk(b'{"text":"","reasoning":%b}' % renderer.json_text(part.text)),)
        if not isinstance(part, Content):
            return ()  # the request offers no tools
        if self._call.details.as_json:
            self._texts.append(part.text)
        return (renderer.Chunk(b'{"text":%b}' % renderer.json_text(part.text)),)


def batch_bytes(results: Sequence[bytes], num_failed: int) -> bytes:
    numbers = (len(results) - num_failed, num_failed)
    return b'{"results":[' + b",".join(results) + b'],"succeeded":%d,"failed":%d}' % numbers


def item_success(body: bytes) -> bytes:
    return b'{"status":200,"error":null,' + body[1:]


def item_failure(error: ErrorObject, status: int) -> bytes:
    return msgspec.json.encode(BatchedGeneration(status=status, error=error.error))


def _as_json(text: str) -> msgspec.Raw:
    """Pass on the model's own JSON, so that no number is rounded."""
    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return NO_JSON
