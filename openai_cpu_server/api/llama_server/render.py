from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import msgspec
from msgspec import UNSET, UnsetType

from openai_cpu_server.api.generation import renderer
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.sampling import CHAIN
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, FinishReason, PromptProgress, TokenEvent
from openai_cpu_server.contract.request import DryPenalty, GenerationRequest, Sampling
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.http.errors import ErrorObject, numbered
from openai_cpu_server.models.served import PieceTexts, finite_logprob

_ANY_SLOT = -1
"""Slot of all requests, without effect as `id_slot`."""


class TokenProbability(msgspec.Struct, frozen=True):
    id: int
    token: str
    bytes: tuple[int, ...]
    logprob: float


class TokenProbabilities(msgspec.Struct, frozen=True):
    id: int
    token: str
    bytes: tuple[int, ...]
    logprob: float
    """Value before any sampler."""
    top_logprobs: list[TokenProbability]


Probabilities = Union[list[TokenProbabilities], UnsetType]


class LlamaChunk(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    """Counts prompts, and answers to each."""
    content: str
    tokens: list[int]
    stop: bool = False
    id_slot: int = _ANY_SLOT
    tokens_predicted: int
    tokens_evaluated: int
    timings: Union[dict[str, float], UnsetType] = UNSET
    completion_probabilities: Probabilities = UNSET
    prompt_progress: Union[renderer.ProgressChunk, UnsetType] = UNSET


class LlamaCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to one prompt, or its last chunk without content. Several are a list."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = _ANY_SLOT
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    """True if the context has ended the answer."""
    stop_type: str
    """`eos`, `word` or `limit`."""
    ended_by: renderer.EndedBy = UNSET
    stopping_word: str
    tokens_cached: int
    """Prompt and answer, with which the next prompt may begin."""
    timings: dict[str, float]
    completion_probabilities: Probabilities = UNSET


def settings(
    sampling: Sampling,
    request: GenerationRequest | None = None,
    call: ResolvedRequest | None = None,
    *,
    most_tokens: int | None = None,
) -> dict[str, Any]:
    """Report unsupported settings as off. `most_tokens`: the usual limit."""
    dry = sampling.dry or DryPenalty(multiplier=0.0)
    if request is not None:
        most_tokens = request.max_tokens
    shown_limit = -1 if most_tokens is None else most_tokens
    return {
        "seed": sampling.seed,
        "temperature": sampling.temperature,
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_k": sampling.top_k or 0,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "top_n_sigma": sampling.top_n_sigma or -1.0,
        "xtc_probability": sampling.xtc_probability,
        "xtc_threshold": sampling.xtc_threshold,
        "typical_p": sampling.typical_p,
        "repeat_last_n": sampling.repeat_last_n,
        "repeat_penalty": sampling.repeat_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "dry_multiplier": dry.multiplier,
        "dry_base": dry.base,
        "dry_allowed_length": dry.allowed_length,
        "dry_penalty_last_n": -1 if dry.last_n is None else dry.last_n,
        "dry_sequence_breakers": dry.breakers,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "stop": () if request is None else request.stop,
        "max_tokens": shown_limit,
        "n_predict": shown_limit,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": sampling.ignore_eos,
        "stream": call is not None and call.stream,
        "logit_bias": [{"bias": bias, "token": token} for token, bias in sampling.logit_bias.items()],
        "n_probs": 0 if call is None else call.shown_logprobs or 0,
        "min_keep": 0,
        "samplers": CHAIN,
        "timings_per_token": call is not None and call.details.timings,
        "post_sampling_probs": False,
        "lora": [],
    }


class LlamaRenderer:
    def whole(self, gathered: renderer.GatheredCall) -> bytes:
        call, pieces, _, figures = gathered
        completions = [
            _completion(
                call,
                index,
                at,
                figures,
                answer.ended,
                has_new_line="\n" in answer.text,
                content=answer.text,
                tokens=answer.tokens if call.details.tokens else [],
                scores=UNSET if call.shown_logprobs is None else _probabilities(answer.logprobs, pieces),
            )
            for index, (at, answer) in enumerate(gathered.shown)
        ]
        return completions[0] if len(completions) == 1 else b"[" + b",".join(completions) + b"]"

    def stream(self, call: ResolvedRequest, pieces: PieceTexts) -> LlamaStream:
        return LlamaStream(call, pieces)


def _completion(
    call: ResolvedRequest,
    index: int,
    at: int,
    figures: Figures,
    finish: Finish,
    *,
    has_new_line: bool,
    content: str = "",
    tokens: list[int] | None = None,
    scores: Probabilities = UNSET,
) -> bytes:
    """`at`: place of the request in the call. Streams have sent the content, tokens and scores before."""
    request = call.requests[at]
    own = msgspec.structs.replace(
        figures,
        prompt_tokens=request.num_tokens,
        output_tokens=finish.output_tokens,
        cached_tokens=finish.cached_tokens,
    )
    end_type = "eos" if finish.stop_string is None else "word"
    answer = LlamaCompletion(
        index=index,
        content=content,
        tokens=tokens or [],
        model=call.model,
        tokens_predicted=finish.output_tokens,
        tokens_evaluated=request.num_tokens,
        generation_settings=settings(request.sampling, request, call),
        prompt=call.prompt_of(at).echo or "",
        has_new_line=has_new_line,
        truncated=finish.reason is FinishReason.LENGTH and call.context_ends_it and not finish.is_loop,
        stop_type="limit" if renderer.finish_reason(finish) == "length" else end_type,
        ended_by=renderer.ended_by(finish),
        stopping_word=finish.stop_string or "",
        tokens_cached=request.num_tokens + finish.output_tokens,
        timings=renderer.timings(own),
        completion_probabilities=scores,
    )
    return _chosen_fields(answer, call.details.fields)


def _probabilities(scores: Sequence[TokenLogprob], pieces: PieceTexts) -> list[TokenProbabilities]:
    def fields(token: int) -> tuple[int, str, tuple[int, ...]]:
        piece = pieces[token]
        return token, piece.text, piece.bytes or ()

    return [
        TokenProbabilities(
            *fields(one.token),
            finite_logprob(one.logprob),
            [TokenProbability(*fields(token), finite_logprob(logprob)) for token, logprob in one.top],
        )
        for one in scores
    ]


def _chosen_fields(answer: LlamaCompletion, paths: Sequence[str]) -> bytes:
    encoded = msgspec.json.encode(answer)
    if not paths:
        return encoded
    answered, found = msgspec.json.decode(encoded), {}
    for path in paths:
        value: object = answered
        for name in path.split("/"):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            found[path] = value
    return msgspec.json.encode(found)


class LlamaStream(renderer.Renderer):
    """Chunks, of which each answer's last has its settings."""

    def __init__(self, call: ResolvedRequest, pieces: PieceTexts) -> None:
        self._call = call
        self._pieces = pieces
        self._places = {request.id: at for at, request in enumerate(call.requests)}
        self._num_sent = dict.fromkeys(self._places, 0)
        self._with_new_line: set[str] = set()
        self._finishes: dict[str, Finish] = {}

    def event(self, event: TokenEvent) -> Sequence[renderer.Chunk]:
        self._num_sent[event.id] += len(event.tokens)
        if "\n" in event.text:
            self._with_new_line.add(event.id)
        if event.finish is not None:
            renderer.finish_reason(event.finish)
            self._finishes[event.id] = event.finish
        return (_line(self._chunk(event)),) if event.text or event.tokens else ()

    def prompt(self, request_id: str, progress: PromptProgress, figures: Figures) -> Sequence[renderer.Chunk]:
        chunk = self._chunk(TokenEvent(id=request_id))
        progress_chunk = renderer.ProgressChunk.of(progress, figures)
        return (_line(msgspec.structs.replace(chunk, prompt_progress=progress_chunk)),)

    def _chunk(self, event: TokenEvent) -> LlamaChunk:
        at = self._places[event.id]
        is_scored = self._call.shown_logprobs is not None and bool(event.tokens)
        return LlamaChunk(
            index=at,
            content=event.text,
            tokens=list(event.tokens),
            tokens_predicted=self._num_sent[event.id],
            tokens_evaluated=self._call.requests[at].num_tokens,
            timings=UNSET if self.so_far is None else renderer.timings(self.so_far),
            completion_probabilities=_probabilities(event.logprobs, self._pieces) if is_scored else UNSET,
        )

    def end(self, figures: Figures) -> Sequence[renderer.Chunk]:
        return [
            renderer.Chunk(
                renderer.escaped_line_ends(
                    _completion(
                        self._call,
                        at,
                        at,
                        figures,
                        self._finishes[request_id],
                        has_new_line=request_id in self._with_new_line,
                    )
                )
            )
            for request_id, at in self._places.items()
        ]

    def error(self, error: ErrorObject) -> Sequence[renderer.Chunk]:
        return (renderer.Chunk(msgspec.json.encode(numbered(error))),)


def _line(chunk: LlamaChunk) -> renderer.Chunk:
    return renderer.Chunk(renderer.escaped_line_ends(msgspec.json.encode(chunk)))
