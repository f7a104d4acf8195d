"""Calls and events for the tests of rendering."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import msgspec

from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.api.completions.render import CompletionRenderer
from openai_cpu_server.api.generation.call import CallThinking, Prompt, ResolvedRequest, ToolCallStyle
from openai_cpu_server.api.generation.renderer import GatheredAnswer, GatheredCall
from openai_cpu_server.api.generation.route import events
from openai_cpu_server.api.generation.running import Tally
from openai_cpu_server.api.messages.render import MessagesRenderer
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.engine.parts import OutputParts
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.tool_formats import Part
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
Renders = ChatRenderer | CompletionRenderer | MessagesRenderer


class ScriptedReader:
    """Reads each character as the part that a script has for it: an output with all kinds of parts."""

    is_cut = False
    has_calls = True

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = list(parts)

    def feed(self, text: str) -> list[Part]:
        return [self._parts.pop(0) for _ in text]

    def finish(self) -> list[Part]:
        return []


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


def told(of: ResolvedRequest, events: Iterable[TokenEvent]) -> list[list[TokenEvent]]:
    """Events of whole outputs, each as the engine tells it: one for each part of the output."""
    name = FakeTokenizer().piece
    parts = {one.id: OutputParts(one.marks, name) for one in of.requests if one.marks is not None}
    return [[*parts[event.id].cut(event)] if event.id in parts else [event] for event in events]


def streamed(renderer: Renders, of: ResolvedRequest, *steps: TokenEvent) -> list[str]:
    """What a stream says of each event."""
    stream = renderer.stream(of, PIECES)
    return [b"".join(events(stream.event(one)) for one in step).decode() for step in told(of, steps)]


def whole(renderer: Renders, of: ResolvedRequest, *steps: TokenEvent) -> bytes:
    answers = {request.id: GatheredAnswer() for request in of.requests}
    for event in chain.from_iterable(told(of, steps)):
        answers[event.id].add(event)
    finishes = {key: answer.finish for key, answer in answers.items() if answer.finish}
    return renderer.whole(GatheredCall(of, PIECES, answers, figures(of, finishes)))


def figures(of: ResolvedRequest, finishes: Mapping[str, Finish]) -> Figures:
    """What the call came to, if its requests have ended like this."""
    tally = Tally(of)
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
