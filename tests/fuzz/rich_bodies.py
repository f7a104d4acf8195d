"""Bodies of responses and messages in which much is said, with something odd in a place or two."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from random import Random
from typing import Any

from tests.fuzz.hostile import VALUES, Raw, text_of

FORM = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
_FUNCTION = {"type": "function", "name": "f", "description": "d", "parameters": FORM, "strict": True}
_RESPONSE = {
    "model": "fake", "instructions": "Be short.", "max_output_tokens": 5, "truncation": "auto", "store": True,
    "input": [
        {"role": "developer", "content": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "so", "annotations": [], "logprobs": []}]},
        {"role": "user", "content": "and?"},
    ],
    "tools": [_FUNCTION, {"type": "web_search"}], "tool_choice": "auto", "parallel_tool_calls": False,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": FORM, "strict": True},
             "verbosity": "low"},
    "include": ["message.output_text.logprobs", "reasoning.encrypted_content"], "metadata": {"a": "b"},
    "reasoning": {"effort": "low", "summary": "auto"}, "service_tier": "flex", "user": "u",
    "top_logprobs": 2, "temperature": 0.5, "prompt_cache_key": "k",
}  # fmt: skip
_MESSAGES = {
    "model": "fake", "max_tokens": 5, "stop_sequences": ["x"], "temperature": 0.5, "top_k": 3,
    "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "so"},
            {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": 1}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "1"}]},
            {"type": "text", "text": "and?"}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": FORM}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "enabled", "budget_tokens": 1024}, "metadata": {"user_id": "u"},
}  # fmt: skip
_COUNTED_ITEMS = ("model", "instructions", "input", "tools", "tool_choice", "text", "reasoning", "truncation")
_COUNTED = ("model", "system", "messages", "tools", "tool_choice", "thinking")
_CHAT = {
    "model": "fake",
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": FORM}}],
    "chat_template_kwargs": {"enable_thinking": True},
    "reasoning": {"effort": "low", "max_tokens": 3},
    "thinking_budget": 3,
}
_PLAIN = {**_RESPONSE, "input": "hi", "tools": [], "text": {"format": {"type": "text"}}}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", _RESPONSE),
    ("/v1/responses", _PLAIN),
    ("/v1/responses", {**_PLAIN, "background": True}),
    ("/v1/responses", {**_PLAIN, "stream": True}),
    ("/v1/responses/input_tokens", {name: _RESPONSE[name] for name in _COUNTED_ITEMS}),
    ("/v1/messages", _MESSAGES),
    ("/v1/messages", {**_MESSAGES, "stream": True}),
    ("/v1/messages/count_tokens", {name: _MESSAGES[name] for name in _COUNTED}),
    ("/v1/chat/completions/input_tokens", _CHAT),
]


class RichBodies:
    """From a seed always the same ones."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def one(self) -> tuple[str, bytes]:
        path, body = self._random.choice(BODIES)
        spoiled = copy.deepcopy(body)
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            self._spoil(spoiled)
        return path, text_of(spoiled).encode("utf-8", errors="surrogatepass")

    def _spoil(self, body: dict[str, Any]) -> None:
        places = list(_places(body))
        holder, key = self._random.choice(places)
        match self._random.randrange(5):
            case 0:
                del holder[key]
            case 1:  # something that is right elsewhere
                other, other_key = self._random.choice(places)
                holder[key] = copy.deepcopy(other[other_key])
            case 2:
                holder[key] = [holder[key]]
            case 3 if isinstance(holder, list):
                holder.append(copy.deepcopy(holder[key]))
            case _:
                holder[key] = Raw(self._random.choice(VALUES))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])
