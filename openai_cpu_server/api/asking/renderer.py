"""How a family tells its answers, whatever these travel in, and what several families tell alike."""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.asking.call import Call, PartsReader
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import (
    Finish,
    FinishReason,
    ModelLoading,
    PromptProgress,
    QueuePlace,
    TokenEvent,
)
from openai_cpu_server.contract.request import OutputPart
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.http.errors import ErrorObject
from openai_cpu_server.models.served import ShownPieces, finite
from openai_cpu_server.prompt.tool_formats import Content, Part, ThinkingText


@dataclass
class GatheredAnswer:
    """All that one request brought. It is complete when `finish` is there."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    """What was thought before the texts."""
    tokens: list[int] = field(default_factory=list)
    """Those whose text is out."""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    answer_start: int = 0
    """How many of its tokens belong to no answer; known when it is complete."""
    finish: Finish | None = None

    def add(self, event: TokenEvent) -> None:
        (self.texts if event.part is OutputPart.ANSWER else self.thoughts).append(event.text)
        self.answer_start = event.answer_start or 0
        self.tokens.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.prompt_logprobs.extend(event.prompt_logprobs)
        self.finish = event.finish

    @property
    def ended(self) -> Finish:
        assert self.finish is not None, "an answer is rendered after its end"
        return self.finish

    @property
    def text(self) -> str:
        """All but the thoughts."""
        return "".join(self.texts)

    def parts(self, reader: PartsReader) -> list[Part]:
        return reader.read_texts("".join(self.thoughts), self.text)

    @property
    def score(self) -> float:
        """The mean log-probability of the tokens shown; an answer without tokens is the worst."""
        if not self.logprobs:
            return float("-inf")
        return sum(entry.logprob for entry in self.logprobs) / len(self.logprobs)


def shown(call: Call, answers: Mapping[str, GatheredAnswer]) -> list[tuple[int, GatheredAnswer]]:
    """The answers to show, as (index of the request, answer), the best `n` of each prompt, best first."""
    ranked: list[tuple[int, GatheredAnswer]] = []
    for start in range(0, len(call.requests), call.best_of):
        group = [(i, answers[call.requests[i].id]) for i in range(start, start + call.best_of)]
        if call.best_of > call.n:
            group.sort(key=lambda pair: -pair[1].score)
        ranked += group[: call.n]
    return ranked


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    image_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Those of pictures, where there are any."""
    audio_tokens: int | msgspec.UnsetType = msgspec.UNSET
    """Those of sounds, likewise."""
    audio_seconds: float | msgspec.UnsetType = msgspec.UNSET
    """How long these take."""

    @classmethod
    def of(cls, figures: Figures) -> PromptDetails:
        image_tokens, audio_tokens = figures.image_tokens or UNSET, figures.audio_tokens or UNSET
        return cls(figures.cached_tokens, image_tokens, audio_tokens, round(figures.audio_s, 3) or UNSET)


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
            prompt_tokens_details=PromptDetails.of(figures),
            completion_tokens_details=CompletionDetails(figures.thought_tokens),
        )


class Chunk(NamedTuple):
    """A piece of a streamed answer. An event stream and a WebSocket frame it, each in its way."""

    json: bytes
    """One object, without line ends."""
    event: str | None = None
    """The event's name, in APIs whose events have names."""


def events(chunks: Sequence[Chunk]) -> bytes:
    """Server-sent events, each with its name, if it has one."""
    return b"".join(map(_event, chunks))


def _event(chunk: Chunk) -> bytes:
    if chunk.event is None:
        return b"data: %b\n\n" % chunk.json
    return b"event: %b\ndata: %b\n\n" % (chunk.event.encode(), chunk.json)


