"""Hypothesis strategies: schemas of every keyword, and values that are near to them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

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


def _unevaluated(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    rest = st.just(False) | inner
    return st.fixed_dictionaries({"unevaluatedProperties": rest}) | st.fixed_dictionaries(
        {"unevaluatedItems": rest, "contains": inner}
    )


def _combined(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    several = st.lists(inner, min_size=1, max_size=3)
    return st.one_of(
        _some(allOf=several, anyOf=several, oneOf=several),
        st.tuples(_some(allOf=several, anyOf=several, oneOf=several), _unevaluated(inner)).map(
            lambda pair: {**pair[0], **pair[1]}
        ),
        inner.map(lambda s: {"not": s}),
        st.tuples(inner, inner, inner).map(lambda s: {"if": s[0], "then": s[1], "else": s[2]}),
        st.tuples(inner, inner).map(
            lambda s: {**(s[0] if isinstance(s[0], dict) else {}), "anyOf": [s[1], True]}
        ),
    )


def _extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return _objects(inner) | _arrays(inner) | _combined(inner)


_any_schema = st.recursive(_leaves, _extended, max_leaves=8)
schemas = st.tuples(_any_schema, _any_schema).map(
    lambda pair: {**(pair[0] if isinstance(pair[0], dict) else {"allOf": [pair[0]]}), "$defs": {"x": pair[1]}}
)
