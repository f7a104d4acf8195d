"""Completion objects, whole and in chunks, as chat and text completions share them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.renderer import Chunk, GatheredCall, Renderer, progress_field, timings
from openai_cpu_server.contract import messages
from openai_cpu_server.contract.figures import Figures


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    image_tokens: int | UnsetType = UNSET
    audio_tokens: int | UnsetType = UNSET
    audio_seconds: float | UnsetType = UNSET


class CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails = CompletionDetails()

    @classmethod
    def of(cls, figures: Figures) -> Usage:
        return cls(
            prompt_tokens=figures.prompt_tokens,
            completion_tokens=figures.output_tokens,
            total_tokens=figures.total_tokens,
            prompt_tokens_details=PromptDetails(
                figures.cached_tokens,
                figures.image_tokens or UNSET,
                figures.audio_tokens or UNSET,
                round(figures.audio_s, 3) or UNSET,
            ),
            completion_tokens_details=CompletionDetails(figures.thought_tokens),
        )


C = TypeVar("C", bound=msgspec.Struct)


class Completion(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    id: str
    object: str = ""
    created: int
    model: str
    choices: list[C]
    usage: Usage
    timings: dict[str, float]
    service_tier: Union[str, UnsetType] = UNSET
    system_fingerprint: str
    metadata: Union[dict[str, str], UnsetType] = UNSET


def completion(kind: type[Completion[C]], gathered: GatheredCall, choices: list[C]) -> bytes:
    call, figures = gathered.call, gathered.figures
    whole = kind(
        id=call.id,
        created=call.created,
        model=call.model,
        choices=choices,
        usage=Usage.of(figures),
        timings=timings(figures),
        service_tier=UNSET if call.service_tier is None else call.service_tier,
        system_fingerprint=call.fingerprint,
        metadata=UNSET if call.metadata is None else call.metadata,
    )
    return msgspec.json.encode(whole)


ChoiceStream = Callable[[messages.TokenEvent], list[bytes]]
"""Render an event as elements of `choices`, one for each chunk."""


class ChunkStream(Renderer):
    done_marker = b"[DONE]"

    def __init__(
        self, call: ResolvedRequest, kind: str, choices: Mapping[str, ChoiceStream], *, empty: bytes
    ) -> None:
        """`choices`: by request id. `empty`: empty choice, with a `%d` for its index."""
        head = {
            "id": call.id,
            "object": kind,
            "created": call.created,
            "model": call.model,
            **({} if call.service_tier is None else {"service_tier": call.service_tier}),
            "system_fingerprint": call.fingerprint,
        }
        self._open = msgspec.json.encode(head)[:-1] + b',"choices":['
        self._close = b'],"usage":null}' if call.include_usage else b"]}"
        self._empty = empty
        self._has_usage = call.include_usage
        self._choices = choices

    def event(self, event: messages.TokenEvent) -> Sequence[Chunk]:
        choices = self._choices[event.id](event)
        chunks = [Chunk(self._open + choice + self._close) for choice in choices]
        return [*chunks[:-1], self._timed(chunks[-1])] if chunks and event.tokens else chunks

    def _timed(self, chunk: Chunk) -> Chunk:
        if self.so_far is None:
            return chunk
        return Chunk(b'%b,"timings":%b}' % (chunk.json[:-1], msgspec.json.encode(timings(self.so_far))))

    def prompt(self, request_id: str, progress: messages.PromptProgress, figures: Figures) -> Sequence[Chunk]:
        choice = self._empty % [*self._choices].index(request_id)
        field = progress_field(progress, figures)
        return (self._timed(Chunk(b"%b%b%b,%b}" % (self._open, choice, self._close[:-1], field))),)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        if not self._has_usage:
            return ()
        usage, times = msgspec.json.encode(Usage.of(figures)), msgspec.json.encode(timings(figures))
        return (Chunk(b'%b],"usage":%b,"timings":%b}' % (self._open, usage, times)),)
