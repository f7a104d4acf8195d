"""Schemas that say nothing about undeclared properties, on every route that takes one."""

from __future__ import annotations

from typing import Any

import pytest

from openai_cpu_server.api.chat.routes import CHAT
from openai_cpu_server.api.completions.routes import COMPLETIONS
from openai_cpu_server.api.generation.route import ApiAdapter
from openai_cpu_server.api.llama_server.render import LlamaRenderer
from openai_cpu_server.api.llama_server.schema import LlamaCompletionBody
from openai_cpu_server.api.llama_server.to_params import llama_completion_params
from openai_cpu_server.api.messages.routes import MESSAGES_API
from openai_cpu_server.api.ollama.routes import OLLAMA_CHAT, OLLAMA_GENERATE
from openai_cpu_server.http.context import Caller
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.prompt.chat_template import ChatTemplate
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS
from tests.api.fake_engine import FakeEngine
from tests.api.fake_tokenizer import FakeTokenizer
from tests.api.following import Follower
from tests.api.resolving import resolved
from tests.reading import model_read_here

PET = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
SCHEMA = {**PET, "properties": {**PET["properties"], "pet": {"$ref": "#/$defs/Pet"}}, "$defs": {"Pet": PET}}
OPEN = {**SCHEMA, "additionalProperties": True}
GOOD = '{"name":"Ann","pet":{"name":"Rex"}}'
INNER = '{"name":"Ann","pet":{"name":"Rex","age":3}}'
OUTER = '{"name":"Ann","pet":{"name":"Rex"},"age":3}'
LLAMA = ApiAdapter(LlamaCompletionBody, llama_completion_params, LlamaRenderer())
TURNS = {"messages": [{"role": "user", "content": "hi"}]}


def response_format(schema: object) -> dict[str, object]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


SHAPES = {
    "response_format": lambda schema: (CHAT, {**TURNS, **response_format(schema)}),
    "json_object": lambda schema: (
        CHAT,
        {**TURNS, "response_format": {"type": "json_object", "schema": schema}},
    ),
    "guided_json": lambda schema: (COMPLETIONS, {"prompt": "hi", "guided_json": schema}),
    "structured_outputs": lambda schema: (CHAT, {**TURNS, "structured_outputs": {"json": schema}}),
    "llama-server": lambda schema: (LLAMA, {"prompt": "hi", "json_schema": schema}),
    "ollama chat": lambda schema: (OLLAMA_CHAT, {"model": "fake", **TURNS, "format": schema}),
    "ollama generate": lambda schema: (OLLAMA_GENERATE, {"model": "fake", "prompt": "hi", "format": schema}),
    "anthropic": lambda schema: (
        MESSAGES_API,
        {
            "model": "fake",
            "max_tokens": 9,
            **TURNS,
            "output_format": {"type": "json_schema", "schema": schema},
        },
    ),
}
FUNCTION = {"name": "f", "description": "d"}
TOOLS = {
    "chat tools": lambda schema: (
        CHAT,
        {
            **TURNS,
            "tools": [{"type": "function", "function": {**FUNCTION, "parameters": schema}}],
            "tool_choice": "required",
        },
    ),
    "anthropic tools": lambda schema: (
        MESSAGES_API,
        {
            "model": "fake",
            "max_tokens": 9,
            **TURNS,
            "tools": [{**FUNCTION, "input_schema": schema}],
            "tool_choice": {"type": "any"},
        },
    ),
    "ollama tools": lambda schema: (
        OLLAMA_CHAT,
        {
            "model": "fake",
            **TURNS,
            "tools": [{"type": "function", "function": {**FUNCTION, "parameters": schema}}],
        },
    ),
}


def constraint_of(family: ApiAdapter[Any], fields: dict[str, object], *, is_open: bool = False) -> Any:
    template = ChatTemplate(FakeTokenizer.chat_template, bos_text="<s>", eos_text="</s>")
    model = model_read_here(
        names=("fake",),
        engine=FakeEngine(),
        template=template,
        tool_format=TOOL_FORMATS["demo"],
        is_open=is_open,
    )
    return resolved(family, model, fields, Caller()).requests[0].constraint


@pytest.mark.parametrize("route", SHAPES)
def test_answers_have_declared_names_only(route: str) -> None:
    def fits(schema: object, text: str, *, is_open: bool = False) -> bool:
        constraint = constraint_of(*SHAPES[route](schema), is_open=is_open)
        return GrammarCheck(constraint.grammar).check(text).fits

    assert [fits(SCHEMA, text) for text in (GOOD, INNER, OUTER)] == [True, False, False]
    assert [fits(OPEN, text) for text in (GOOD, INNER, OUTER)] == [True, False, True]
    assert all(fits(SCHEMA, text, is_open=True) for text in (GOOD, INNER, OUTER))


@pytest.mark.parametrize("route", TOOLS)
def test_arguments_have_declared_names_only(route: str) -> None:
    follower = Follower()

    def fits(schema: object, text: str, *, is_open: bool = False) -> bool:
        call = f'<|tool_call|>{{"name":"f","arguments":{text}}}'
        return follower.accepts(constraint_of(*TOOLS[route](schema), is_open=is_open), call)

    assert [fits(SCHEMA, text) for text in (GOOD, INNER, OUTER)] == [True, False, False]
    assert [fits(OPEN, text) for text in (GOOD, INNER, OUTER)] == [True, False, True]
    assert all(fits(SCHEMA, text, is_open=True) for text in (GOOD, INNER, OUTER))
