"""Schemas without `additionalProperties`. `refused/` shows that each route reads its schemas."""

from __future__ import annotations

import pytest

from tests.api.following import Follower
from tests.api.resolving import chat

PET = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SCHEMA = {**PET, "properties": {**PET["properties"], "pet": {"$ref": "#/$defs/Pet"}}, "$defs": {"Pet": PET}}
OPEN = {**SCHEMA, "additionalProperties": True}
GOOD = '{"name":"Ann","pet":{"name":"Rex"}}'
INNER = '{"name":"Ann","pet":{"name":"Rex","age":3}}'
OUTER = '{"name":"Ann","pet":{"name":"Rex"},"age":3}'


@pytest.mark.parametrize("is_tool", [False, True])
def test_answers_and_arguments_have_declared_properties_only(is_tool: bool) -> None:
    follower = Follower()

    def fits(schema: object, text: str, *, is_open: bool = False) -> bool:
        shape: dict[str, object] = {
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
        }
        if is_tool:
            text = f'<|tool_call|>{{"name":"f","arguments":{text}}}'
            tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
            shape = {"tools": [tool], "tool_choice": "required"}
        constraint = chat(is_open=is_open, **shape).requests[0].constraint
        assert constraint is not None
        return follower.accepts(constraint, text)

    assert [fits(SCHEMA, text) for text in (GOOD, INNER, OUTER)] == [True, False, False]
    assert [fits(OPEN, text) for text in (GOOD, INNER, OUTER)] == [True, False, True]
    assert all(fits(SCHEMA, text, is_open=True) for text in (GOOD, INNER, OUTER))
