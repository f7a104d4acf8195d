"""Chains of definitions and of rules, through every keyword or operator that can hold one.

As a program, it compiles some of them in a thread with an ordinary stack, and writes a line for each.
`test_chains.py` checks that it does not crash.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.options import Options
from tests.structured.making import check_gbnf, check_schema

STACK_BYTES = 8 * 2**20
_FRAMES_OF_CALLERS = 60  # a server's own calls lie above the compiler's

Schema = dict[str, object]
OBJECT, ARRAY, NULL = {"type": "object"}, {"type": "array"}, {"type": "null"}
CLOSED = {**OBJECT, "additionalProperties": False}
SCHEMAS: dict[str, Callable[[Schema], Schema]] = {
    "properties": lambda n: {**OBJECT, "properties": {"a": n}},
    "required": lambda n: {**CLOSED, "properties": {"a": n}, "required": ["a"]},
    "patternProperties": lambda n: {**OBJECT, "patternProperties": {"^a": n}},
    "additionalProperties": lambda n: {**OBJECT, "additionalProperties": n},
    "unevaluatedProperties": lambda n: {**OBJECT, "unevaluatedProperties": n},
    "unevaluatedProperties beside": lambda n: {"allOf": [n], "unevaluatedProperties": False},
    "propertyNames": lambda n: {**OBJECT, "propertyNames": n},
    "items": lambda n: {**ARRAY, "items": n},
    "prefixItems": lambda n: {**ARRAY, "prefixItems": [n, NULL]},
    "additionalItems": lambda n: {**ARRAY, "items": [n], "additionalItems": n},
    "unevaluatedItems": lambda n: {**ARRAY, "unevaluatedItems": n},
    "contains": lambda n: {**ARRAY, "contains": n},
    "minContains": lambda n: {**ARRAY, "contains": n, "minContains": 2, "maxContains": 3},
    "uniqueItems": lambda n: {**ARRAY, "items": n, "uniqueItems": True, "maxItems": 2},
    "anyOf": lambda n: {"anyOf": [n, NULL]},
    "anyOf of arrays": lambda n: {"anyOf": [{**ARRAY, "items": n}, {"type": "string"}]},
    "oneOf": lambda n: {"oneOf": [NULL, n]},
    "oneOf of arrays": lambda n: {"oneOf": [{"items": n}, {"prefixItems": [n], "minItems": 3}], **ARRAY},
    "allOf": lambda n: {"allOf": [n, {"minimum": 1}]},
    "allOf of objects": lambda n: {**OBJECT, "allOf": [{"properties": {"a": n}}, {"required": ["a"]}]},
    "not": lambda n: {"not": n},
    "not in items": lambda n: {**ARRAY, "items": {"not": n}},
    "if": lambda n: {"if": n, "then": {"type": "integer"}},
    "then": lambda n: {"if": OBJECT, "then": n, "else": NULL},
    "else": lambda n: {"if": ARRAY, "then": {**ARRAY, "items": n}, "else": n},
    "dependentSchemas": lambda n: {**OBJECT, "properties": {"a": {}}, "dependentSchemas": {"a": n}},
    "dependencies": lambda n: {**OBJECT, "dependencies": {"a": n}},
    "$ref": lambda n: n,
    "$ref beside": lambda n: {**n, "minProperties": 1},
    "twice": lambda n: {**OBJECT, "properties": {"a": n, "b": n}},
    "twice in anyOf": lambda n: {"anyOf": [{**ARRAY, "items": n}, {**OBJECT, "properties": {"a": n}}]},
}
RULES: dict[str, Callable[[str], str]] = {
    "name": lambda n: n,
    "sequence": lambda n: f'"a" {n}',
    "middle": lambda n: f'"a" {n} "b" | "c" {n} "d"',
    "alternative": lambda n: f'"a" {n} | "b" {n} "c" | "b"',
    "repetition": lambda n: f'"a" ({n} "c")*',
    "optional": lambda n: f'"b" {n}? "c"',
    "counted": lambda n: f'"a" ({n} "," ){{2,5}}',
    "groups": lambda n: f'"a" (("b" | ({n} "c")* "e") "d")?',
    "deep groups": lambda n: '"a" ' + '("b" ' * 20 + n + ' "c")*' * 20,
    "class": lambda n: f"[a-z] [^a-z]* {n}",
    "empty": lambda n: f'"" {n}',
}
NUM_KINDS = (1, 2, 2, 3, 6)  # kinds of links in a chain
_ENDS: list[Schema] = [{"type": "integer"}, {}, {"type": "array", "items": {"$ref": "#/$defs/d0"}}]


def chain(length: int, link: Callable[[Schema], Schema], last: Schema) -> Schema:
    links = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$defs": {**links, f"d{length}": last}, "$ref": "#/$defs/d0"}


def schema(number: int) -> Schema:
    rng = random.Random(number)
    links = [SCHEMAS[kind] for kind in rng.sample(list(SCHEMAS), rng.choice(NUM_KINDS))]
    if rng.random() < 0.2:
        nested: Schema = {"type": "integer"}
        for _ in range(_length(rng, 45)):
            nested = rng.choice(links)(nested)
        return nested
    return chain(_length(rng, 5_000), lambda n: rng.choice(links)(n), rng.choice(_ENDS))


def grammar(number: int) -> str:
    rng = random.Random(1_000_000 + number)
    links = [RULES[kind] for kind in rng.sample(list(RULES), rng.choice(NUM_KINDS))]
    length = _length(rng, 5_000)
    lines = [f"r{i} ::= {rng.choice(links)(f'r{i + 1}')}" for i in range(length)]
    back = f' | "z" r{rng.randrange(length)}' if rng.random() < 0.5 else ""
    lines.append(f'r{length} ::= "x"{back}')
    rng.shuffle(lines)
    again = ' | "y" r0 "y"' if back else ""
    return "\n".join([f"root ::= r0{again}", *lines])


def _length(rng: random.Random, longest: int) -> int:
    return int(10 * (longest / 10) ** rng.random())


def compile_below(frames: int, kind: str, number: int) -> str:
    if frames:
        return compile_below(frames - 1, kind, number)
    try:
        if kind == "grammar":
            check_gbnf(grammar(number))
        else:
            check_schema(schema(number), Options(strict=number % 2 == 0))
    except InvalidRequest as error:
        return f"400 {error}".splitlines()[0]
    return "compiled"


def report() -> None:
    kind, *ends = sys.argv[1:4]
    for number in range(*map(int, ends)):
        sys.stdout.write(f"{kind} {number} ")
        sys.stdout.flush()
        sys.stdout.write(compile_below(_FRAMES_OF_CALLERS, kind, number) + "\n")


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=report).start()
