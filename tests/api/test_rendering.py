"""Answers of each API family, event by event and whole, compared with the records in `rendered/`.

`pytest --inline-snapshot=fix tests/api/test_rendering.py` updates the records.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from inline_snapshot import external_file

from openai_cpu_server.api.chat.render import ChatRenderer
from openai_cpu_server.api.completions.render import CompletionRenderer, LegacyWriter
from openai_cpu_server.api.generation.call import CallThinking, Prompt, ResolvedRequest, ToolCallStyle
from openai_cpu_server.api.generation.generation import judged
from openai_cpu_server.api.generation.renderer import Chunk, Renderer, new_tool_call_id
from openai_cpu_server.api.generation.route import events
from openai_cpu_server.api.generation.running import TimedEvent
from openai_cpu_server.api.messages.render import MessagesRenderer, new_tool_use_id
from openai_cpu_server.contract.messages import Finish, FinishReason, ModelLoading, QueuePlace, TokenEvent
from openai_cpu_server.contract.step import TokenLogprob
from openai_cpu_server.errors import GenerationFailed, InvalidRequest
from openai_cpu_server.http.errors import ErrorBody, ErrorObject
from openai_cpu_server.jobs.records import ResponseStatus
from openai_cpu_server.models.served import PieceTexts
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, ThinkingStage
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api import calls
from tests.api.calls import MINUS_INFINITY, PIECES, call, end, engine_events, figures, scored, text, tokens_of
from tests.api.fake_tokenizer import FakeTokenizer

HERMES = ToolCallStyle(TOOL_FORMATS["hermes"], "tool_calls")
NAMED = ToolCallStyle(TOOL_FORMATS["hermes"], "stop")
LEGACY = ToolCallStyle(TOOL_FORMATS["demo"], "function_call", is_legacy=True)
ONE_CALL = '<tool_call>\n{"name":"f","arguments":{"a":"é\\"\u2028"}}\n</tool_call>'
TWO_CALLS = ONE_CALL + '\n<tool_call>\n{"name":"g","arguments":{}}\n</tool_call>'
WITHIN = CallThinking(REASONING_FORMATS["think"], ThinkingStage.WITHIN)
ECHOED = Prompt((0, *tokens_of("hi")), "hi")
SPACED = Prompt((0, *tokens_of(" hi")), "hi")
"""The tokenizer adds a space in front, as SPM does."""

CHAT, COMPLETIONS, MESSAGES, RESPONSES = FAMILIES = ("chat", "completions", "messages", "responses")
DIALOGS = (CHAT, MESSAGES, RESPONSES)
WAITING = (MESSAGES, RESPONSES)
OBJECT = {"type": "object"}
WITH_CHOICES = (CHAT, COMPLETIONS)


class Scenario(NamedTuple):
    call: ResolvedRequest
    steps: tuple[TokenEvent | str, ...]
    families: tuple[str, ...] = FAMILIES
    body: dict[str, object] | None = None
    """Body of a response's request; a response with `background` begins as queued."""


def texts(*pieces: str, reason: FinishReason = FinishReason.STOP) -> tuple[TokenEvent, ...]:
    return (*(text(0, piece) for piece in pieces), end(0, reason))


def stopped(stop_string: str) -> TokenEvent:
    finish = Finish(reason=FinishReason.STOP, output_tokens=2, stop_string=stop_string)
    return TokenEvent(id="c-0", finish=finish)


def prompt_scores(letters: str, *values: float) -> TokenEvent:
    return TokenEvent(id="c-0", prompt_logprobs=tuple(map(scored, letters, values)))


