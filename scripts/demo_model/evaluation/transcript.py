"""Holds a conversation with the model, tools and their results included, and writes it down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from demo_model.chat import compact
from demo_model.corpus.example import Role
from demo_model.evaluation.conversations import Conversation
from demo_model.evaluation.engine import Asked, Engine
from demo_model.evaluation.scoring import calls_of
from openai_cpu_server.contract.request import Sampling

_ROUNDS = 3
"""Times in a row that the model may call tools before the user speaks again."""
_SEED = 1

Messages = list[Mapping[str, object]]


def transcript(engine: Engine, conversation: Conversation) -> str:
    """Markdown: the title, then every turn as it was, control tokens written out."""
    messages: Messages = []
    if conversation.system:
        messages.append(_message(Role.SYSTEM, conversation.system))
    lines = [_line(Role.SYSTEM, conversation.system)] if conversation.system else []
    lines += ["(tools: " + ", ".join(_name(tool) for tool in conversation.tools) + ")"] * bool(
        conversation.tools
    )
    for said in conversation.users:
        messages.append(_message(Role.USER, said))
        lines.append(_line(Role.USER, said))
        lines += _turns_of_model(engine, conversation, messages)
    return f"### {conversation.title}\n\n````text\n" + "\n".join(lines) + "\n````\n"


def _turns_of_model(engine: Engine, conversation: Conversation, messages: Messages) -> list[str]:
    """Answers until one calls no tool; `messages` grow by them."""
    lines: list[str] = []
    for _ in range(_ROUNDS):
        sampling = Sampling(seed=_SEED, temperature=conversation.temperature)
        asked = Asked(messages, conversation.tools, sampling=sampling)
        text = engine.answers([asked])[0].text
        lines.append(_line(Role.ASSISTANT, text))
        calls = calls_of(text)
        messages.append(_of_model(text, calls))
        if not calls:
            break
        for call in calls:
            result = (conversation.results or {}).get(str(call.get("name")), '{"error":"unknown tool"}')
            messages.append(_message(Role.TOOL, result))
            lines.append(_line(Role.TOOL, result))
    return lines


def _of_model(text: str, calls: Sequence[Mapping[str, object]]) -> Mapping[str, object]:
    if not calls:
        return _message(Role.ASSISTANT, text)
    functions = [{"name": call.get("name"), "arguments": compact(call.get("arguments"))} for call in calls]
    tool_calls = [{"type": "function", "function": function} for function in functions]
    return {**_message(Role.ASSISTANT, ""), "tool_calls": tool_calls}


def _message(role: Role, text: str) -> dict[str, object]:
    return {"role": role.value, "content": text}


def _line(role: Role, text: str) -> str:
    return f"{role.value}: {text}"


def _name(tool: Mapping[str, object]) -> str:
    function = tool["function"]
    assert isinstance(function, Mapping)
    return str(function["name"])
