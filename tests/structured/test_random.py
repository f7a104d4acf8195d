"""Random schemas: what their grammars write, and whatever they accept, fits the schema."""

from __future__ import annotations

import json
import random
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.gbnf.printer import gbnf_text
from openai_cpu_server.structured.languages.expr import Rules
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import Options, PropertyOrder, Whitespace
from tests.structured.making import check_gbnf, check_rules, schema_to_lark
from tests.structured.oracle import Sampler, compact
from tests.structured.random_schemas import schemas, values

pytestmark = pytest.mark.thorough

QUICK = settings(max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True)
FORMATS = jsonschema.FormatChecker(["date", "ipv4", "uuid"])


def is_valid(schema: Any, value: Any) -> bool:
    """By the reference; endless references count as valid."""
    try:
        return jsonschema.Draft202012Validator(schema, format_checker=FORMATS).is_valid(value)
    except RecursionError:
        return True
    except BaseException as panic:  # the end of the stack within a library of the reference
        if type(panic).__name__ != "PanicException":
            raise
        return True


def as_the_reference_reads(number: str) -> float:
    """For the reference a number of more digits than a float has may be another, and even an integer."""
    assume(Decimal(number) == Decimal(float(number)) or len(number) < 16)
    return float(number)


def rules_of(schema: Any, options: Options | None = None) -> Rules | None:
    try:
        return compile_schema(schema, options).rules
    except InvalidRequest:
        return None


@QUICK
@given(
    schemas, st.integers(0, 2**32), st.sampled_from(list(Whitespace)), st.sampled_from(list(PropertyOrder))
)
def test_drawn_sentences_fit_the_schema(schema, seed, whitespace, order):
    rules = rules_of(schema, Options(whitespace=whitespace, order=order))
    if rules is None:
        return
    sampler, rng = Sampler(Translation(rules).text()), random.Random(seed)
    printed = check_gbnf(gbnf_text(rules))
    for _ in range(3):
        text = sampler.draw(rng, longest=120)
        if text is not None:
            assert printed.check(text).fits, f"what runs is not what is printed: {text!r}"
            assert is_valid(schema, json.loads(text, parse_float=as_the_reference_reads)), text


def in_order(schema: Any, value: Any) -> bool:
    """Whether no object in the value has more than one property: then there is no order to be wrong."""
    if isinstance(value, dict):
        return len(value) < 2 and all(in_order(schema, v) for v in value.values())
    return all(in_order(schema, v) for v in value) if isinstance(value, list) else True


@QUICK
@given(schemas, st.lists(values, min_size=5, max_size=15))
def test_what_is_accepted_is_valid_and_what_is_valid_is_accepted_where_order_does_not_matter(
    schema, instances
):
    rules = rules_of(schema)
    if rules is None:
        return
    grammar, is_closed = check_rules(rules), '"$ref"' not in json.dumps(schema)
    for value in instances:
        fits, valid = grammar.check(compact(value)).fits, is_valid(schema, value)
        assert valid or not fits, f"accepted: {compact(value)}"
        if valid and is_closed and in_order(schema, value):
            assert fits, f"rejected: {compact(value)}"


@pytest.mark.parametrize("seed", range(3))
def test_the_review_schema_is_always_within_bounds(seed):
    text = {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2}
    schema = {
        "type": "object",
        "properties": {"rating": {"type": "integer", "minimum": 1, "maximum": 5}, "pros": text, "cons": text},
        "required": ["rating", "pros", "cons"],
        "additionalProperties": False,
    }
    sampler, rng = Sampler(schema_to_lark(schema)), random.Random(seed)
    drawn = [json.loads(t) for _ in range(30) if (t := sampler.draw(rng)) is not None]
    assert len(drawn) > 15
    assert all(is_valid(schema, value) for value in drawn)
    assert {value["rating"] for value in drawn} == {1, 2, 3, 4, 5}
