"""Rendering of answers for any transport: the protocol of renderers, and the fields that families share."""

from __future__ import annotations

import secrets
import string
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation.call import PartsReader, ResolvedRequest
from openai_cpu_server.contract import messages
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.request import OutputPart
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed
from openai_cpu_server.http.errors import ErrorObject
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.tool_formats import Content, Part, ThinkingText


@dataclass
class GatheredAnswer:
    """Output of one request, complete once `finish` is set."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    answer_start: int = 0
    """Number of tokens before the answer, known when complete."""
    finish: messages.Finish | None = None

    def add(self, event: messages.TokenEvent) -> None:
        (self.texts if event.part is OutputPart.ANSWER else self.thoughts).append(event.text)
        self.answer_start = event.answer_start or 0
        self.tokens.extend(event.tokens)
        self.logprobs.extend(event.logprobs)
        self.prompt_logprobs.extend(event.prompt_logprobs)
        self.finish = event.finish

    @property
    def ended(self) -> messages.Finish:
        assert self.finish is not None, "an answer is rendered after its end"
        return self.finish

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def parts(self, reader: PartsReader) -> list[Part]:
        return reader.read_texts("".join(self.thoughts), self.text)

    @property
    def score(self) -> float:
        scores = [entry.logprob for entry in self.logprobs]
        return sum(scores) / len(scores) if scores else float("-inf")


class GatheredCall(NamedTuple):
    """Call that has ended, with its answers by request id."""

    call: ResolvedRequest
    pieces: PieceTexts
    answers: Mapping[str, GatheredAnswer]
    figures: Figures

    @property
    def shown(self) -> list[tuple[int, GatheredAnswer]]:
        """The best `n` answers of each prompt, with their requests' indices."""
        call, ranked = self.call, list[tuple[int, GatheredAnswer]]()
        for start in range(0, len(call.requests), call.best_of):
            group = [(i, self.answers[call.requests[i].id]) for i in range(start, start + call.best_of)]
            if call.best_of > call.n:
                group.sort(key=lambda pair: -pair[1].score)
            ranked += group[: call.n]
        return ranked

    @property
    def only(self) -> GatheredAnswer:
        """Answer of a call with a single request."""
        (answer,) = self.answers.values()
        return answer


class Chunk(NamedTuple):
    """Piece of a streamed answer, framed by an event stream or a WebSocket."""

    json: bytes
    event: str | None = None


def events(chunks: Sequence[Chunk]) -> bytes:
    """Encode chunks as server-sent events."""
    return b"".join(
        b"data: %b\n\n" % json if event is None else b"event: %b\ndata: %b\n\n" % (event.encode(), json)
        for json, event in chunks
    )


class Renderer(ABC):
    """Renderer of one streamed answer. Methods return the chunks to send next."""

    so_far: Figures | None = None
    """Figures so far, set before each event if `DetailsParam.timings` is set."""
    done_marker: bytes | None = None
    """Last message of a successful event stream, such as `[DONE]`, or None."""

    def begin(self) -> Sequence[Chunk]:
        return ()

    def waiting(self, news: messages.QueuePlace | messages.ModelLoading) -> Sequence[Chunk]:
        """Report a queue place or a loading model. Without chunks a comment is sent."""
        return ()

    def keepalive(self) -> Sequence[Chunk]:
        """Keep an idle connection alive. Without chunks a comment is sent."""
        return ()

    def prompt(self, request_id: str, progress: messages.PromptProgress, figures: Figures) -> Sequence[Chunk]:
        """Report progress, with `DetailsParam.progress`. Without chunks a wait goes to `waiting`."""
        return ()

    @abstractmethod
    def event(self, event: messages.TokenEvent) -> Sequence[Chunk]:
        """Render one event. Raises GenerationFailed for an end without a result."""

    @abstractmethod
    def end(self, figures: Figures) -> Sequence[Chunk]: ...

    def error(self, error: ErrorObject) -> Sequence[Chunk]:
        return (Chunk(msgspec.json.encode(error), "error"),)


