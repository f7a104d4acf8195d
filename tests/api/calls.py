"""Requests, engine events and rendered bytes for the tests of rendering."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import msgspec

from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.api.completions.render import CompletionRenderer
from openai_cpu_server.api.generation.call import CallThinking, Prompt, ResolvedRequest, ToolCallStyle
from openai_cpu_server.api.generation.renderer import GatheredAnswer, GatheredCall
from openai_cpu_server.api.generation.route import events
from openai_cpu_server.api.generation.running import Tally
from openai_cpu_server.api.messages.render import MessagesRenderer
from openai_cpu_server.api.responses.items import PREFIXES
from openai_cpu_server.api.responses.objects import new_response
from openai_cpu_server.api.responses.schema import ResponsesBody
from openai_cpu_server.api.responses.stream import ResponseStream
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine.parts import OutputParts
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.served import PieceTexts
from tests.api.fake_tokenizer import FakeTokenizer

FIGURES = Figures(
    queue_ms=1.23456,
    prefill_ms=2.0,
    generation_ms=3.0,
    latency_ms=6.23456,
    output_tokens=2,
    tokens_per_second=800.0,
    preemptions=1,
    interruptions=2,
    forced_tokens=3,
    padded_tokens=30,
    drafted_tokens=8,
    accepted_tokens=6,
)
PIECES = PieceTexts(FakeTokenizer())
Renderer = ChatRenderer | CompletionRenderer | MessagesRenderer


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(byte + 2 for byte in text.encode())


def call(
    *prompts: Prompt,
    n: int = 1,
    best_of: int | None = None,
    logprobs: int | None = None,
    include_usage: bool = False,
    service_tier: str | None = None,
    metadata: dict[str, str] | None = None,
    tool_calls: ToolCallStyle | None = None,
    thinking: CallThinking | None = None,
) -> ResolvedRequest:
    prompts = prompts or (Prompt((0, *tokens_of("hi"))),)
    best_of = best_of or n
    requests = [
        GenerationRequest(
            id=f"c-{i}",
            tokens=p.tokens,
            max_tokens=9,
            sampling=Sampling(seed=0),
            marks=thinking.marks if thinking is not None else None,
        )
        for i, p in enumerate(p for p in prompts for _ in range(best_of))
    ]
    return ResolvedRequest(
        id="c",
        model="m",
        created=7,
        fingerprint="fp",
        prompts=prompts,
        requests=tuple(requests),
        n=n,
        best_of=best_of,
        priority=Priority.INTERACTIVE,
        include_usage=include_usage,
        shown_logprobs=logprobs,
        service_tier=service_tier,
        metadata=metadata,
        tool_calls=tool_calls,
        thinking=thinking,
    )


def engine_events(request: ResolvedRequest, events: Iterable[TokenEvent]) -> list[list[TokenEvent]]:
    """The engine's events for each event of whole outputs: one for each part of the output."""
    piece = FakeTokenizer().piece
    parts = {each.id: OutputParts(each.marks, piece) for each in request.requests if each.marks is not None}
    return [[*parts[event.id].cut(event)] if event.id in parts else [event] for event in events]


def streamed(renderer: Renderer, request: ResolvedRequest, *steps: TokenEvent) -> list[str]:
    """Bytes of the stream for each step."""
    stream = renderer.stream(request, PIECES)
    return [
        b"".join(events(stream.event(event)) for event in step).decode()
        for step in engine_events(request, steps)
    ]


def whole(renderer: Renderer, request: ResolvedRequest, *steps: TokenEvent) -> bytes:
    answers = {each.id: GatheredAnswer() for each in request.requests}
    for event in itertools.chain.from_iterable(engine_events(request, steps)):
        answers[event.id].add(event)
    finishes = {key: answer.finish for key, answer in answers.items() if answer.finish}
    return renderer.whole(GatheredCall(request, PIECES, answers, figures(request, finishes)))


def response_stream(
    request: ResolvedRequest,
    status: ResponseStatus = ResponseStatus.IN_PROGRESS,
    body: dict[str, object] | None = None,
) -> ResponseStream:
    numbers = itertools.count(1)
    return ResponseStream(
        request,
        PIECES,
        new_response(ResponsesBody.model_validate(body or {}), request, status, is_stored=True),
        now=lambda: 9.5,
        new_call_id=lambda: "call_1",
        new_item_id=lambda kind: f"{PREFIXES[kind]}{next(numbers)}",
    )


def figures(request: ResolvedRequest, finishes: Mapping[str, Finish]) -> Figures:
    """Figures of the request whose outputs have these finishes."""
    tally = Tally(request)
    for request_id, finish in finishes.items():
        tally.note(TokenEvent(id=request_id, finish=finish), 0.0)
    thought_tokens = sum(finish.thought_tokens for finish in finishes.values())
    return tally.figures(msgspec.structs.replace(FIGURES, thought_tokens=thought_tokens))


def text(index: int, words: str, *logprobs: TokenLogprob) -> TokenEvent:
    return TokenEvent(id=f"c-{index}", tokens=tokens_of(words), text=words, logprobs=logprobs)


def end(
    index: int,
    reason: FinishReason = FinishReason.STOP,
    *,
    output_tokens: int = 2,
    cached_tokens: int = 0,
    error: str | None = None,
) -> TokenEvent:
    finish = Finish(reason=reason, output_tokens=output_tokens, cached_tokens=cached_tokens, error=error)
    return TokenEvent(id=f"c-{index}", finish=finish)


def scored(letter: str, logprob: float, *top: tuple[str, float]) -> TokenLogprob:
    return TokenLogprob(ord(letter) + 2, logprob, tuple((ord(t) + 2, p) for t, p in top))


MINUS_INFINITY = -math.inf
