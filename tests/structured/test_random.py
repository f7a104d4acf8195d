"""Random schemas: texts that their grammars write or accept fit the schema."""

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
from openai_cpu_server.structured.languages.expr import GrammarRules
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import Options, PropertyOrder, Whitespace
from tests.structured.making import check_rules
from tests.structured.oracle import Sampler, compact

pytestmark = pytest.mark.thorough

NAMES = ["a", "b", "ab", "c", 'd"x', "é"]
TEXTS = ["", "a", "b", "abc", "ab", "abab", "x", "é\n", "12", "2024-02-29", "1.2.3.4", " "]
NUMBERS = [0, 1, 2, -3, 5, 7, 10, 15, 100, 0.5, 1.5, -0.5, 3.25, 99, 12345, -0.1, -12.75, 0.001]
BOUNDS = [0, -0.0, 0.5, -0.9, 1, -1, -5, 2.5, 7, 10, 99, 100, -100, 0.001, -12.75, 3.25, 1e3, 12345, 1e-7]
STEPS = [1, 2, 3, 5, 7, 10, 25, 100, 0.5, 0.25, 0.1, 0.01, 1.5]
PATTERNS = ["^a", "b$", "^[a-c]+$", "x|y", "^(ab)*$", "[^a]", "^.{2,4}$", "^\\d+$", "é"]

atoms = st.sampled_from(["a", "b", "1", "_", "-", " ", "é", ".", "[ab]", "[^a]", r"\d", r"\w", r"\S", r"\W"])
repeated = st.tuples(atoms, st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{1,3}"])).map("".join)
parts = st.recursive(
    repeated,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("(?:{0[0]}|{0[1]})".format),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{0,2}"])).map("(?:{0[0]}){0[1]}".format),
        st.tuples(st.sampled_from("=!"), inner, atoms).map("(?{0[0]}{0[1]}){0[2]}".format),
        inner.map(r"\b{}".format),
    ),
    max_leaves=4,
)
patterns = st.sampled_from(PATTERNS) | st.tuples(
    st.sampled_from(["", "^"]), parts, st.sampled_from(["", "$"])
).map("".join)
scalars = st.sampled_from([None, True, False, *TEXTS, *NUMBERS]) | st.text("ab1_- é\nz", max_size=8)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "zz"]), inner, max_size=4)
    ),
    max_leaves=8,
)


def _some(**keywords: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keywords)


_numeric = _some(
    type=st.sampled_from(["integer", "number"]),
    minimum=st.sampled_from(BOUNDS),
    exclusiveMinimum=st.sampled_from(BOUNDS),
    maximum=st.sampled_from(BOUNDS),
    exclusiveMaximum=st.sampled_from(BOUNDS),
    multipleOf=st.sampled_from(STEPS),
)
_textual = _some(
    type=st.just("string"),
    minLength=st.integers(0, 3),
    maxLength=st.integers(2, 6),
    pattern=patterns,
    format=st.sampled_from(["date", "ipv4", "uuid"]),
)
_leaves = st.one_of(
    st.booleans(),
    _numeric,
    _textual,
    st.lists(values, min_size=1, max_size=4).map(lambda v: {"enum": v}),
    values.map(lambda v: {"const": v}),
    st.sampled_from(["null", "boolean", "integer", "string", "object", "array"]).map(lambda t: {"type": t}),
    st.just({"$ref": "#/$defs/x"}),
)


def _objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(
        type=st.just("object"),
        properties=st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
        required=st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        additionalProperties=inner,
        patternProperties=st.dictionaries(st.sampled_from(["^a", "b", "^c$", "."]), inner, max_size=1),
        minProperties=st.integers(0, 2),
        maxProperties=st.integers(1, 3),
        propertyNames=st.just({"pattern": "^[a-d]"}),
        dependentRequired=st.just({"a": ["b"]}),
    )


def _arrays(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return _some(
        type=st.just("array"),
        items=inner,
        prefixItems=st.lists(inner, min_size=1, max_size=2),
        minItems=st.integers(0, 2),
        maxItems=st.integers(1, 3),
        contains=inner,
        minContains=st.integers(0, 2),
        maxContains=st.integers(1, 2),
        uniqueItems=st.booleans(),
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several, rest = st.lists(inner, min_size=1, max_size=3), st.just(False) | inner
    some = _some(allOf=several, anyOf=several, oneOf=several)
    unevaluated = st.fixed_dictionaries({"unevaluatedProperties": rest}) | st.fixed_dictionaries(
        {"unevaluatedItems": rest, "contains": inner}
    )
    return st.one_of(
        some,
        st.tuples(some, unevaluated).map(lambda pair: {**pair[0], **pair[1]}),
        inner.map(lambda s: {"not": s}),
        st.tuples(inner, inner, inner).map(lambda s: {"if": s[0], "then": s[1], "else": s[2]}),
        st.tuples(inner, inner).map(
            lambda s: {**(s[0] if isinstance(s[0], dict) else {}), "anyOf": [s[1], True]}
        ),
    )


_any_schema = st.recursive(_leaves, lambda one: _objects(one) | _arrays(one) | _combined(one), max_leaves=8)
schemas = st.tuples(_any_schema, _any_schema).map(
    lambda pair: {**(pair[0] if isinstance(pair[0], dict) else {"allOf": [pair[0]]}), "$defs": {"x": pair[1]}}
)


QUICK = settings(max_examples=50, suppress_health_check=list(HealthCheck), derandomize=True)
FORMATS = jsonschema.FormatChecker(["date", "ipv4", "uuid"])


def matches(validator: Any, pattern: str, text: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """Match by Python's `re`, which agrees on the patterns that are drawn here."""
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
    exact = json.loads(json.dumps(schema), parse_float=Decimal)
    try:
        with localcontext() as context:
            context.prec = 1000
            return Exact(exact, format_checker=FORMATS).is_valid(json.loads(text, parse_float=Decimal))
    except RecursionError:
        return True
    except BaseException as panic:  # a stack overflow in a library of `jsonschema`
        if type(panic).__name__ != "PanicException":
            raise
        return True


def rules_of(schema: Any, options: Options | None = None) -> GrammarRules | None:
    """Return None if the schema is refused, or has something that is not enforced."""
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
    for _ in range(3):
        text = sampler.draw(rng, longest=120)
        if text is not None:
            assert is_valid(schema, text.decode()), text


def has_no_order(schema: Any, value: Any) -> bool:
    """Return True if no object in the value has two properties, which could stand in another order."""
    if isinstance(value, dict):
        return len(value) < 2 and all(has_no_order(schema, v) for v in value.values())
    return all(has_no_order(schema, v) for v in value) if isinstance(value, list) else True


@QUICK
@given(schemas, st.lists(values, min_size=5, max_size=15))
def test_accepted_values_are_valid_and_valid_values_are_accepted_where_order_does_not_matter(
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
    rules = rules_of(schema)
    if rules is None:
        return 0
    grammar, is_closed = check_rules(rules), '"$ref"' not in json.dumps(schema)
    for value in instances:
        fits, valid = grammar.check(compact(value)).fits, is_valid(schema, compact(value))
        assert valid or not fits, f"accepted: {compact(value)}"
        if valid and is_closed and has_no_order(schema, value):
            assert fits, f"rejected: {compact(value)}"
    return len(instances)