NEWS: dict[str, Callable[[Renderer], Sequence[Chunk]]] = {
    "waits": lambda stream: stream.waiting(QueuePlace("c-0", 3, 100.0)),
    "loads": lambda stream: stream.waiting(ModelLoading(0.5)),
    "lives": lambda stream: stream.keepalive(),
    "fails": lambda stream: stream.error(ErrorObject(ErrorBody("Oh.", "server_error", None, "broken"))),
}
SCENARIOS = {
    "text": Scenario(
        call(service_tier="flex", metadata={"k": "v"}),
        (text(0, "he"), text(0, 'l"o\u2028é'), end(0, output_tokens=5, cached_tokens=2)),
    ),
    "one event": Scenario(
        call(), (msgspec.structs.replace(end(0, FinishReason.LENGTH), text="a", tokens=tokens_of("a")),)
    ),
    "no text": Scenario(call(), (end(0),)),
    "usage in a chunk of its own": Scenario(call(include_usage=True), texts("a"), WITH_CHOICES),
    "choices that begin and end on their own, one prompt for all": Scenario(
        call(n=2),
        (text(1, "b"), text(0, "a"), end(1, cached_tokens=1), end(0, output_tokens=4, cached_tokens=2)),
        WITH_CHOICES,
    ),
    "log-probabilities, also of half characters and of a control token": Scenario(
        call(logprobs=1),
        (
            text(0, "a", scored("a", -3.0, ("b", MINUS_INFINITY), ("c", -0.2))),
            text(0, "é!", *(scored(chr(byte), -1.0) for byte in "é!".encode())),
            TokenEvent(id="c-0", tokens=(300,), logprobs=(TokenLogprob(300, -1.0),)),
            end(0),
        ),
        (CHAT, COMPLETIONS, RESPONSES),
    ),
    "the best two of four by mean log-probability": Scenario(
        call(n=2, best_of=4),
        (
            text(0, "aa", scored("a", -1.0), scored("a", -1.0)),
            text(1, "b", scored("b", -1.5)),
            text(2, "c", scored("c", -0.5)),
            *(end(index) for index in range(4)),
        ),
        (COMPLETIONS,),
    ),
    "an echoed prompt": Scenario(call(ECHOED), texts("a", "b"), (COMPLETIONS,)),
    "an echoed prompt with scores, and offsets behind it": Scenario(
        call(ECHOED, logprobs=0),
        (
            prompt_scores("hi", -1.0, MINUS_INFINITY),
            text(0, "é!", *(scored(chr(byte), -1.0) for byte in "é!".encode())),
            end(0),
        ),
        (COMPLETIONS,),
    ),
    "a prompt that begins with a space of the tokenizer": Scenario(
        call(SPACED, logprobs=0), (prompt_scores(" hi", -1.0, -1.0, -1.0), end(0)), (COMPLETIONS,)
    ),
    "two choices of two prompts; of each the first to run found the least in the cache": Scenario(
        call(Prompt(tokens_of("abcd"), "abcd"), Prompt(tokens_of("efghijk"), "efghijk"), n=2),
        (
            *(text(index, str(index)) for index in range(4)),
            *(end(index, cached_tokens=cached) for index, cached in enumerate((3, 2, 0, 6))),
        ),
        (COMPLETIONS,),
    ),
    "a call as it comes": Scenario(
        call(tool_calls=HERMES),
        texts("<tool", "_call>\n{", '"name":"f","argu', 'ments":', '{"a":', " 1}", "}\n</tool_", "call>"),
        DIALOGS,
    ),
    "text and two calls": Scenario(call(tool_calls=HERMES), texts(f"Well:\n{TWO_CALLS}"), DIALOGS),
    "calls of two choices": Scenario(
        call(n=2, tool_calls=HERMES), (text(1, ONE_CALL), text(0, ONE_CALL), end(0), end(1)), (CHAT,)
    ),
    "text that is no call": Scenario(call(tool_calls=HERMES), texts("he <", "3"), DIALOGS),
    "text that may become a call and ends": Scenario(
        call(tool_calls=HERMES), texts("<tool", reason=FinishReason.LENGTH), DIALOGS
    ),
    "a call that is cut": Scenario(
        call(tool_calls=HERMES), texts(ONE_CALL[:-20], reason=FinishReason.LENGTH), DIALOGS
    ),
    "a function that was demanded by its name": Scenario(call(tool_calls=NAMED), texts(ONE_CALL), (CHAT,)),
    "a function of the deprecated kind": Scenario(
        call(tool_calls=LEGACY), texts('<|tool_call|>{"name":"f","arguments":{"a"', ":1}}"), (CHAT,)
    ),
    "the context is full": Scenario(
        msgspec.structs.replace(call(), context_ends_it=True), texts("a", reason=FinishReason.LENGTH), DIALOGS
    ),
    "a stop string": Scenario(call(), (text(0, "a"), stopped("END")), (MESSAGES,)),
    "a stop string within a call": Scenario(
        call(tool_calls=HERMES), (text(0, ONE_CALL[:-30]), stopped("END")), (MESSAGES,)
    ),
    "thoughts": Scenario(
        call(thinking=WITHIN), texts("\nHm", ", well.\n", "</thi", "nk>", "\n\nYes", "."), DIALOGS
    ),
    "thoughts that are cut": Scenario(
        call(thinking=WITHIN), texts("Hm. And th", reason=FinishReason.LENGTH), DIALOGS
    ),
    "empty thoughts": Scenario(call(thinking=WITHIN), texts("</think>Yes."), DIALOGS),
    "thoughts that do not come": Scenario(
        call(thinking=CallThinking(REASONING_FORMATS["think"], ThinkingStage.BEFORE)), texts("Yes"), DIALOGS
    ),
    "it waits, and there is nothing to wait for behind its first text": Scenario(
        call(), ("waits", "loads", "waits", "lives", *texts("a")[:1], "lives", end(0)), WAITING
    ),
    "it lives before it waits": Scenario(call(), ("lives", "waits", *texts("a")), (RESPONSES,)),
    "it was queued before it waits": Scenario(
        call(), ("waits", *texts("a")), (RESPONSES,), {"background": True}
    ),
    "it fails on its way": Scenario(call(), (text(0, "a"), "fails")),
    "what was asked for": Scenario(
        call(),
        texts("a"),
        (RESPONSES,),
        {
            "tools": [{"type": "web_search"}, {"type": "function", "name": "f", "parameters": OBJECT}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": OBJECT, "strict": True}},
            "reasoning": {"effort": "low", "summary": "auto"},
            "service_tier": "flex",
            "truncation": "auto",
            "max_output_tokens": 5,
        },
    ),
    "thoughts, text and calls": Scenario(
        call(thinking=WITHIN, tool_calls=HERMES), texts(f"Hm.</think>\n\nSo {TWO_CALLS}"), DIALOGS
    ),
}


def stream_and_renderer(
    family: str, request: ResolvedRequest, body: dict[str, object] | None = None
) -> tuple[Any, Any]:
    """Return the stream, and the renderer of whole answers except for responses: their streams have one."""
    numbers = itertools.count(1)
    renderer = {
        CHAT: ChatRenderer(new_id=lambda: f"call_{next(numbers)}"),
        COMPLETIONS: CompletionRenderer(),
        MESSAGES: MessagesRenderer(new_id=lambda: f"toolu_{next(numbers)}"),
    }.get(family)
    if renderer is not None:
        return renderer.stream(request, PIECES), renderer
    status = ResponseStatus.QUEUED if body and "background" in body else ResponseStatus.IN_PROGRESS
    return calls.response_stream(request, status, body), None


def rendered(family: str, scenario: Scenario) -> str:
    """Return the chunks of each step on lines of their own, and the whole answer after them."""
    request = scenario.call
    stream, _ = stream_and_renderer(family, request, scenario.body)
    steps = [step for step in scenario.steps if isinstance(step, TokenEvent)]
    events_of_steps = iter(engine_events(request, steps))
    chunks_of_steps, finishes = [stream.begin()], dict[str, Finish]()
    for step in scenario.steps:
        if isinstance(step, str):
            chunks_of_steps.append(NEWS[step](stream))
            continue
        for event in next(events_of_steps):
            chunks_of_steps.append(stream.event(event))
            if event.finish is not None:
                finishes[event.id] = event.finish
    chunks_of_steps += [stream.end(figures(request, finishes))] if finishes else []
    blocks = [events(chunks).decode().replace("\n\n", "\n") or "-\n" for chunks in chunks_of_steps]
    _, renderer = stream_and_renderer(family, request)  # its ids begin with 1
    if renderer is not None and finishes:
        blocks.append(calls.whole(renderer, request, *steps).decode() + "\n")
    return "\n".join(blocks)


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_are_as_recorded(family: str) -> None:
    shown = ""
    for name, scenario in SCENARIOS.items():
        if family in scenario.families:
            answer = rendered(family, scenario)
            if name != "text":  # the times are written out once
                answer = re.sub(r'"timings":\{.*?\}', '"timings":{}', answer)
            shown += f"=== {name}\n\n{answer}\n"
    assert shown == external_file(f"rendered/{family}.txt")


# -- cases without a record -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("line_end", ["\x85", "\u2028", "\u2029"])
def test_a_chunk_has_no_line_end_of_any_kind(family: str, line_end: str) -> None:
    words = f"a\r\n\x0b\x0c\x1c{line_end}é"
    stream, _ = stream_and_renderer(family, call())
    chunks = [*stream.begin(), *stream.event(text(0, words))]
    assert all(len(chunk.json.decode().splitlines()) == 1 for chunk in chunks)
    assert repr(words) in str(json.loads(chunks[-1].json))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_event_gives_no_chunk(family: str) -> None:
    stream, _ = stream_and_renderer(family, call())
    stream.event(text(0, "a"))
    assert not stream.event(TokenEvent(id="c-0"))


@pytest.mark.parametrize("family", [CHAT, COMPLETIONS, MESSAGES])
@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.ERROR])
def test_a_cancelled_or_failed_end_is_an_error(family: str, reason: FinishReason) -> None:
    last_event = end(0, reason, error="broken")
    stream, renderer = stream_and_renderer(family, call())
    with pytest.raises(GenerationFailed):
        stream.event(last_event)
    with pytest.raises(GenerationFailed):
        calls.whole(renderer, call(), last_event)


