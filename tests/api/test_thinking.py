"""What a body says about thinking becomes prompt, constraint and reader."""

from __future__ import annotations

import pytest

from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.contract.messages import TokenEvent
from openai_cpu_server.contract.request import Constraint, Thinking
from openai_cpu_server.models.served import ModelThinking
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import ReasoningFormat, template_reasoning
from openai_cpu_server.prompt.tool_formats import Content, Part, ThinkingText
from tests.api.calls import tokens_of, told
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.resolving import chat, refused

_TURNS = (
    "{% for m in messages %}({{ m.role }})"
    "{% if m.reasoning_content %}[{{ m.reasoning_content }}]{% endif %}{{ m.content }}{% endfor %}(answer)"
)
OPENS = _TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}"
"""Like Qwen3.5: it opens the thoughts, or closes them."""
MAY = _TURNS + "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}"
"""Like Qwen3: the model opens them."""
UNASKED = _TURNS + "{% if thinking %} Think between <think></think>.{% endif %}"
"""Like Granite: it thinks where it is asked to."""
ALWAYS = _TURNS + "<think>\n{# </think> #}"
"""Like DeepSeek-R1: it knows no way to do without."""
EFFORT = _TURNS + "{{ reasoning_effort }}<think>\n{# </think> #}"
HARMONY = _TURNS + "<|start|>assistant{# <|channel|><|message|> #}"
PLAIN = _TURNS
SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


def asked(
    template: str, *, on: bool | None = None, budget: int | None = None, **fields: object
) -> ResolvedRequest:
    """`on` and `budget` are the server's."""
    reasoning = template_reasoning(ChatTemplate(template, bos_text="", eos_text=""))
    model = ModelThinking(reasoning, is_on=on, budget=budget) if reasoning is not None else None
    return chat(template=template, thinks=model, **fields)


def text(tokens: tuple[int, ...]) -> str:
    return FakeTokenizer().decode(list(tokens), special=True)


def prompt(call: ResolvedRequest) -> str:
    return text(call.prompts[0].tokens).removeprefix("<s>")


def constraint(call: ResolvedRequest) -> Constraint:
    found = call.requests[0].constraint
    assert found is not None
    return found


def thoughts(call: ResolvedRequest) -> Thinking:
    found = constraint(call).thinking
    assert found is not None
    return found


def parts(call: ResolvedRequest, said: str) -> list[Part]:
    """What is read of an output that goes on behind this text."""
    events = told(call, [TokenEvent(id=call.requests[0].id, tokens=tokens_of(said), text=said)])
    reader = call.reader()
    return [part for event in events[0] for part in reader.read(event)]


def test_a_model_that_does_not_think_is_read_as_it_was() -> None:
    call = asked(PLAIN)
    assert (call.thinking, call.requests[0].constraint) == (None, None)
    assert parts(call, "<think>") == [Content("<think>")]


def test_thoughts_alone_need_no_constraint() -> None:
    call = asked(OPENS)
    assert (call.requests[0].constraint, call.requests[0].show_control_tokens) == (None, False)
    assert parts(call, "Hm.</think>Yes.") == [ThinkingText("Hm."), Content("Yes.")]


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "none"}},
        {"reasoning": {"enabled": False}},
        {"reasoning": {"max_tokens": 0}},
        {"thinking": {"type": "disabled"}},
        {"thinking_budget": 0},
        {"thinking_token_budget": 0},
        {"thinking_budget_tokens": 0},
        {"chat_template_kwargs": {"enable_thinking": False}},
        {"chat_template_kwargs": {"thinking": False}},
    ],
)
@pytest.mark.parametrize("template", [OPENS, MAY, ALWAYS])
def test_thinking_is_switched_off(template: str, fields: dict[str, object]) -> None:
    call = asked(template, response_format=SCHEMA, **fields)
    assert prompt(call).endswith("<think>\n\n</think>\n\n")
    assert call.thinking is None
    assert constraint(call).thinking is None


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": True},
        {"reasoning_effort": "high"},
        {"reasoning": {"effort": "xhigh"}},
        {"reasoning": {"enabled": True}},
        {"reasoning": {"max_tokens": 9}},
        {"thinking": {"type": "enabled", "budget_tokens": 9}},
        {"chat_template_kwargs": {"thinking": True}},
    ],
)
def test_thinking_is_switched_on(fields: dict[str, object]) -> None:
    call = asked(UNASKED, **fields)
    assert prompt(call).endswith("Think between <think></think>.")
    assert call.thinking is not None


