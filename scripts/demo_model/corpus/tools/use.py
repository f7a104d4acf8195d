"""One use of a tool: what is offered, what is asked, the call, the result and what is said about it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from demo_model.corpus.example import Split, ToolCall

Schema = Mapping[str, object]
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}


@dataclass(frozen=True)
class ToolUse:
    tool: Mapping[str, object]
    """OpenAI's tool object."""
    request: str
    call: ToolCall
    result: object
    """What the tool returns, for JSON."""
    answer: str
    contains: tuple[str, ...]
    """What the answer must contain, all of it from the result."""


Draw = Callable[[random.Random, Split], ToolUse]


def tool(
    name: str, description: str, required: Mapping[str, Schema], optional: Mapping[str, Schema] | None = None
) -> Mapping[str, object]:
    parameters = {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def choice_of(*options: str) -> Schema:
    return {"type": "string", "enum": list(options)}


def name_of(offered: Mapping[str, object]) -> str:
    function = offered["function"]
    assert isinstance(function, Mapping)
    return str(function["name"])