class Renderer(ABC):
    """Tells one answer as it comes. All methods return what is to be sent next, often nothing: this one says
    nothing but the answer, and what it failed with."""

    so_far: Figures | None = None
    """What the call came to; set before each event where `AskedDetails.timings` asks for it."""
    last_words: bytes | None = None
    """What an event stream says when all went well (`[DONE]`); None: nothing."""

    def begin(self) -> Sequence[Chunk]:
        """The call was submitted."""
        return ()

    def waits(self, news: QueuePlace | ModelLoading) -> Sequence[Chunk]:
        """The call has a place in the queue, or waits for its model. Nothing: a comment says so instead."""
        return ()

    def silence(self) -> Sequence[Chunk]:
        """Nothing was said for a while. Nothing: a comment shows that the server lives."""
        return ()

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """So much of a prompt is computed, or it waits. Only where `AskedDetails.progress` asks for it.
        Nothing: it is told as all others are."""
        return ()

    @abstractmethod
    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        """Raises GenerationFailed for an end that is nobody's result."""

    @abstractmethod
    def end(self, figures: Figures) -> Sequence[Chunk]:
        """All sequences have ended well."""

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        """The call has failed; nothing follows."""
        return (Chunk(msgspec.json.encode(error), "error"),)


class AnswerRenderer(Protocol):
    """Makes the answers of one family, from `Call`s that it has resolved."""

    def whole(
        self, call: Call, pieces: ShownPieces, answers: Mapping[str, GatheredAnswer], figures: Figures
    ) -> bytes:
        """The body of a response that is not streamed. It runs in any thread."""
        ...

    def stream(self, call: Call, pieces: ShownPieces) -> Renderer: ...


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


C = TypeVar("C", bound=msgspec.Struct)


class Completion(msgspec.Struct, Generic[C], frozen=True, kw_only=True):
    """An answer with choices."""

    id: str
    object: str = ""
    """Each kind has its own."""
    created: int
    model: str
    choices: list[C]
    usage: Usage
    timings: dict[str, float]
    service_tier: Tier = UNSET
    system_fingerprint: str
    metadata: Metadata = UNSET


def completion(kind: type[Completion[C]], call: Call, choices: list[C], figures: Figures) -> bytes:
    whole = kind(
        id=call.id,
        created=call.created,
        model=call.model,
        choices=choices,
        usage=Usage.of(figures),
        timings=timings(figures),
        service_tier=service_tier(call),
        system_fingerprint=call.fingerprint,
        metadata=UNSET if call.metadata is None else call.metadata,
    )
    return msgspec.json.encode(whole)


def new_tool_call_id() -> str:
    return "call_" + random_letters()


def random_letters() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(24))


def content_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ThinkingText))


def service_tier(call: Call) -> Tier:
    return UNSET if call.service_tier is None else call.service_tier


def timings(figures: Figures) -> dict[str, float]:
    """Where the time of a call went. Milliseconds and rates have three decimals."""
    milliseconds = ("queue_ms", "prefill_ms", "generation_ms", "latency_ms")
    return {
        **_of_llama_server(figures),
        **{name: round(getattr(figures, name), 3) for name in milliseconds},
        "tokens_generated": figures.output_tokens,
        "tokens_per_second": round(figures.tokens_per_second, 3),
        "preemptions": figures.preemptions,
        "interruptions": figures.interruptions,
        "forced_tokens": figures.forced_tokens,
        "padded_tokens": figures.padded_tokens,
        "draft_n": figures.drafted_tokens,
        "draft_n_accepted": figures.accepted_tokens,
    }


class ToldProgress(msgspec.Struct, frozen=True):
    """How far a prompt is: llama-server's `prompt_progress`, with two fields of ours behind."""

    total: int
    cache: int
    processed: int
    time_ms: int
    """For so long it has been read."""
    place: int | None
    """In the queue, 1 is next; None: it is being read."""
    seconds_left: float | None
    """An estimate of the time to its first token."""

    @classmethod
    def of(cls, progress: PromptProgress, figures: Figures) -> ToldProgress:
        return cls(
            total=progress.total,
            cache=progress.cached,
            processed=progress.processed,
            time_ms=round(figures.prefill_ms),
            place=progress.place,
            seconds_left=None if progress.left_ms is None else round(progress.left_ms / 1000, 2),
        )


def progress_field(progress: PromptProgress, figures: Figures) -> bytes:
    """As a member of an object."""
    return b'"prompt_progress":' + msgspec.json.encode(ToldProgress.of(progress, figures))