def test_the_servers_default_is_for_those_who_do_not_say() -> None:
    assert asked(OPENS, on=False).thinking is None
    assert asked(OPENS, on=False, enable_thinking=True).thinking is not None
    assert asked(OPENS, budget=0).thinking is None
    assert thoughts(asked(OPENS, budget=7)).budget == 7
    assert thoughts(asked(OPENS, budget=7, thinking_budget=3)).budget == 3
    assert asked(OPENS, budget=7, thinking_budget=-1).requests[0].constraint is None
    assert asked(OPENS, thinking={"type": "adaptive"}).thinking is not None


@pytest.mark.parametrize(
    ("effort", "budget"), [("minimal", 256), ("low", 1024), ("medium", 4096), ("high", None), ("xhigh", None)]
)
def test_an_effort_is_a_budget_where_the_template_does_not_read_it(effort: str, budget: int | None) -> None:
    call = asked(OPENS, reasoning_effort=effort)
    found = call.requests[0].constraint
    assert (found.thinking.budget if found and found.thinking else None) == budget
    call = asked(EFFORT, reasoning_effort=effort)
    assert f"(answer){effort}<think>" in prompt(call)
    assert call.requests[0].constraint is None


def test_a_budget_closes_the_thoughts_with_a_few_words() -> None:
    found = thoughts(asked(OPENS, thinking_budget=5))
    assert (found.begin, found.end, found.opening, found.budget) == ("", "</think>", (), 5)
    assert text(found.closing).endswith("answer now.\n</think>")
    assert thoughts(asked(MAY, thinking_budget=5)).begin == "<think>"


FORM, DEMANDED = {"response_format": SCHEMA}, {"form": "hermes", "tools": TOOLS, "tool_choice": "required"}
CALLING, ANALYSIS = {"form": "harmony", "tools": TOOLS}, "<|channel|>analysis<|message|>"


@pytest.mark.parametrize(
    ("template", "fields", "thoughts_begin", "behind"),
    [
        (OPENS, FORM, "", "\n\n"),
        (MAY, FORM, "<think>", "\n\n"),
        (UNASKED, {**FORM, "enable_thinking": True}, "<think>", "\n\n"),
        (OPENS, DEMANDED, "", "\n\n"),
        (OPENS, {"stop": ["\n"]}, "", ""),
        (HARMONY, {**CALLING, "thinking_budget": 5}, ANALYSIS, "<|start|>assistant"),
        (HARMONY, {**CALLING, "stop": ["a"]}, ANALYSIS, "<|start|>assistant"),
        (HARMONY, FORM, ANALYSIS, "<|start|>assistant<|channel|>final<|message|>"),
    ],
)
def test_thoughts_precede(template: str, fields: dict[str, object], thoughts_begin: str, behind: str) -> None:
    """A model that must give a form begins with thoughts for sure, where it opens them."""
    call = asked(template, **fields)
    assert text(thoughts(call).opening) == thoughts(call).begin == thoughts_begin
    assert thoughts(call).end == ("<|end|>" if template == HARMONY else "</think>")
    assert thoughts(call).budget == fields.get("thinking_budget")
    assert text(constraint(call).opening) == behind
    assert bool(constraint(call).grammar) is ("form" in fields or "response_format" in fields)
    assert call.requests[0].stop == tuple(fields.get("stop", ()))  # type: ignore[arg-type]


def test_what_does_not_think_for_sure_gives_a_form_at_once() -> None:
    for call in (asked(UNASKED, **FORM), asked(HARMONY, **CALLING)):
        assert constraint(call).thinking is None


