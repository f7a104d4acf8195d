"""Examples of the corpus as conversations in OpenAI's messages."""

from __future__ import annotations

from collections.abc import Mapping

from demo_model.chat import calls_text
from demo_model.corpus.example import Example, Role, Split, ToolCall, Turn
from demo_model.corpus.mixture import Mixture
from demo_model.evaluation.engine import Asked


def held_out(mixture: Mixture, kind: str, count: int) -> list[Example]:
    """The first `count` of a kind that have something to check."""
    found: list[Example] = []
    index = 0
    while len(found) < count:
        example = mixture.document_of(kind, Split.HELD_OUT, index)
        index += 1
        if example.text is None and is_checkable(example):
            found.append(example)
    return found


def is_checkable(example: Example) -> bool:
    """Small talk that holds no name may be answered in any way."""
    return example.expected.get("contains") != []


def asked(example: Example) -> Asked:
    """The turns without the last one, which is the answer."""
    assert example.turns[-1].role is Role.ASSISTANT, "the last turn is to be asked for"
    return Asked([_message(turn) for turn in example.turns[:-1]], example.tools)


def own_answer(example: Example) -> str:
    """The corpus' answer, as the model would write it."""
    last = example.turns[-1]
    return last.text + (calls_text(last.calls) if last.calls else "")


def _message(turn: Turn) -> Mapping[str, object]:
    fields: dict[str, object] = {"role": turn.role.value, "content": turn.text}
    if turn.calls:
        fields["tool_calls"] = [_call(call) for call in turn.calls]
    return fields


def _call(call: ToolCall) -> Mapping[str, object]:
    function = {"name": call.name, "arguments": dict(call.arguments)}
    return {"type": "function", "function": function}
