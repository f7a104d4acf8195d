"""Random schemas: what their grammars write, and whatever they accept, fits the schema."""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Iterator
from decimal import Decimal, localcontext
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.gbnf.printer import gbnf_text
from openai_cpu_server.structured.languages.expr import Rules
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import Options, PropertyOrder, Whitespace
from tests.structured.making import check_gbnf, check_rules
from tests.structured.oracle import Sampler, compact
from tests.structured.random_schemas import schemas, values

pytestmark = pytest.mark.thorough

QUICK = settings(max_examples=50, suppress_health_check=list(HealthCheck), derandomize=True)
FORMATS = jsonschema.FormatChecker(["date", "ipv4", "uuid"])


def matches(validator: Any, pattern: str, text: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """By Python's `re`, which means the same by what is drawn here."""
    ends = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
    if isinstance(text, str) and not re.search(ends, text, re.ASCII):
        yield jsonschema.ValidationError("it does not match")


Exact = jsonschema.validators.extend(
    jsonschema.Draft202012Validator,
    {"pattern": matches},
    type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine(
        "integer", lambda _, x: isinstance(x, int | Decimal) and not isinstance(x, bool) and x % 1 == 0
    ),
)


def is_valid(schema: Any, text: str) -> bool:
    """By the reference, in decimal arithmetic; endless references count as valid."""
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    try:
        with localcontext() as context:
            context.prec = 1000
            return Exact(exact, format_checker=FORMATS).is_valid(json.loads(text, parse_float=Decimal))
    except RecursionError:
        return True
    except BaseException as panic:  # the end of the stack within a library of the reference
        if type(panic).__name__ != "PanicException":
            raise
        return True


def rules_of(schema: Any, options: Options | None = None) -> Rules | None:
    """None: it is refused, or names something that it does not enforce, such as a format beside a length that
    leaves nothing of it."""
    try:
        found = compile_schema(schema, options)
    except InvalidRequest:
        return None
    return None if found.unenforced else found.rules


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
            assert is_valid(schema, text.decode()), text


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
    judge(schema, instances)


LONG = settings(QUICK, max_examples=20_000, derandomize=False, print_blob=True)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_night_of_schemas(capsys):
    num_judged = 0

    @LONG
    @given(schemas, st.lists(values, min_size=25, max_size=40))
    def night(schema, instances):
        nonlocal num_judged
        num_judged += judge(schema, instances)

    night()
    with capsys.disabled():
        sys.stdout.write(f"\n{num_judged:,} instances judged\n")
    assert num_judged > 300_000


def judge(schema: Any, instances: list[Any]) -> int:
    """Returns how many it has judged: none where the schema is refused."""
    rules = rules_of(schema)
    if rules is None:
        return 0
    grammar, is_closed = check_rules(rules), '"$ref"' not in json.dumps(schema)
    for value in instances:
        fits, valid = grammar.check(compact(value)).fits, is_valid(schema, compact(value))
        assert valid or not fits, f"accepted: {compact(value)}"
        if valid and is_closed and in_order(schema, value):
            assert fits, f"rejected: {compact(value)}"
    return len(instances)