def test_a_call_that_a_stop_string_has_cut_is_an_error() -> None:
    truncated = [text(0, '<tool_call>\n{"name":"f","arguments":{"a"'), end(0)]
    for render in (calls.streamed, calls.whole):
        with pytest.raises(InvalidRequest, match="stop string") as error:
            render(ChatRenderer(), call(tool_calls=HERMES), *truncated)
        assert error.value.param == "stop"


@pytest.mark.parametrize(
    ("new_id", "pattern"), [(new_tool_call_id, "call_[A-Za-z0-9]{24}"), (new_tool_use_id, "toolu_.{24}")]
)
def test_ids_have_the_form_of_the_api_and_differ(new_id: Callable[[], str], pattern: str) -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert all(re.fullmatch(pattern, call_id) for call_id in ids)


CALL = '<tool_call>\n{"name":"f","arguments":{}}\n</tool_call>'


def letters(words: str) -> list[TokenEvent]:
    return [*(text(0, letter, scored(letter, -1.0)) for letter in words), end(0)]


@pytest.mark.parametrize(
    ("options", "output", "scored_part"),
    [
        ({"tool_calls": HERMES}, CALL, CALL),
        *(
            ({"thinking": CallThinking(REASONING_FORMATS[form], stage)}, output, scored_part)
            for form, stage, output, scored_part in (
                ("think", ThinkingStage.WITHIN, "a</think>b", "b"),
                ("think", ThinkingStage.WITHIN, "a\n</think>\n\nb c", "b c"),
                ("think", ThinkingStage.WITHIN, "a", ""),
                ("think", ThinkingStage.BEFORE, "<think>a</think>b", "b"),
                ("think", ThinkingStage.BEFORE, "b", "b"),
                ("think", ThinkingStage.BEFORE, "<th", "<th"),
                ("think", ThinkingStage.BEFORE, "<thb", "<thb"),
                ("granite", ThinkingStage.WITHIN, "a</think> <response> b", "b"),
                ("granite", ThinkingStage.BEFORE, "<response>b", "b"),
            )
        ),
    ],
)
def test_only_calls_and_content_have_scores(options: dict[str, Any], output: str, scored_part: str) -> None:
    request = call(logprobs=0, **options)
    (choice,) = json.loads(calls.whole(ChatRenderer(), request, *letters(output)))["choices"]
    assert "".join(entry["token"] for entry in choice["logprobs"]["content"]) == scored_part
    streamed = "".join(calls.streamed(ChatRenderer(), request, *letters(output)))
    assert streamed.count('"logprob":') == len(scored_part)


