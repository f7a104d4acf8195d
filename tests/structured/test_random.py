"""Random schemas: what their grammars write, and whatever they accept, fits the schema."""

from __future__ import annotations

import json
import random
import re
import sys
from decimal import Decimal
from fractions import Fraction
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
from tests.structured.making import check_gbnf, check_rules
from tests.structured.oracle import Sampler, compact
from tests.structured.random_schemas import schemas, values

pytestmark = pytest.mark.thorough

QUICK = settings(max_examples=50, suppress_health_check=list(HealthCheck), derandomize=True)
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
        fits, valid = grammar.check(compact(value)).fits, is_valid(schema, value)
        assert valid or not fits, f"accepted: {compact(value)}"
        if valid and is_closed and in_order(schema, value):
            assert fits, f"rejected: {compact(value)}"
    return len(instances)


BOUNDS = [0, -0.0, 0.5, -0.9, 1, -1, -5, 7, 10, 99, 100, -100, 0.001, -12.75, 3.25, 1e3, 12345, -0.1, 1e-7]
STEPS = [1, 2, 3, 5, 7, 10, 25, 100, 0.5, 0.25, 0.1, 0.01, 1.5]
LIMITS = {
    "minimum": lambda x, bound: x >= bound,
    "maximum": lambda x, bound: x <= bound,
    "exclusiveMinimum": lambda x, bound: x > bound,
    "exclusiveMaximum": lambda x, bound: x < bound,
}


def random_numbers(rng: random.Random) -> dict[str, Any]:
    found = {keyword: rng.choice(BOUNDS) for keyword in LIMITS if rng.random() < 0.35}
    if rng.random() < 0.3:
        found["multipleOf"] = rng.choice(STEPS)
    if rng.random() < 0.15:
        found["enum"] = rng.sample(BOUNDS, 3)
    if rng.random() < 0.2:
        found["not"] = random_numbers(rng)
    if rng.random() < 0.2:
        found["anyOf"] = [random_numbers(rng), random_numbers(rng)]
    return {**found, "type": rng.choice(["integer", "number", "number"])}


def fits_exactly(schema: dict[str, Any], x: Decimal) -> bool:
    """In decimal arithmetic, whereas the reference computes with floats."""
    told = [
        check(x, Decimal(repr(schema[keyword]))) for keyword, check in LIMITS.items() if keyword in schema
    ]
    if "multipleOf" in schema:
        told.append(Fraction(x) % Fraction(repr(schema["multipleOf"])) == 0)
    if "enum" in schema:
        told.append(x in [Decimal(repr(value)) for value in schema["enum"]])
    if "not" in schema:
        told.append(not fits_exactly(schema["not"], x))
    if "anyOf" in schema:
        told.append(any(fits_exactly(each, x) for each in schema["anyOf"]))
    return all(told) and (schema["type"] == "number" or x == x.to_integral_value())


def random_number(rng: random.Random) -> str:
    """Near a bound, or anywhere; perhaps no JSON."""
    near = Decimal(repr(rng.choice(BOUNDS))) + rng.choice([0, 1, -1]) * Decimal(10) ** -rng.randint(0, 4)
    anywhere = f"{rng.choice(['', '-', '--', '+'])}{rng.randint(0, 10 ** rng.randint(0, 6))}"
    text = f"{near:f}" if rng.random() < 0.6 else anywhere
    ends = ["", "", ".0", ".00", ".5", "e0", "e1", "E-2", "e+3", "0", ".", "e"]
    return rng.choice(["", "", "", "-", "0"]) + text + rng.choice(ends)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(20))
def test_a_night_of_numbers(seed):
    rng, num_taken = random.Random(seed), 0
    for _ in range(150):
        schema = random_numbers(rng)
        if (rules := rules_of(schema)) is None:
            continue
        grammar = check_rules(rules)
        for text in {random_number(rng) for _ in range(60)}:
            if grammar.check(text).fits:
                json.loads(text)
                assert fits_exactly(schema, Decimal(text)), (schema, text)
                num_taken += 1
    assert num_taken > 150


ATOMS = ["a", "b", "1", "_", "-", " ", "é", ".", "[ab]", "[^a]", r"\d", r"\w", r"\s", r"\S", r"\W", "[a-z1]"]
LETTERS = "ab1_- é\nz"


def random_pattern(rng: random.Random, depth: int = 0) -> str:
    kind = rng.random()
    if depth > 2 or kind < 0.4:
        return "".join(
            rng.choice(ATOMS) + rng.choice(["", "", "", "?", "*", "+", "{2}", "{1,3}"]) for _ in range(2)
        )
    if kind < 0.55:
        return f"(?:{random_pattern(rng, depth + 1)}|{random_pattern(rng, depth + 1)})"
    if kind < 0.65:
        return f"(?:{random_pattern(rng, depth + 1)}){rng.choice(['*', '+', '?', '{0,2}'])}"
    if kind < 0.75:
        return f"{rng.choice(['(?=', '(?!'])}{random_pattern(rng, depth + 1)}){rng.choice(ATOMS)}"
    if kind < 0.8:
        return rf"\b{random_pattern(rng, depth + 1)}"
    return random_pattern(rng, depth + 1) + random_pattern(rng, depth + 1)


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("seed", range(20))
def test_a_night_of_patterns(seed):
    """Against Python's `re`, which means the same by what is drawn here.

    Where two patterns and a length of 10,000 come together, llguidance refuses very few, and in few its work
    for many texts is bounded: then it rejects.
    """
    rng, num_checked, num_refused = random.Random(seed), 0, 0
    for _ in range(150):
        first, last = rng.choice(["", "^"]), rng.choice(["", "$"])
        patterns = [first + random_pattern(rng) + last for _ in range(rng.choice([1, 1, 2]))]
        low, high = rng.choice([(0, None), (0, 5), (2, 400), (0, 10_000)])
        schema = {"type": "string", "allOf": [{"pattern": p} for p in patterns], "minLength": low}
        schema |= {} if high is None else {"maxLength": high}
        read = [re.compile(p[:-1] + r"\Z" if p.endswith("$") else p, re.ASCII) for p in patterns]
        rules = rules_of(schema)
        texts = {"".join(rng.choices(LETTERS, k=rng.randint(0, 8))) for _ in range(60)}
        wanted = {t: all(r.search(t) for r in read) and low <= len(t) <= (high or 99) for t in texts}
        if rules is None:
            continue
        is_hard = len(patterns) == 2 and high == 10_000
        try:
            grammar = check_rules(rules)
        except InvalidRequest:
            num_refused += 1
            if is_hard:
                continue
            raise
        for text, is_right in wanted.items():
            found = grammar.check(json.dumps(text, ensure_ascii=False)).fits
            assert is_right or not found, (schema, text)
            assert found or not is_right or is_hard, (schema, text)
            num_checked += 1
    assert num_checked > 3_000
    assert num_refused <= 1