class AnswerRenderer(Protocol):
    def whole(self, gathered: GatheredCall) -> bytes: ...

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> Renderer: ...


_REASONS = {messages.FinishReason.STOP: "stop", messages.FinishReason.LENGTH: "length"}
_ALPHABET = string.ascii_letters + string.digits
NewId = Callable[[], str]


def new_tool_call_id() -> str:
    return "call_" + random_letters()


def random_letters() -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(24))


def content_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, Content))


def reasoning_of(parts: Sequence[Part]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ThinkingText))


def timings(figures: Figures) -> dict[str, float]:
    """Return llama-server's times, and ours behind them."""
    computed = figures.prompt_tokens - figures.cached_tokens
    num_after_first = max(figures.output_tokens - 1, 0)  # the time of the first token is its prompt's
    phases = (
        ("prompt", computed, computed, figures.prefill_ms),
        ("predicted", figures.output_tokens, num_after_first, figures.generation_ms),
    )
    numbers: dict[str, float] = {"cache_n": figures.cached_tokens}
    for name, count, num_timed, taken_ms in phases:
        numbers[f"{name}_n"] = count
        numbers[f"{name}_ms"] = round(taken_ms, 3)
        numbers[f"{name}_per_token_ms"] = round(taken_ms / num_timed, 3) if num_timed else 0.0
        numbers[f"{name}_per_second"] = round(1000 * num_timed / taken_ms, 3) if taken_ms else 0.0
    for name in ("queue_ms", "prefill_ms", "generation_ms", "latency_ms"):
        numbers[name] = round(getattr(figures, name), 3)
    return {
        **numbers,
        "tokens_generated": figures.output_tokens,
        "tokens_per_second": round(figures.tokens_per_second, 3),
        "preemptions": figures.preemptions,
        "interruptions": figures.interruptions,
        "forced_tokens": figures.forced_tokens,
        "padded_tokens": figures.padded_tokens,
        "draft_n": figures.drafted_tokens,
        "draft_n_accepted": figures.accepted_tokens,
    }


class ProgressChunk(msgspec.Struct, frozen=True):
    """llama-server's `prompt_progress`, with two further fields at the end."""

    total: int
    cache: int
    processed: int
    time_ms: int
    place: int | None
    """Place in the queue from 1, or None during prefill."""
    seconds_left: float | None

    @classmethod
    def of(cls, progress: messages.PromptProgress, figures: Figures) -> ProgressChunk:
        return cls(
            total=progress.total,
            cache=progress.cached,
            processed=progress.processed,
            time_ms=round(figures.prefill_ms),
            place=progress.place,
            seconds_left=None if progress.left_ms is None else round(progress.left_ms / 1000, 2),
        )


def progress_field(progress: messages.PromptProgress, figures: Figures) -> bytes:
    return b'"prompt_progress":' + msgspec.json.encode(ProgressChunk.of(progress, figures))


ENDED_BY = "x-ended-by"
REPETITION = "repetition"
EndedBy = Union[str, UnsetType]
"""Reason of an end that is called `length` although no limit was reached."""


def ended_by(finish: messages.Finish) -> EndedBy:
    return REPETITION if finish.is_loop else UNSET


def finish_reason(finish: messages.Finish) -> str:
    """Return OpenAI's finish reason. Raises GenerationFailed for an end without a result."""
    reason = _REASONS.get(finish.reason)
    if reason is None:
        raise GenerationFailed(finish.error or "The server ended the request before its end.")
    return reason


def json_text(text: str) -> bytes:
    return escaped_line_ends(msgspec.json.encode(text))


def escaped_line_ends(encoded: bytes) -> bytes:
    """Escape line ends of Unicode, at which many clients split streams."""
    if encoded.isascii():
        return encoded
    return (
        encoded.replace(b"\xc2\x85", b"\\u0085")
        .replace(b"\xe2\x80\xa8", b"\\u2028")
        .replace(b"\xe2\x80\xa9", b"\\u2029")
    )
