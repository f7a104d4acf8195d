"""Bounds and steps of any size, in any combination: drawn numbers are valid, and bounds can be reached."""

from __future__ import annotations

import random
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.languages.expr import GrammarRules
from openai_cpu_server.structured.lark.translation import Translation
from tests.structured.making import check_rules
from tests.structured.oracle import Sampler
from tests.structured.test_random import is_valid

EDGES = [2**53, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**19, 10**20, 10**25, 123456789012345678901234, 10**38]
SMALL = [0, 1, 5, 12, 0.5, 0.1, 1.25, 3.999, 1e-5, 1e-7, 2.5e-21, 1e-25, 7e-38, 123456789.5, 1e15, 1e16]
BOUNDS = [sign * x for x in (*SMALL, *EDGES, *map(float, EDGES)) for sign in (1, -1)]
STEPS = [1, 2, 3, 7, 25, 100, 10**20, 1e22, 0.25, 0.1, 0.01, 1.5, 0.125]
bounds, steps = st.sampled_from(BOUNDS), st.sampled_from(STEPS)
facts = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["number", "integer"]),
        "minimum": bounds,
        "maximum": bounds,
        "exclusiveMinimum": bounds,
        "exclusiveMaximum": bounds,
        "multipleOf": steps,
    },
)
combined = st.one_of(
    facts,
    st.tuples(facts, facts).map(lambda pair: {"allOf": list(pair)}),
    st.tuples(facts, facts, facts).map(lambda three: {**three[0], "anyOf": list(three[1:])}),
    st.tuples(facts, facts).map(lambda pair: {**pair[0], "$ref": "#/$defs/x", "$defs": {"x": pair[1]}}),
    st.tuples(facts, bounds).map(lambda pair: {**pair[0], "not": {"const": pair[1]}}),
)
schemas = combined.map(lambda schema: {"allOf": [{"type": "number"}], **schema})


def parts(schema: object) -> list[dict[str, Any]]:
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    return [*([schema] if isinstance(schema, dict) else []), *(x for value in inner for x in parts(value))]


KEYWORDS = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "const"}
OPEN = {"exclusiveMinimum", "exclusiveMaximum"}


def is_promised(schema: dict[str, Any], text: str) -> bool:
    """Return False for long numbers that no bound requires, and for decimals that may round to an open
    bound."""
    whole, _, fraction = text.lstrip("-").partition(".")
    is_short = max(len(whole), len(fraction)) <= 20
    is_apart = not fraction or all(abs(x[key]) < 1e14 for x in parts(schema) for key in x.keys() & OPEN)
    return is_apart and (is_short or schema.keys().isdisjoint({"anyOf", "not"}))


def near(schema: object) -> set[Decimal]:
    """Return the bounds and the multiples next to them."""
    found = {Decimal(0)}
    all_steps = {Decimal(repr(part["multipleOf"])) for part in parts(schema) if "multipleOf" in part}
    with localcontext(prec=200):
        for part in parts(schema):
            for bound in (Decimal(repr(part[key])) for key in part.keys() & KEYWORDS):
                found.add(bound)
                for step in {Decimal(1), *all_steps}:
                    for rounding in (ROUND_FLOOR, ROUND_CEILING):
                        number = (bound / step).to_integral_value(rounding)
                        found |= {(number + more) * step for more in (-1, 0, 1)}
    return found


def plain(value: Decimal) -> str:
    text = f"{value:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def try_compile(schema: dict[str, Any]) -> tuple[GrammarRules | None, str | None]:
    try:
        return compile_schema(schema).rules, None
    except InvalidRequest as error:
        return None, error.code


@settings(max_examples=300, suppress_health_check=list(HealthCheck), derandomize=True, deadline=None)
@given(schemas, st.integers(0, 2**32))
def test_bounds_of_any_size_are_kept_and_can_be_reached(schema: dict[str, Any], seed: int) -> None:
    texts = {plain(x) for x in near(schema)}
    valid = {text for text in texts if is_valid(schema, text)}
    rules, code = try_compile(schema)
    assert code != "invalid_schema" or not valid
    if rules is None:
        return
    grammar, sampler = check_rules(rules), Sampler(Translation(rules).text())
    accepted = {text for text in texts if grammar.check(text).fits}
    assert accepted <= valid
    assert {text for text in valid if is_promised(schema, text)} <= accepted
    for _ in range(3):
        text = sampler.draw(random.Random(seed), longest=120)
        assert text is None or is_valid(schema, text.decode()), text


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "number", "minimum": 1e300}, "minimum"),
        ({"type": "integer", "exclusiveMaximum": -(10**50), "multipleOf": 3}, "exclusiveMaximum"),
        ({"minimum": 1e-300, "maximum": 1e-299}, "minimum"),
        ({"anyOf": [{"type": "string"}, {"type": "number", "minimum": 1e300}]}, "minimum"),
    ],
)
def test_bounds_that_no_written_number_reaches_are_refused_in_words(schema: object, keyword: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{keyword}' takes numbers of more than 40 digits"):
        compile_schema(schema)
