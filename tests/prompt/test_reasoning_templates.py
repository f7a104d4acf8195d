"""Thoughts in the chat templates of well-known models: marks, fields of messages, and stages."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from openai_cpu_server.prompt.chat_prompts import ChatText, render_chat
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.reasoning import (
    ReasoningField,
    TemplateReasoning,
    ThinkingStage,
    reasoning_format_for,
    switch,
    template_reasoning,
)
from openai_cpu_server.prompt.template import TemplateMessage

FOLDER = Path(__file__).parent / "templates"
USER = {"role": "user", "content": "Hi."}
BEFORE, WITHIN, BEHIND = ThinkingStage.BEFORE, ThinkingStage.WITHIN, ThinkingStage.BEHIND
FAMILIES = {
    "Qwen-Qwen3-0.6B": ("think", ReasoningField.REASONING_CONTENT, (BEFORE, BEFORE, BEHIND)),
    "Qwen3.5-4B": ("think", ReasoningField.REASONING_CONTENT, (WITHIN, WITHIN, BEHIND)),
    "llama-cpp-deepseek-r1": ("think", ReasoningField.NOWHERE, (WITHIN, WITHIN, BEHIND)),
    "deepseek-ai-DeepSeek-V3.1": ("think", ReasoningField.NOWHERE, (BEHIND, WITHIN, BEHIND)),
    "HuggingFaceTB-SmolLM3-3B": ("think", ReasoningField.NOWHERE, (BEFORE, BEFORE, BEHIND)),
    "NVIDIA-Nemotron-Nano-v2": ("think", ReasoningField.NOWHERE, (WITHIN, WITHIN, BEHIND)),
    "GLM-4.6": ("think", ReasoningField.REASONING_CONTENT, (BEFORE, BEFORE, BEHIND)),
    "Kimi-K2-Thinking": ("think", ReasoningField.REASONING_CONTENT, (BEFORE, BEFORE, BEHIND)),
    "MiniMax-M2": ("think", ReasoningField.REASONING_CONTENT, (WITHIN, WITHIN, BEHIND)),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", ReasoningField.NOWHERE, (BEFORE, BEFORE, BEFORE)),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", ReasoningField.PARTS, (BEFORE, BEFORE, BEHIND)),
    "google-gemma-4-31B-it": ("gemma", None, (BEHIND, BEFORE, BEHIND)),
    "openai-gpt-oss-120b": ("harmony", ReasoningField.THINKING, (BEFORE, BEFORE, BEHIND)),
    "ByteDance-Seed-OSS": ("seed", ReasoningField.REASONING_CONTENT, (BEFORE, BEFORE, BEHIND)),
    "Apriel-1.6-15b-Thinker-fixed": ("apriel", ReasoningField.REASONING_CONTENT, (WITHIN, WITHIN, BEHIND)),
}


@functools.cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(), bos_text="<s>", eos_text="</s>")


@functools.cache
def reasoning(name: str) -> TemplateReasoning:
    found = template_reasoning(template(name))
    assert found is not None
    return found


def rendered(name: str, *messages: TemplateMessage, on: bool | None = None, **extra: object) -> ChatText:
    more = {"reasoning": reasoning(name), "extra": extra if on is None else {**switch(on), **extra}}
    return render_chat(template(name), messages or [USER], skips_thinking=on is False, **more)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_marks_and_the_first_stage_are_read_from_the_template(name: str) -> None:
    form, echo, stages = FAMILIES[name]
    found = reasoning(name)
    assert found.form.name == form
    assert echo in (None, found.echo)
    assert tuple(rendered(name, on=on).stage for on in (None, True, False)) == stages


GRANITE, MINISTRAL = "ibm-granite-granite-3.3-2B-Instruct", "mistralai-Ministral-3-14B-Reasoning-2512"


@pytest.mark.parametrize("name", ["Qwen-Qwen3-0.6B", "GLM-4.6", MINISTRAL, GRANITE])
def test_prompts_that_require_thoughts(name: str) -> None:
    found = reasoning(name)
    assert found.wants_thoughts(rendered(name).text) is (name != GRANITE)
    assert found.wants_thoughts(rendered(name, on=True).text)


ANSWER = {"role": "assistant", "content": "Yes.", "reasoning_content": "So be it."}
SHOWN = {
    "Qwen-Qwen3-0.6B": "<think>\nSo be it.\n</think>\n\nYes.",
    "GLM-4.6": "<think>So be it.</think>\nYes.",
    "MiniMax-M2": "<think>\nSo be it.\n</think>\n\nYes.",
    MINISTRAL: "[THINK]So be it.[/THINK]Yes.",
    "ByteDance-Seed-OSS": "<seed:think>So be it.</seed:think>\nYes.",
}


@pytest.mark.parametrize("name", SHOWN)
def test_echoed_thoughts_are_shown_as_the_template_shows_them(name: str) -> None:
    """Thoughts are shown before the next turn of the user. Many templates leave them out after it."""
    found = render_chat(
        template(name), [USER, ANSWER], add_generation_prompt=False, reasoning=reasoning(name)
    )
    assert SHOWN[name] in found.text


@pytest.mark.parametrize("name", ["llama-cpp-deepseek-r1", "HuggingFaceTB-SmolLM3-3B", "openai-gpt-oss-120b"])
def test_thoughts_that_a_template_does_not_show_are_left_out(name: str) -> None:
    text = rendered(name, USER, ANSWER, USER).text
    assert ("Yes." in text, "So be it." in text) == (True, False)


def test_harmony_shows_thoughts_before_a_call_though_there_is_content_too() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    answer = {"role": "assistant", "content": "Well.", "reasoning_content": "Hm.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": "3"}
    text = rendered("openai-gpt-oss-120b", USER, answer, result).text
    assert "analysis<|message|>Hm.\n\nWell.<|end|>" in text


@pytest.mark.parametrize(
    ("name", "prefill", "end", "stage"),
    [
        ("Qwen3.5-4B", {"content": "Yes"}, "<think>\n\n</think>\n\nYes", BEHIND),
        ("Qwen3.5-4B", {"reasoning_content": "Hm"}, "<think>\nHm", WITHIN),
        ("Qwen3.5-4B", {"reasoning_content": "Hm", "content": "Yes"}, "<think>\nHm\n</think>\n\nYes", BEHIND),
        ("Qwen-Qwen3-0.6B", {"content": "Yes"}, "assistant\nYes", BEHIND),
        ("Qwen-Qwen3-0.6B", {"reasoning_content": "Hm"}, "assistant\n<think>\nHm", WITHIN),
        ("Qwen-Qwen3-0.6B", {"content": "<think>\nHm"}, "assistant\n<think>\nHm", WITHIN),
        ("Qwen-Qwen3-0.6B", {"content": ""}, "assistant\n", BEFORE),
    ],
)
def test_a_prefilled_answer_is_continued(
    name: str, prefill: dict[str, str], end: str, stage: ThinkingStage
) -> None:
    text = rendered(name, USER, {"role": "assistant", **prefill})
    assert text.text.endswith(end)
    assert text.stage is stage


def test_the_budget_and_the_effort_reach_the_templates_that_read_them() -> None:
    assert "Reasoning: high" in rendered("openai-gpt-oss-120b", reasoning_effort="high").text
    assert "512" in rendered("ByteDance-Seed-OSS", thinking_budget=512).text


@pytest.mark.parametrize(
    ("source", "form"),
    [
        ("plain {{ messages }}", None),
        ("<|START_THINKING|><|END_THINKING|>", "cohere"),
        ("<|inner_prefix|>", "apertus"),
        ("Here is my thought process: ... Here is my response:", "granite-3.2"),
        ("<think></think><answer>", "hunyuan"),
        ("<thought></thought>", "thought"),
    ],
)
def test_further_families(source: str, form: str | None) -> None:
    found = reasoning_format_for(ChatTemplate(source, bos_text="", eos_text=""))
    assert (found.name if found else None) == form
