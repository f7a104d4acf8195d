"""Chains of definitions and of rules, through whatever can hold a schema or an expression.

As a program, it compiles some of them in a thread with an ordinary stack, and writes a line for each. Its
death is what `test_chains.py` looks for.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.options import Options
from tests.structured.making import check_gbnf, check_schema

STACK_BYTES = 8 * 2**20
_FRAMES_OF_CALLERS = 60
"""A server's own calls lie above the compiler's."""

Schema = dict[str, object]
SCHEMAS: dict[str, Callable[[Schema], Schema]] = {
    "properties": lambda n: {"type": "object", "properties": {"a": n}},
    "required": lambda n: {
        "type": "object",
        "properties": {"a": n},
        "required": ["a"],
        "additionalProperties": False,
    },
    "patternProperties": lambda n: {"type": "object", "patternProperties": {"^a": n}},
    "additionalProperties": lambda n: {"type": "object", "additionalProperties": n},
    "unevaluatedProperties": lambda n: {"type": "object", "unevaluatedProperties": n},
    "unevaluatedProperties beside": lambda n: {"allOf": [n], "unevaluatedProperties": False},
    "propertyNames": lambda n: {"type": "object", "propertyNames": n},
    "items": lambda n: {"type": "array", "items": n},
    "prefixItems": lambda n: {"type": "array", "prefixItems": [n, {"type": "null"}]},
    "additionalItems": lambda n: {"type": "array", "items": [n], "additionalItems": n},
    "unevaluatedItems": lambda n: {"type": "array", "unevaluatedItems": n},
    "contains": lambda n: {"type": "array", "contains": n},
    "minContains": lambda n: {"type": "array", "contains": n, "minContains": 2, "maxContains": 3},
    "uniqueItems": lambda n: {"type": "array", "items": n, "uniqueItems": True, "maxItems": 2},
    "anyOf": lambda n: {"anyOf": [n, {"type": "null"}]},
    "anyOf of arrays": lambda n: {"anyOf": [{"type": "array", "items": n}, {"type": "string"}]},
    "oneOf": lambda n: {"oneOf": [{"type": "null"}, n]},
    "oneOf of arrays": lambda n: {
        "oneOf": [{"type": "array", "items": n}, {"type": "array", "prefixItems": [n], "minItems": 3}]
    },
    "allOf": lambda n: {"allOf": [n, {"minimum": 1}]},
    "allOf of objects": lambda n: {
        "allOf": [{"properties": {"a": n}}, {"required": ["a"]}],
        "type": "object",
    },
    "not": lambda n: {"not": n},
    "not in items": lambda n: {"type": "array", "items": {"not": n}},
    "if": lambda n: {"if": n, "then": {"type": "integer"}},
    "then": lambda n: {"if": {"type": "object"}, "then": n, "else": {"type": "null"}},
    "else": lambda n: {"if": {"type": "array"}, "then": {"type": "array", "items": n}, "else": n},
    "dependentSchemas": lambda n: {"type": "object", "properties": {"a": {}}, "dependentSchemas": {"a": n}},
    "dependencies": lambda n: {"type": "object", "dependencies": {"a": n}},
    "$ref": lambda n: n,
    "$ref beside": lambda n: {**n, "minProperties": 1},
    "twice": lambda n: {"type": "object", "properties": {"a": n, "b": n}},
    "twice in anyOf": lambda n: {
        "anyOf": [{"type": "array", "items": n}, {"type": "object", "properties": {"a": n}}]
    },
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
_ENDS = {
    "leaf": {"type": "integer"},
    "anything": {},
    "circle": {"type": "array", "items": {"$ref": "#/$defs/d0"}},
}


def schema(number: int) -> Schema:
    """The generated schema of this number: a chain of definitions, or of schemas within one another."""
    chance = random.Random(number)
    links = [SCHEMAS[kind] for kind in kinds(chance, SCHEMAS)]
    if chance.random() < 0.2:
        nested: Schema = {"type": "integer"}
        for _ in range(_length(chance, 45)):
            nested = chance.choice(links)(nested)
        return nested
    length = _length(chance, 5_000)
    chain = {f"d{i}": chance.choice(links)({"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    definitions = {**chain, f"d{length}": _ENDS[chance.choice(list(_ENDS))]}
    return {"$defs": definitions, "$ref": "#/$defs/d0"}


def grammar(number: int) -> str:
    """The generated grammar of this number: a chain of rules, perhaps with ways back."""
    chance = random.Random(1_000_000 + number)
    links = [RULES[kind] for kind in kinds(chance, RULES)]
    length = _length(chance, 5_000)
    lines = [f"r{i} ::= {chance.choice(links)(f'r{i + 1}')}" for i in range(length)]
    back = f' | "z" r{chance.randrange(length)}' if chance.random() < 0.5 else ""
    lines.append(f'r{length} ::= "x"{back}')
    chance.shuffle(lines)
    again = ' | "y" r0 "y"' if back else ""
    return "\n".join([f"root ::= r0{again}", *lines])


def kinds(chance: random.Random, known: Iterable[str]) -> list[str]:
    """Which links a chain has. It is the first thing that is drawn."""
    return chance.sample(list(known), chance.choice((1, 2, 2, 3, 6)))


def _length(chance: random.Random, most: int) -> int:
    """Between 10 and `most`; each order of magnitude is as likely as another."""
    return int(10 * (most / 10) ** chance.random())


def outcome(compile_it: Callable[[], object]) -> str:
    try:
        compile_it()
    except InvalidRequest as error:
        return f"400 {error}"
    return "compiled"


def _report(kind: str, numbers: range) -> None:
    for number in numbers:
        _write(f"{kind} {number} ")
        found = _under(_FRAMES_OF_CALLERS, _maker(kind, number))
        _write(found.splitlines()[0] + "\n")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _maker(kind: str, number: int) -> Callable[[], object]:
    if kind == "grammar":
        return lambda: check_gbnf(grammar(number))
    is_strict = number % 2 == 0
    return lambda: check_schema(schema(number), Options(strict=is_strict))


def _under(frames: int, compile_it: Callable[[], object]) -> str:
    return _under(frames - 1, compile_it) if frames else outcome(compile_it)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_report, args=(sys.argv[1], range(*map(int, sys.argv[2:4]))))
    thread.start()
    thread.join()