def test_calls_that_may_come_are_looked_for_behind_the_thoughts() -> None:
    call = asked(MAY, form="hermes", tools=TOOLS)
    assert constraint(call).triggers
    assert (thoughts(call).begin, thoughts(call).opening, constraint(call).opening) == ("<think>", (), ())
    found = parts(call, '<think>f?</think>\n<tool_call>\n{"name":"f","arguments":{}}')
    assert found[0] == ThinkingText("f?")
    assert len(found) == 3


def test_marks_that_are_control_tokens_are_shown_to_the_reader() -> None:
    calls = ReasoningFormat("calls", "<|user|>", "<|tool_call|>", signs=())
    reasoning = template_reasoning(ChatTemplate(PLAIN, bos_text="", eos_text=""), calls)
    assert reasoning is not None
    call = chat(template=PLAIN, thinks=ModelThinking(reasoning))
    assert call.requests[0].show_control_tokens is True


def test_earlier_thoughts_reach_the_template() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        said = {"role": "assistant", "content": "Yes.", name: "Hm."}
        user = {"role": "user", "content": "a"}
        assert "(assistant)[Hm.]Yes.(user)a" in prompt(asked(OPENS, messages=[user, said, user]))
        assert "[Hm.]" not in prompt(
            asked(UNASKED.replace("m.reasoning_content", "m.x"), messages=[user, said, user])
        )


@pytest.mark.parametrize("fields", [{"include_reasoning": False}, {"reasoning": {"exclude": True}}])
def test_thoughts_can_be_left_out(fields: dict[str, object]) -> None:
    assert parts(asked(OPENS, **fields), "Hm.</think>Yes.") == [Content("Yes.")]


def test_variables_reach_the_template_and_are_blamed_where_it_cannot_use_them() -> None:
    template = _TURNS + "{{ 1 / divisor | default(1) }}"
    assert prompt(asked(template)).endswith("1.0")
    deep = asked(
        _TURNS + "{{ style }}{{ deep.er[0] }}", chat_template_kwargs={"style": "!", "deep": {"er": [1]}}
    )
    assert prompt(deep).endswith("!1")
    for source, param in ((template, "chat_template_kwargs"), (_TURNS + "{{ 1 / 0 }}", "messages")):
        error = refused(asked, template=source, chat_template_kwargs={"divisor": 0})
        assert (error.param, error.code) == (param, "chat_template_failed")


def test_wishes_are_named_where_a_model_does_not_think() -> None:
    call = asked(PLAIN, reasoning_effort="low", thinking_budget=5)
    assert call.headers["x-ignored-parameters"] == "reasoning_effort,thinking_budget"
    assert "x-ignored-parameters" not in asked(OPENS, reasoning_effort="low").headers


@pytest.mark.parametrize("tools", [None, TOOLS])
def test_harmonys_thoughts_and_answer_go_on_where_the_prompt_has_begun_them(tools: object) -> None:
    def goes_on(**begun: str) -> ResolvedRequest:
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", **begun}]
        return asked(HARMONY, form="harmony", tools=tools, messages=messages)

    call = goes_on(reasoning_content="Hm")
    assert prompt(call).endswith("<|start|>assistant<|channel|>analysis<|message|>\nHm")
    said = "m.<|end|><|start|>assistant<|channel|>final<|message|>7"
    assert parts(call, said) == [ThinkingText("m."), Content("7")]
    if tools is not None:
        assert (thoughts(call).begin, thoughts(call).end) == ("", "<|end|>")
    assert prompt(goes_on(content="Hel")).endswith("<|start|>assistant<|channel|>final<|message|>Hel")


def test_harmony_cannot_do_without_thoughts() -> None:
    """It thinks as little as it can."""
    harmony = _TURNS + "{{ reasoning_effort }}<|start|>assistant{# <|channel|><|message|> #}"
    call = asked(harmony, reasoning_effort="none")
    assert prompt(call).endswith("low<|start|>assistant")
    assert call.thinking is not None
