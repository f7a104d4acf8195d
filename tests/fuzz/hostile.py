"""Hostile bodies: almost valid ones, some that are not JSON, and rich ones with odd parts."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random
from typing import Any

Json = dict[str, Any]

NUMBERS = ["1e400", "-1e400", "1e308", "9" * 400, "-0", "1e-400", "0.1e1", "18446744073709551616", "-1", "0"]
WORDS = ["NaN", "Infinity", "-Infinity", "null", "true", "undefined", "{}", "[]", '""', "[[]]", "{,}", "01"]
STRINGS = [
    '"\\ud800"',
    '"\\udfff\\ud800"',
    '"\\u0000"',
    '"\x00"',
    '"' + "x" * 5000 + '"',
    '"\\uffff\\ufffe"',
    '"\U0001f600\u200d\u202e"',
    '"{{ 7*7 }}{% for x in range(9**9) %}{% endfor %}"',
    '"root ::= root"',
    '"root ::= ((((\\"a\\"*)*)*)*)*"',
    '"(a+)+$"',
    '"(?=x)[^"',
    '"a{1,99999999}"',
    '"<s></s><|im_start|>"',
]
DEEP = ["[" * 500 + "]" * 500, '{"a":' * 500 + "1" + "}" * 500, "[" * 100_000, '{"a":' * 50_000]
SCHEMAS = [
    '{"$ref":"#"}',
    '{"type":"object","properties":{"a":{"$ref":"#/properties/a"}}}',
    '{"type":"array","minItems":1000000000}',
    '{"type":"string","pattern":"(a*)*b","maxLength":1e9}',
    '{"anyOf":[]}',
    '{"allOf":[{"type":"string"},{"type":"integer"}]}',
    '{"enum":[]}',
    '{"type":"integer","minimum":1e300,"maximum":-1e300}',
    '{"type":["string",null,5]}',
    '{"const":{"a":[NaN]}}',
    '{"type":"object","required":["x"],"additionalProperties":false}',
]
VALUES = [*NUMBERS, *WORDS, *STRINGS, *DEEP, *SCHEMAS]


class Raw(str):
    """JSON text that is inserted as it is."""


class Bodies:
    """Bodies for the operations of `/openapi.json`. A seed always makes the same ones."""

    def __init__(self, document: Json, seed: int) -> None:
        self._schemas: Json = document["components"]["schemas"]
        self._random = Random(seed)
        self._operations = [
            (path, operation["requestBody"]["content"]["application/json"]["schema"])
            for path, item in document["paths"].items()
            for operation in item.values()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        ]

    def next_body(self) -> tuple[str, bytes]:
        path, schema = self._random.choice(self._operations)
        text = text_of(self._spoil(self._value(schema, 0)))
        data = text.encode("utf-8", errors="surrogatepass")
        return path, self._mangle(data) if self._random.random() < 0.25 else data

    def _value(self, schema: Json, depth: int) -> Any:
        """Return a value that mostly fits the schema. Optional fields are few: a wrong one hides others."""
        random = self._random
        if "$ref" in schema:
            return self._value(self._schemas[schema["$ref"].rsplit("/", 1)[1]], depth)
        if options := schema.get("anyOf") or schema.get("oneOf"):
            return self._value(random.choice(options), depth)
        if "enum" in schema or "const" in schema:
            return random.choice(schema.get("enum") or [schema["const"]])
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                return [self._value(schema["items"], depth + 1) for _ in range(random.choice((1, 1, 2, 5)))]
            case "string":
                return random.choice(["a", "hi", "é\u2028", "root ::= [a-c]+", "[a-c]+", "", "fake"])
            case "integer" | "number":
                low, high = schema.get("minimum", 0), schema.get("maximum", 40)
                return random.choice([low, high, random.randint(int(low), int(max(low, high)))])
            case "boolean":
                return random.random() < 0.5
            case "null":
                return None
        return random.choice(["a", 1, None, {"type": "string"}])

    def _object(self, schema: Json, depth: int) -> Json:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        chance = 0.06 if len(properties) > 8 else 0.4
        names = [name for name in properties if name in required or self._random.random() < chance]
        fields = {name: self._value(properties[name], depth + 1) for name in names}
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth < 6:
            fields["type"] = self._value(more, depth + 1)
        return fields

    def _spoil(self, value: Any) -> Any:
        random = self._random
        if not isinstance(value, (dict, list)) or not value or random.random() < 0.1:
            return Raw(random.choice(VALUES)) if random.random() < 0.7 else value
        if isinstance(value, list):
            index = random.randrange(len(value))
            return [self._spoil(item) if i == index else item for i, item in enumerate(value)]
        name = random.choice(list(value))
        spoiled = {key: self._spoil(item) if key == name else item for key, item in value.items()}
        if random.random() < 0.05:
            odd = random.choice(["\u0000", "\ud800", "x" * 300, "__proto__", ""])
            spoiled[odd] = Raw(random.choice(VALUES))
        return spoiled

    def _mangle(self, data: bytes) -> bytes:
        random = self._random
        at = random.randrange(len(data) + 1)
        match random.randrange(6):
            case 0:
                return data[:at]
            case 1:
                return data[:at] + random.randbytes(random.randint(1, 20)) + data[at:]
            case 2:
                return data[:at] + b"\x00\xff\xc3\x28" + data[at + 1 :]
            case 3:
                return b"\xef\xbb\xbf" + data
            case 4:
                return data[:-1] + b"," + data[1:]  # every key twice
            case _:
                return random.randbytes(random.randint(0, 200))


def text_of(value: Any) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        pairs = (f"{json.dumps(key)}:{text_of(item)}" for key, item in value.items())
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


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
    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def next_body(self) -> tuple[str, bytes]:
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
            case 1:  # a value that is valid elsewhere
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
