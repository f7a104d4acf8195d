"""Exact bytes of thoughts in chat responses and chunks."""

from __future__ import annotations

from itertools import chain

import pytest

from openai_cpu_server.api.asking.call import CallThinking, ToolCallStyle
from openai_cpu_server.api.asking.generation import judged
from openai_cpu_server.api.asking.renderer import Usage
from openai_cpu_server.api.asking.running import TimedEvent
from openai_cpu_server.contract.messages import FinishReason, TokenEvent
from openai_cpu_server.prompt.reasoning import REASONING_FORMATS, ThinkingStage
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.calls import call, end, figures, scored, text, told
from tests.api.test_render_tool_calls import choice, delta, streamed

THINK = REASONING_FORMATS["think"]
WITHIN = CallThinking(THINK, ThinkingStage.WITHIN)
HERMES = ToolCallStyle(TOOL_FORMATS["hermes"], "tool_calls")
CALL = '<tool_call>\n{"name":"f","arguments":{}}\n</tool_call>'


def both(thoughts: str) -> str:
    return delta(f'{{"reasoning_content":"{thoughts}","reasoning":"{thoughts}"}}')


def test_thoughts_are_streamed_under_both_names() -> None:
    pieces = ["\nHm", ", well.\n", "</thi", "nk>", "\n\nYes", "."]
    chunks = streamed(call(thinking=WITHIN), *(text(0, piece) for piece in pieces), end(0))
    assert chunks == [
        delta('{"role":"assistant","content":null}') + both("Hm"),
        both(", well."),
        "",
        "",
        delta('{"content":"Yes"}'),
        delta('{"content":"."}'),
        delta("{}", '"stop"'),
    ]


def test_an_answer_without_thoughts_is_streamed_as_ever() -> None:
    chunks = streamed(call(thinking=CallThinking(THINK, ThinkingStage.BEFORE)), text(0, "Yes"), end(0))
    assert chunks == [
        delta('{"role":"assistant","content":""}') + delta('{"content":"Yes"}'),
        delta("{}", '"stop"'),
    ]


def test_thoughts_then_a_call() -> None:
    thinking = call(thinking=WITHIN, tool_calls=HERMES)
    chunks = streamed(thinking, text(0, f"Hm.</think>\n\n{CALL}"), end(0))
    assert chunks[0].startswith(delta('{"role":"assistant","content":null}') + both("Hm."))
    assert '"name":"f"' in chunks[0]
    assert chunks[1] == delta("{}", '"tool_calls"')
    whole = choice(thinking, text(0, f"Hm.</think>\n\n{CALL}"), end(0))
    assert isinstance(whole["message"], dict)
    assert (whole["message"]["content"], whole["message"]["reasoning"]) == (None, "Hm.")
    assert whole["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("said", "reason", "content", "thoughts"),
    [
        ("Hm.\n</think>\n\nYes.", FinishReason.STOP, "Yes.", "Hm."),
        ("Hm. And th", FinishReason.LENGTH, None, "Hm. And th"),
        ("</think>Yes.", FinishReason.STOP, "Yes.", None),
        ("", FinishReason.STOP, "", None),
    ],
)
def test_a_whole_message(said: str, reason: FinishReason, content: str | None, thoughts: str | None) -> None:
    found = choice(call(thinking=WITHIN), text(0, said), end(0, reason))
    assert found["finish_reason"] == reason.value
    message = found["message"]
    assert isinstance(message, dict)
    assert message["content"] == content
    assert message.get("reasoning_content") == message.get("reasoning") == thoughts


def letter(char: str) -> TokenEvent:
    return text(0, char, scored(char, -1.0))


@pytest.mark.parametrize(
    ("stage", "said", "scored_part"),
    [
        (ThinkingStage.WITHIN, "a</think>b", "b"),
        (ThinkingStage.WITHIN, "a\n</think>\n\nb c", "b c"),
        (ThinkingStage.WITHIN, "a", ""),
        (ThinkingStage.BEFORE, "<think>a</think>b", "b"),
        (ThinkingStage.BEFORE, "b", "b"),
        (ThinkingStage.BEFORE, "<th", "<th"),
        (ThinkingStage.BEFORE, "<thb", "<thb"),
    ],
)
def test_log_probabilities_are_those_of_content(stage: ThinkingStage, said: str, scored_part: str) -> None:
    thinking = call(thinking=CallThinking(THINK, stage), logprobs=0)
    events = [*(letter(char) for char in said), end(0)]
    whole = choice(thinking, *events)["logprobs"]
    assert isinstance(whole, dict)
    assert "".join(entry["token"] for entry in whole["content"]) == scored_part
    assert "".join(streamed(thinking, *events)).count('"logprob":') == len(scored_part)


@pytest.mark.parametrize(
    ("stage", "said"),
    [(ThinkingStage.WITHIN, "a</think> <response> b"), (ThinkingStage.BEFORE, "<response>b")],
)
def test_log_probabilities_of_an_answers_mark_are_nobodys(stage: ThinkingStage, said: str) -> None:
    granite = call(thinking=CallThinking(REASONING_FORMATS["granite"], stage), logprobs=0)
    events = [*(letter(char) for char in said), end(0)]
    whole = choice(granite, *events)["logprobs"]
    assert isinstance(whole, dict)
    assert [entry["token"] for entry in whole["content"]] == ["b"]


@pytest.mark.parametrize(("said", "expected"), [("Hm.</think>Yes.", 11), ("Hm", 2), ("</think>", 8)])
def test_tokens_of_thoughts_are_counted(said: str, expected: int) -> None:
    thinking = call(thinking=WITHIN)
    pieces = (said[:1], said[1:5], said[5:])
    last = told(thinking, [*(text(0, piece) for piece in pieces), end(0)])[-1][-1]
    assert last.finish is not None
    usage = Usage.of(figures(thinking, {last.id: last.finish}))
    assert usage.completion_tokens_details.reasoning_tokens == expected


def test_routers_judge_the_answer() -> None:
    thinking = call(thinking=WITHIN)
    heard = told(thinking, [*(letter(char) for char in "a</think>bc"), end(0)])
    (found,) = judged(thinking, [TimedEvent(event, 0.0) for event in chain.from_iterable(heard)])
    assert len(found.logprobs) == 2
    assert not found.has_form
