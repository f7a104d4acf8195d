"""Hostile bodies, made from the OpenAPI document: nearly right, wrong in one place, or no JSON at all."""

from __future__ import annotations

import json
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
    """JSON text that is to be put in as it is."""


class Bodies:
    """From a seed always the same ones. `document`: of `/openapi.json`."""

    def __init__(self, document: Json, seed: int) -> None:
        self._schemas: Json = document["components"]["schemas"]
        self._random = Random(seed)
        self._operations = [
            (path, operation["requestBody"]["content"]["application/json"]["schema"])
            for path, item in document["paths"].items()
            for operation in item.values()
            if "application/json" in operation.get("requestBody", {}).get("content", {})
        ]

    def one(self) -> tuple[str, bytes]:
        path, schema = self._random.choice(self._operations)
        text = text_of(self._spoiled(self._value(schema, 0)))
        data = text.encode("utf-8", errors="surrogatepass")
        return path, self._mangled(data) if self._random.random() < 0.25 else data

    def _value(self, schema: Json, depth: int) -> Any:
        """Of this schema, mostly; few optional fields, for one that is wrong hides the others."""
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
        found = {name: self._value(properties[name], depth + 1) for name in names}
        more = schema.get("additionalProperties")
        if isinstance(more, dict) and depth < 6:
            found["type"] = self._value(more, depth + 1)
        return found

    def _spoiled(self, value: Any) -> Any:
        random = self._random
        if not isinstance(value, (dict, list)) or not value or random.random() < 0.1:
            return Raw(random.choice(VALUES)) if random.random() < 0.7 else value
        if isinstance(value, list):
            index = random.randrange(len(value))
            return [self._spoiled(item) if i == index else item for i, item in enumerate(value)]
        name = random.choice(list(value))
        spoiled = {key: self._spoiled(item) if key == name else item for key, item in value.items()}
        if random.random() < 0.05:
            odd = random.choice(["\u0000", "\ud800", "x" * 300, "__proto__", ""])
            spoiled[odd] = Raw(random.choice(VALUES))
        return spoiled

    def _mangled(self, data: bytes) -> bytes:
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
