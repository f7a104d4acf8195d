"""Parts that chat and text completions share: usage, finish reasons, the bytes of chunks."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.calls.call import Call
from openai_cpu_server.api.errors import ErrorObject
from openai_cpu_server.api.render.renderer import Chunk, Usage
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, Place, TokenEvent
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.prompt.tool_formats import Content, Part, Reasoning

_REASONS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "length"}

_ALPHABET = string.ascii_letters + string.digits
NewId = Callable[[], str]
Tier = Union[str, UnsetType]
Metadata = Union[dict[str, str], UnsetType]


class ChunkHead(msgspec.Struct, frozen=True, kw_only=True):
    """The fields that every chunk of a stream has alike."""

    id: str
    object: str
    created: int
    model: str
    service_tier: Tier = UNSET
    system_fingerprint: str


def new_tool_call_id() -> str:
    return "call_" + random_letters()


def random_letters() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(24))


def content_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Reasoning))


def service_tier(call: Call) -> Tier:
    return UNSET if call.service_tier is None else call.service_tier


def metadata(call: Call) -> Metadata:
    return UNSET if call.metadata is None else call.metadata


def timings(figures: Figures) -> dict[str, float]:
    """Where the time of a call went. Milliseconds and rates have three decimals."""
    return {
        "queue_ms": round(figures.queue_ms, 3),
        "prefill_ms": round(figures.prefill_ms, 3),
        "generation_ms": round(figures.generation_ms, 3),
        "latency_ms": round(figures.latency_ms, 3),
        "tokens_generated": figures.output_tokens,
        "tokens_per_second": round(figures.tokens_per_second, 3),
        "preemptions": figures.preemptions,
        "interruptions": figures.interruptions,
        "forced_tokens": figures.forced_tokens,
        "padded_tokens": figures.padded_tokens,
        "draft_n": figures.drafted_tokens,
        "draft_n_accepted": figures.accepted_tokens,
    }


def finish_reason(finish: Finish) -> str:
    """OpenAI's word for it. Raises GenerationFailed for an end that is nobody's result."""
    reason = _REASONS.get(finish.reason)
    if reason is None:
        raise GenerationFailed(finish.error or "The server ended the request before its end.")
    return reason


def cached_tokens(call: Call, finishes: Mapping[str, Finish]) -> int:
    """Prompt tokens that the call did not compute: of each prompt, what its first choice to run found.

    That one found the least, for the others shared what it computed.
    """
    found: dict[int, int] = {}
    for index, request in enumerate(call.requests):
        finish = finishes.get(request.id)
        if finish is not None:
            prompt = index // call.best_of
            found[prompt] = min(finish.cached_tokens, found.get(prompt, finish.cached_tokens))
    return sum(found.values())


def json_text(text: str) -> bytes:
    """A JSON string on one line."""
    return one_line(msgspec.json.encode(text))


def one_line(encoded: bytes) -> bytes:
    """Escapes line ends of Unicode in the strings of this JSON, for many clients split streams at them."""
    if encoded.isascii():
        return encoded
    return (
        encoded.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )


class ChoiceStream(Protocol):
    def choices(self, event: TokenEvent) -> list[bytes]:
        """What the event adds to one choice, as the elements of `choices`, one for each chunk."""
        ...


class QuietStream:
    """What a `Renderer` does whose stream says nothing but the answer and what it failed with."""

    last_words: bytes | None = None

    def begin(self) -> Sequence[Chunk]:
        return ()

    def waits(self, news: Place | ModelLoading) -> Sequence[Chunk]:
        return ()

    def silence(self) -> Sequence[Chunk]:
        return ()

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        return (Chunk(msgspec.json.encode(error), "error"),)


class ChunkStream(QuietStream):
    """A `Renderer` for the families whose chunks have `choices`; all that is alike is encoded once."""

    last_words = b"[DONE]"

    def __init__(self, call: Call, kind: str, choices: Mapping[str, ChoiceStream]) -> None:
        """`choices`: by the ids of their requests."""
        head = ChunkHead(
            id=call.id,
            object=kind,
            created=call.created,
            model=call.model,
            service_tier=service_tier(call),
            system_fingerprint=call.fingerprint,
        )
        self._open = msgspec.json.encode(head)[:-1] + b',"choices":['
        self._close = b'],"usage":null}' if call.include_usage else b"]}"
        self._has_usage = call.include_usage
        self._choices = choices

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        choices = self._choices[event.id].choices(event)
        return [Chunk(self._open + choice + self._close) for choice in choices]

    def end(self, figures: Figures) -> Sequence[Chunk]:
        """The one chunk without choices, where somebody wants it."""
        if not self._has_usage:
            return ()
        numbers = b'],"usage":' + msgspec.json.encode(Usage.of(figures))
        timed = b',"timings":' + msgspec.json.encode(timings(figures))
        return (Chunk(self._open + numbers + timed + b"}"),)
