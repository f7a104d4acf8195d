"""The chat template writes what the model was trained on."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from demo_model.chat import CHAT_TEMPLATE, Segment, calls_text, prompt, segments, signature
from demo_model.corpus.example import Example, Role, Split, ToolCall, Turn
from demo_model.corpus.mixture import whole_mixture

from openai_cpu_server.errors import TemplateFailed
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.messages import template_messages

TEMPLATE = ChatTemplate(
    CHAT_TEMPLATE.read_text(encoding="utf-8").rstrip("\n"), bos_text="<|endoftext|>", eos_text="<|im_end|>"
)
MIXTURE = whole_mixture(seed=5)


def rendered(example: Example, *, add_generation_prompt: bool) -> str:
    """As the server does it, from the messages that a client sends."""
    messages = template_messages([message(turn) for turn in example.turns])
    return TEMPLATE.render(
        messages, tools=list(example.tools) or None, add_generation_prompt=add_generation_prompt
    )


def message(turn: Turn) -> dict[str, object]:
    if turn.role is Role.TOOL:
        return {"role": "tool", "content": turn.text, "tool_call_id": "call_1"}
    if not turn.calls:
        return {"role": turn.role.value, "content": turn.text}
    calls = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for index, call in enumerate(turn.calls)
    ]
    return {"role": "assistant", "content": turn.text or None, "tool_calls": calls}


def trained_text(example: Example) -> str:
    return "".join(segment.text for segment in segments(example))


@pytest.mark.parametrize("kind", MIXTURE.makers)
@pytest.mark.parametrize("split", Split)
def test_every_kind_of_example_is_rendered_as_it_was_trained(kind: str, split: Split) -> None:
    for index in range(25):
        example = MIXTURE.document_of(kind, split, index)
        if example.text is None:
            assert rendered(example, add_generation_prompt=False) == trained_text(example)
            assert rendered(example, add_generation_prompt=True) == prompt(example)


def tool(name: str, properties: Mapping[str, object], *, required: tuple[str, ...] = ()) -> dict[str, object]:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": schema}}


ODD_TOOLS = [
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "now", "description": "The time", "parameters": {}}},
    tool("a", {"x": {"type": "string"}, "y": {"type": ["integer", "null"]}}, required=("x",)),
    tool("b", {"x": {"type": "array", "items": {"type": "number"}}, "y": {"type": "array"}}),
    tool("c", {"x": {"enum": ["é", 2, None, True]}, "items": {"anyOf": []}, "keys": {"type": "object"}}),
    tool("d", {"x": {"type": "array", "items": {"enum": ["a", "b"]}}}, required=("x",)),
]


@pytest.mark.parametrize("odd", ODD_TOOLS)
def test_signatures_of_odd_tools_are_the_same_in_the_template(odd: dict[str, object]) -> None:
    example = Example("odd", (Turn(Role.USER, "Hi"),), tools=(odd, *ODD_TOOLS[:2]))
    assert rendered(example, add_generation_prompt=True) == prompt(example)


def test_a_signature_says_types_and_what_is_optional() -> None:
    unit = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    weather = tool(
        "get_weather",
        {"city": {"type": "string"}, "unit": unit, "days": {"type": "array", "items": {"type": "integer"}}},
        required=("city", "unit"),
    )
    expected = "get_weather(city: string, unit: celsius|fahrenheit, days?: [integer])"
    assert signature(weather) == expected
    described = {"function": {**weather["function"], "description": "Now"}}  # type: ignore[dict-item]
    assert signature(described) == f"{expected} - Now"


def test_a_conversation_with_a_system_text_tools_calls_and_results() -> None:
    example = Example(
        "talk",
        (
            Turn(Role.SYSTEM, "Be brief."),
            Turn(Role.USER, "Paris and Rome?"),
            Turn(
                Role.ASSISTANT,
                calls=(ToolCall("get", {"city": "Paris"}), ToolCall("get", {"city": "Zoë, 2"})),
            ),
            Turn(Role.TOOL, '{"sky":"blue"}'),
            Turn(Role.ASSISTANT, "Blue."),
        ),
        tools=(tool("get", {"city": {"type": "string"}}),),
    )
    expected = (
        "<|im_start|>system\nBe brief.\n\nTools:\nget(city?: string)<|im_end|>\n"
        "<|im_start|>user\nParis and Rome?<|im_end|>\n"
        '<|im_start|>assistant\n<|tool_call|>{"name":"get","arguments":{"city":"Paris"}}\n'
        '{"name":"get","arguments":{"city":"Zoë, 2"}}<|im_end|>\n'
        '<|im_start|>tool\n{"sky":"blue"}<|im_end|>\n'
        "<|im_start|>assistant\nBlue.<|im_end|>\n"
    )
    assert trained_text(example) == expected
    assert rendered(example, add_generation_prompt=False) == expected


def test_only_what_the_assistant_says_is_learnt() -> None:
    example = Example("chat", (Turn(Role.USER, "Hi"), Turn(Role.ASSISTANT, "Hello!")))
    assert [segment for segment in segments(example) if segment.learn] == [
        Segment("Hello!<|im_end|>", learn=True)
    ]


def test_a_plain_text_is_learnt_with_its_end() -> None:
    assert segments(Example("plain", text="Once.")) == [Segment("Once.<|endoftext|>", learn=True)]


def test_several_calls_stand_behind_one_marker() -> None:
    calls = (ToolCall("f", {"n": 1}), ToolCall("g", {}))
    assert calls_text(calls) == ('<|tool_call|>{"name":"f","arguments":{"n":1}}\n{"name":"g","arguments":{}}')


def test_unknown_roles_are_refused() -> None:
    with pytest.raises(TemplateFailed, match="knows the roles"):
        TEMPLATE.render([{"role": "function", "content": "x"}])
