"""Messages between the API process and the engine process: commands go in, events come out."""

from __future__ import annotations

import enum
from typing import Union

import msgspec

from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.contract.step import TokenLogprob


class EngineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """All that the engine process is told at its start."""

    model_path: str
    kv_tokens: int | None = None
    """Cells of the KV pool; None: what fits into half of the free memory, at most 16,384."""
    max_seqs: int = 64
    threads: int | None = None
    """None: one per physical core that this process may use."""
    kv_type: str = "f16"
    repack: bool | None = None
    """Repack weights at load for this CPU's kernels; None: what is faster for the model's quantisation."""
    step_tokens: int = 64
    """Tokens of a step at most while any sequence is decoding."""
    prefill_tokens: int = 256
    """Tokens of a step at most while none is."""


class Start(msgspec.Struct, frozen=True, tag="start"):
    options: EngineOptions


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request, with the tokens that it has produced already if this engine replaces one that died."""

    request: GenerationRequest
    output: tuple[int, ...] = ()


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    id: str


Command = Union[Start, Submit, Cancel]


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    """How a request ended, and what it came to."""

    reason: FinishReason
    output_tokens: int
    """Tokens sampled, those of an end token or a stop string included."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed, for another request had."""
    error: str | None = None


class TokenEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one request gained in a step. Text is released token by token, never half a token.

    `tokens` are those whose text is in `text`: what is held back (half a character, the beginning of a
    stop string) comes with a later event, or never.
    """

    id: str
    tokens: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()
    """One per token of `tokens`, when asked for."""
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: Finish | None = None
    """Set on the last event of a request, and only there."""


class Loading(msgspec.Struct, frozen=True, tag="loading"):
    fraction: float


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: ModelInfo


class StartFailed(msgspec.Struct, frozen=True, tag="start_failed"):
    message: str


class StepStarted(msgspec.Struct, frozen=True, tag="step_started"):
    """Who is in the step that now runs. Sent only when that has changed."""

    ids: tuple[str, ...]


class StepDone(msgspec.Struct, frozen=True, tag="step_done"):
    """All that one step brought, in one message."""

    events: tuple[TokenEvent, ...]
    kv_tokens_used: int
    """Cells of the pool that are taken, whole blocks counted."""


Event = Union[Loading, Ready, StartFailed, StepStarted, StepDone]