def test_routers_judge_the_answer() -> None:
    thinking = call(thinking=WITHIN)
    all_events = itertools.chain.from_iterable(engine_events(thinking, letters("a</think>bc")))
    (judgement,) = judged(thinking, [TimedEvent(event, 0.0) for event in all_events])
    assert len(judgement.logprobs) == 2
    assert not judgement.has_form


# -- messages ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "output", "arguments"),
    [
        *(
            ("mistral-args", f"[TOOL_CALLS]f[ARGS]{written}", arguments)
            for written, arguments in (
                ('{"a": "é"}', {"a": "é"}), ('{"a": "b', {"a": "b"}), ('{"a', {}), ("{'a'}", {}),
            )
        ),
        ("qwen3-coder", "<tool_call>\n<function=f>\n", {}),
    ],
)  # fmt: skip
def test_a_truncated_call_has_its_readable_arguments(form: str, output: str, arguments: object) -> None:
    request = call(tool_calls=ToolCallStyle(TOOL_FORMATS[form], "tool_calls"))
    message = json.loads(calls.whole(MessagesRenderer(), request, *texts(output, reason=FinishReason.LENGTH)))
    assert [block["input"] for block in message["content"]] == [arguments]


class OneTextTokenizer(FakeTokenizer):
    def piece(self, token: int, *, special: bool = False) -> bytes:
        return b"a"


@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_the_likeliest_of_several_tokens_with_one_text_counts(chosen: int) -> None:
    logprobs = {1: -0.1, 2: -5.0, 3: -9.0}
    entry = TokenLogprob(token=chosen, logprob=logprobs[chosen], top=((1, -0.1), (2, -5.0)))
    (top,) = LegacyWriter(PieceTexts(OneTextTokenizer()), 0).write([entry]).top_logprobs
    assert top == {"a": -0.1}
