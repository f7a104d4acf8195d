"""Chains of definitions or rules of any length are compiled, or refused in words, within the stack."""

import subprocess
import sys

import pytest

from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.options import InvalidGrammar, Limits, Options, SchemaTooLarge
from tests.structured.chains import chain
from tests.structured.making import check_gbnf, check_schema
from tests.structured.oracle import check_texts

_BATCH = 5


def compile_chains(kind, first, count=_BATCH):
    command = [sys.executable, "-m", "tests.structured.chains", kind, str(first), str(first + count)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, f"it crashed ({done.returncode}) at {lines[-1:]}: {done.stderr[-2_000:]}"
    return [line.split(" ", 2)[2] for line in lines]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "first", [0, *(pytest.param(first, marks=pytest.mark.slow) for first in range(_BATCH, 1_000, _BATCH))]
)
@pytest.mark.parametrize("kind", ["grammar", "schema"])
def test_generated_chains_are_compiled_or_refused(kind, first):
    found = compile_chains(kind, first)
    assert len(found) == _BATCH
    assert all(result == "compiled" or result.startswith("400 ") for result in found)
    assert found.count("compiled") >= _BATCH // 3


def arrays(length, last):
    return chain(length, lambda n: {"type": "array", "items": n, "minItems": 1, "maxItems": 1}, last)


def test_a_long_chain_is_compiled_from_its_end():
    check = check_schema(arrays(2_500, {"type": "integer"}))
    deep = "[" * 2_500 + "7" + "]" * 2_500
    check_texts(check, [deep], [deep.replace("7", ""), deep[1:-1]])


def test_a_wide_object_is_a_long_chain_too():
    names = [f"p{i}" for i in range(1_500)]
    check = check_schema({"properties": {n: {"type": "integer"} for n in names}, "type": "object"})
    check_texts(check, ['{"p3":1,"p1499":2}'], ['{"p1499":1,"p3":"x"}'])


def test_a_grammar_with_a_long_chain_has_its_language():
    links = "\n".join(f'r{i} ::= "a" r{i + 1} "b" | "c"' for i in range(3_000))
    check = check_gbnf(f'root ::= r0 root? "."\n{links}\nr3000 ::= "x"')
    check_texts(check, ["aacbb.", "aacbbc..", "a" * 3_000 + "x" + "b" * 3_000 + "."], ["aacb."])


def test_a_long_circle_of_definitions_is_refused_with_its_place():
    with pytest.raises(SchemaTooLarge, match=r"circle of definitions; refer back .* sooner") as caught:
        compile_schema(arrays(2_000, {"type": "array", "items": {"$ref": "#/$defs/d0"}}))
    assert caught.value.limit == "levels"
    assert caught.value.path.startswith("/$defs/d")


def test_a_short_circle_is_compiled():
    check = check_schema(arrays(200, {"type": "array", "items": {"$ref": "#/$defs/d0"}}))
    assert check.check("[" * 401 + "]" * 401).accepted


def test_a_long_circle_of_rules_is_refused_by_name():
    links = "\n".join(f'r{i} ::= "a" r{i + 1}' for i in range(2_000))
    with pytest.raises(InvalidGrammar, match=r"r\d+ -> r\d+ .* shorter"):
        check_gbnf(f'root ::= r0\n{links}\nr2000 ::= "x" | "y" r0')


def test_references_that_stand_for_the_same_value_are_limited():
    extended = chain(201, lambda n: {"allOf": [n, {"minimum": 1}]}, {"type": "integer"})
    with pytest.raises(SchemaTooLarge, match="stands for the same value") as caught:
        compile_schema(extended)
    assert caught.value.limit == "references"
    assert caught.value.path.startswith("/$defs/d")
    assert compile_schema(extended, Options(limits=Limits(references=300)))


def test_a_chain_of_mere_references_counts_once():
    assert check_schema(chain(3_000, lambda n: n, {"type": "integer"})).check("12").fits