def _of_llama_server(figures: Figures) -> dict[str, float]:
    """The names that its clients read."""
    computed = figures.prompt_tokens - figures.cached_tokens
    behind_first = max(figures.output_tokens - 1, 0)  # the time of the first token is its prompt's
    parts = (
        ("prompt", computed, computed, figures.prefill_ms),
        ("predicted", figures.output_tokens, behind_first, figures.generation_ms),
    )
    told: dict[str, float] = {"cache_n": figures.cached_tokens}
    for name, count, timed, taken_ms in parts:
        told[f"{name}_n"] = count
        told[f"{name}_ms"] = round(taken_ms, 3)
        told[f"{name}_per_token_ms"] = round(taken_ms / timed, 3) if timed else 0.0
        told[f"{name}_per_second"] = round(1000 * timed / taken_ms, 3) if taken_ms else 0.0
    return told


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


ChoiceStream = Callable[[TokenEvent], list[bytes]]
"""What an event adds to one choice, as the elements of `choices`, one for each chunk."""


class ChunkStream(Renderer):
    """For the families whose chunks have `choices`; all that is alike is encoded once."""

    last_words = b"[DONE]"

    def __init__(self, call: Call, kind: str, choices: Mapping[str, ChoiceStream], *, empty: bytes) -> None:
        """`choices`: by the ids of their requests. `empty`: one that says nothing, with a `%d` for its
        index."""
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
        self._empty = empty
        self._has_usage = call.include_usage
        self._choices = choices

    def event(self, event: TokenEvent) -> Sequence[Chunk]:
        choices = self._choices[event.id](event)
        chunks = [Chunk(self._open + choice + self._close) for choice in choices]
        return [*chunks[:-1], self._timed(chunks[-1])] if chunks and event.tokens else chunks

    def _timed(self, chunk: Chunk) -> Chunk:
        if self.so_far is None:
            return chunk
        return Chunk(b'%b,"timings":%b}' % (chunk.json[:-1], msgspec.json.encode(timings(self.so_far))))

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[Chunk]:
        told = progress_field(progress, figures)
        choice = self._empty % [*self._choices].index(request_id)
        chunk = Chunk(b"%b%b%b,%b}" % (self._open, choice, self._close[:-1], told))
        return (self._timed(chunk),)

    def end(self, figures: Figures) -> Sequence[Chunk]:
        """The one chunk without choices, where somebody wants it."""
        if not self._has_usage:
            return ()
        numbers = b'],"usage":' + msgspec.json.encode(Usage.of(figures))
        timed = b',"timings":' + msgspec.json.encode(timings(figures))
        return (Chunk(self._open + numbers + timed + b"}"),)


class TopToken(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None


class TokenEntry(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: tuple[int, ...] | None
    top_logprobs: list[TopToken]


class ContentScores:
    """Log-probabilities of one output's answer alone, as `logprobs.content` has them, and not of thoughts or
    their marks. What may still be one is held back, and the rest until its text is told."""

    def __init__(self) -> None:
        self._num_heard = 0
        self._held: list[TokenLogprob] = []
        self._known: list[TokenLogprob] = []

    def hear(self, event: TokenEvent) -> None:
        self._num_heard += len(event.logprobs)
        self._held += event.logprobs
        if event.answer_start is not None:
            first = max(0, event.answer_start - self._num_heard + len(self._held))
            self._known += self._held[first:]
            self._held = []

    def take(self) -> list[TokenLogprob]:
        """Those of the answer that are known and were not taken yet."""
        known, self._known = self._known, []
        return known


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[TokenEntry]
    refusal: None = None


def chat_logprobs(entries: Sequence[TokenLogprob], pieces: ShownPieces) -> ChatLogprobs:
    return ChatLogprobs([_entry(entry, pieces) for entry in entries])


def _entry(entry: TokenLogprob, pieces: ShownPieces) -> TokenEntry:
    piece = pieces[entry.token]
    others = [(pieces[token], finite(logprob)) for token, logprob in entry.top]
    top = [TopToken(other.text, logprob, other.bytes) for other, logprob in others]
    return TokenEntry(piece.text, finite(entry.logprob), piece.bytes, top)
