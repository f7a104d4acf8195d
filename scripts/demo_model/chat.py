"""How a document is written for the model: ChatML turns, tools as signatures, calls behind a marker.

`chat_template.jinja` writes the same text from OpenAI's messages; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo_model.corpus.example import Example, Role, ToolCall, Turn

END_OF_TEXT, START, END, TOOL_CALL = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool_call|>"
CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
CONTROL_TOKENS = (END_OF_TEXT, START, END, TOOL_CALL)


@dataclass(frozen=True)
class Segment:
    """A part of a document's text; `learn`: the model is to write it, not only to read it."""

    text: str
    learn: bool


def segments(example: Example) -> list[Segment]:
    """The whole document, in order."""
    if example.text is not None:
        return [Segment(example.text + END_OF_TEXT, learn=True)]
    return [segment for turn in with_tools(example) for segment in _turn(turn)]


def prompt(example: Example) -> str:
    """What the model is given to continue with the assistant's first answer after `example`'s turns."""
    return "".join(segment.text for segment in segments(example)) + _header(Role.ASSISTANT)


def with_tools(example: Example) -> tuple[Turn, ...]:
    """The turns, with the tools written into the system's, which comes first."""
    if not example.tools:
        return example.turns
    listed = "\n".join(["Tools:", *(signature(tool) for tool in example.tools)])
    first = example.turns[0] if example.turns else None
    if first is None or first.role is not Role.SYSTEM:
        return (Turn(Role.SYSTEM, listed), *example.turns)
    return (Turn(Role.SYSTEM, f"{first.text}\n\n{listed}"), *example.turns[1:])


def signature(tool: Mapping[str, object]) -> str:
    """One line of one of OpenAI's tool objects: `name(city: string, days?: integer) - description`."""
    function = _mapping(tool["function"])
    schema = _mapping(function.get("parameters"))
    required = schema.get("required") or ()
    parameters = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(_mapping(kind))}"
        for name, kind in _mapping(schema.get("properties")).items()
    )
    description = function.get("description")
    return f"{function['name']}({parameters})" + (f" - {description}" if description else "")


def calls_text(calls: Sequence[ToolCall]) -> str:
    written = (compact({"name": call.name, "arguments": call.arguments}) for call in calls)
    return TOOL_CALL + "\n".join(written)


def compact(value: object) -> str:
    """JSON as the whole corpus writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _turn(turn: Turn) -> Iterator[Segment]:
    if turn.role is not Role.ASSISTANT:
        yield Segment(f"{_header(turn.role)}{turn.text}{END}\n", learn=False)
        return
    calls = calls_text(turn.calls) if turn.calls else ""
    yield Segment(_header(turn.role), learn=False)
    yield Segment(turn.text + calls + END, learn=True)
    yield Segment("\n", learn=False)


def _header(role: Role) -> str:
    return f"{START}{role.value}\n"


def _type(schema: Mapping[str, object]) -> str:
    """`string`, `celsius|fahrenheit`, `[integer]`; `any` where the schema says it in another way."""
    values, kind = schema.get("enum"), schema.get("type")
    if isinstance(values, list | tuple):
        return "|".join(value if isinstance(value, str) else compact(value) for value in values)
    if kind == "array":
        return f"[{_type(_mapping(schema.get('items')))}]"
    if isinstance(kind, list | tuple):
        return "|".join(str(name) for name in kind)
    return str(kind) if kind else "any"


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
