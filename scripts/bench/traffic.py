"""Requests, traces of answers, and failures. Times are seconds of `time.perf_counter`."""

from __future__ import annotations

import enum
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec


class Failed(Exception):
    """Failure of a measurement, described by its message."""


def described(error: Exception) -> str:
    """Add the place in the code only for unforeseen failures."""
    if isinstance(error, Failed):
        return str(error) or type(error).__name__
    text = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{text} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else text


class Priority(enum.Enum):
    """Values of `X-Priority`, which other servers ignore."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


JsonSchema = dict[str, object]
Message = dict[str, object]


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Streamed completion of exactly `max_tokens` tokens. An answer with a schema ends when complete, and a
    chat's (`messages`) when the model ends it."""

    prompt: tuple[int, ...] = ()
    max_tokens: int
    seed: int = 0
    temperature: float = 0.8
    """0 is greedy."""
    priority: Priority | None = None
    logprobs: int | None = None
    """Alternatives for each token, or None for no log-probabilities."""
    schema: JsonSchema | None = None
    messages: tuple[Message, ...] = ()
    model: str | None = None
    """Name, or None for the server's first."""

    @property
    def ends_itself(self) -> bool:
        """True if `max_tokens` is only the limit."""
        return self.schema is not None or bool(self.messages)

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.messages else "/v1/completions"


class PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int = 0


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


class Timings(msgspec.Struct, frozen=True):
    preemptions: int = 0
    interruptions: int = 0
    forced_tokens: int = 0
    draft_n: int = 0
    draft_n_accepted: int = 0


class ScoredToken(msgspec.Struct, frozen=True):
    text: str
    logprob: float
    top: dict[str, float]


@dataclass(eq=False)
class Trace:
    """Request as its client sees it, filled in while the answer streams."""

    request: BenchRequest
    arrival: float
    """Due time, because a late client must not make a server look faster."""
    chunk_times: list[float] = field(default_factory=list)
    """Times of chunks with content, unlike one that only names the role."""
    text: str = ""
    scored: list[ScoredToken] = field(default_factory=list)
    usage: Usage | None = None
    timings: Timings = field(default_factory=Timings)
    finish_reason: str | None = None
    error: str | None = None
    end: float | None = None
    """Time of the complete answer, or None."""

    @property
    def is_complete(self) -> bool:
        return self.end is not None and self.error is None

    @property
    def output_tokens(self) -> int:
        return self.usage.completion_tokens if self.usage else len(self.chunk_times)

    @property
    def ttft_s(self) -> float | None:
        return self.chunk_times[0] - self.arrival if self.chunk_times else None

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in zip(self.chunk_times, self.chunk_times[1:], strict=False)]

    def computed_tokens(self, begin: float, end: float) -> float:
        """Return prompt and output tokens within begin <= t < end; the prompt counts at the first token.
        Because some chunks carry two tokens, a chunk is its equal share of the output once the usage is
        known."""
        prompt = len(self.request.prompt) if self.chunk_times and begin <= self.chunk_times[0] < end else 0
        return prompt + self.output_within(begin, end)

    def output_within(self, begin: float, end: float) -> float:
        """Return output tokens, counted as in `computed_tokens`."""
        within = sum(begin <= t < end for t in self.chunk_times)
        tokens_per_chunk = self.output_tokens / len(self.chunk_times) if self.chunk_times else 0.0
        return within * tokens_per_chunk


def first_token_times(traces: Sequence[Trace]) -> list[float]:
    return [trace.ttft_s for trace in traces if trace.ttft_s is not None]


_SAMPLING = {"top_p": 0.95, "top_k": 40, "min_p": 0.0, "repeat_penalty": 1.0}
"""Sent to all servers, so that all sample from the same tokens."""


@dataclass(frozen=True)
class Dialect:
    """Differences between the servers' versions of OpenAI's API."""

    as_text: Callable[[tuple[int, ...]], str] | None = None
    """Converts a prompt to text of about its length, or None to send token ids."""
    has_json_schema: bool = False
    """True if text completions take `json_schema` instead of `response_format`."""
    takes_seed: bool = True
    """False for vLLM 0.32, which ends when two requests with seeds run at once."""

    def body(self, request: BenchRequest) -> dict[str, object]:
        body: dict[str, object] = {
            "max_tokens": request.max_tokens,
            "temperature": request.temperature,
            "stream": True,
            "stream_options": {"include_usage": True},
            **_SAMPLING,
        }
        if self.takes_seed:
            body["seed"] = request.seed
        if request.model is not None:
            body["model"] = request.model
        if request.logprobs is not None:
            body["logprobs"] = request.logprobs
        if request.messages:
            body["messages"] = request.messages
        else:
            body["prompt"] = self.as_text(request.prompt) if self.as_text else request.prompt
        if not request.ends_itself:
            body["ignore_eos"] = True
        if request.schema is not None and self.has_json_schema:
            body["json_schema"] = request.schema
        elif request.schema is not None:
            schema = {"name": "answer", "strict": True, "schema": request.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body


OURS = Dialect()
