"""minimum, maximum, exclusive bounds, multipleOf."""

import contextlib

import pytest

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import compile_schema
from tests.structured.making import check_schema
from tests.structured.oracle import check, check_spelling, table

LARGEST, LIMITS = 1.7976931348623157e308, [2**63 - 1, -(2**63), 2**64 - 1]


test_cases = table({
    "exclusive bounds of draft 4": [
        ({"$schema": "http://json-schema.org/draft-04/schema#", "type": "integer", "minimum": 1,
          "exclusiveMinimum": True, "maximum": 4, "exclusiveMaximum": False}, [2, 3, 4], [1, 5])],
    "a lower bound of zero keeps exponents": [
        ({"type": "number", "minimum": 0}, [0, 1.5, 1e30, 1e-9], [-1, -0.5, -1e30])],
    "bounds apply to numbers only": [({"minimum": 5}, [5, "a", None, []], [4])],
    "a few multiples between two bounds are listed": [
        ({"type": "integer", "multipleOf": 1024, "minimum": 1, "maximum": 65536}, [1024, 65536, 3072],
         [0, 1, 1000, 66560]),
        ({"type": "integer", "allOf": [{"multipleOf": 60}, {"multipleOf": 90}], "minimum": -200,
          "maximum": 400}, [-180, 0, 180, 360], [60, 90, 540])],
    "many remainders": [
        ({"type": "integer", "multipleOf": 128, "minimum": 0}, [0, 128, 128 * 10**12], [-128, 64, 1]),
        ({"type": "integer", "multipleOf": 999}, [0, 999, -999, 1998], [998, 1]),
        ({"type": "integer", "multipleOf": 3600, "minimum": -7200, "maximum": 10**12}, [-7200, 0, 3600],
         [-10800, 1, 10**12 + 800]),
        ({"type": "integer", "multipleOf": 4096, "exclusiveMinimum": -4096}, [0, 4096], [-4096, 1]),
        ({"type": "integer", "multipleOf": 128, "minimum": -(2**63), "maximum": 2**63 - 1},
         [-128, 0, 2**53, -(2**53)], [2**63, -(2**63) - 128, 1]),
        ({"multipleOf": 128}, [128, "a", None], [1]),
        ({"type": ["integer", "null"], "multipleOf": 48}, [48, -96, None], [47]),
        ({"type": "array", "items": {"type": "integer", "multipleOf": 48, "exclusiveMinimum": 0}},
         [[], [48, 96]], [[0], [47], [48, 1]]),
        ({"anyOf": [{"type": "integer", "multipleOf": 48}, {"enum": [7]}, {"multipleOf": 100, "minimum": 0}]},
         [48, 7, 100, 4800], [8, -100]),
        ({"type": "integer", "allOf": [{"multipleOf": 60}, {"multipleOf": 90}], "minimum": 0},
         [0, 180, 360], [90, 60]),
        ({"type": "integer", "multipleOf": 128, "not": {"const": 256}}, [128], [256, 1])],
    "numbers as programs write them": [
        ({"type": "number"}, [*LIMITS, LARGEST, 5e-324, 0.00012345678901234567, 1e16], ["a"]),
        ({"type": "integer"}, LIMITS, [0.5])],
    "bounds as large as numbers get": [
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, LIMITS[:2], [2**63, -(2**63) - 1]),
        ({"type": "number", "minimum": -LARGEST, "maximum": LARGEST}, [1, -123456.5, 1e300], ["a"])],
    "small numbers may have an exponent where the bounds leave room": [
        ({"type": "number", "exclusiveMinimum": 0}, [1e-05, 2.5e-07, 0.5], [0, -1e-05]),
        ({"type": "number", "minimum": -1, "maximum": 1}, [1e-05, -1e-05, 1, -1], [1.5, -1.00001]),
        ({"type": "number", "minimum": 1e-3}, [0.001, 2], [1e-05])],
    "far below a large open bound there are fractions": [
        ({"type": "number", "exclusiveMaximum": 1e20, "exclusiveMinimum": -1e20}, [1.5, -0.25, 1234567.125],
         [100000000000000000000])],
})  # fmt: skip


test_spelling = table({
    "no decimal is rounded onto an open bound": [
        ({"type": "number", "exclusiveMaximum": 5}, ["4.99"], ["4.9999999999999999999999"]),
        ({"type": "number", "exclusiveMaximum": 1e20, "exclusiveMinimum": -1e20}, [],
         ["99999999999999999999.9"])],
    "no number has two signs": [
        ({"type": "number", **bound}, [], ["--0.5", "--0", "--1"])
        for bound in ({"exclusiveMaximum": 0}, {"exclusiveMinimum": -0.0}, {"maximum": -0.0},
                      {"enum": [-0.0]})],
    "exponents": [
        ({"type": "number", "maximum": LARGEST}, ["9.5e307"], ["1e999"]),
        ({"minimum": 0, "maximum": LARGEST}, [], ["1e400"]),
        ({"type": "number", "exclusiveMinimum": 0}, [], ["1e-400"]),
        ({"type": "number", "minimum": -1, "exclusiveMaximum": 0}, [], ["0e-05"]),
        ({"type": "integer", "minimum": 0, "maximum": 5}, [], ["1e-05"])],
}, check_spelling)  # fmt: skip


@pytest.mark.parametrize("zero", [0, 0.0, -0.0])
def test_zero_as_a_bound_has_no_sign(zero):
    below, above = [-0.5, -0.25, -1, -1.5, -10], [0.5, 0.25, 1, 1.5, 10]
    draft4 = {"$schema": "http://json-schema.org/draft-04/schema#", "exclusiveMaximum": True}
    for bounds, accepted, rejected in (
        ({"exclusiveMaximum": zero}, below, [*above, 0]),
        ({"exclusiveMinimum": zero}, above, [*below, 0]),
        ({"maximum": zero}, [*below, 0], above),
        ({"minimum": zero}, [*above, 0], below),
        ({"not": {"minimum": zero}}, below, [*above, 0]),
        ({"not": {"exclusiveMaximum": zero}}, [*above, 0], below),
        ({"minimum": -5, "exclusiveMaximum": zero}, [-5, -0.5, -4.9], [0, -5.5, 0.5]),
        ({"exclusiveMinimum": -0.9, "exclusiveMaximum": zero}, [-0.5, -0.89, -0.01], [-0.9, 0, -1, 0.5]),
        ({"exclusiveMinimum": zero, "exclusiveMaximum": 0.9}, [0.5, 0.89], [0.9, 0, -0.5, 1]),
        ({**draft4, "maximum": zero}, [-0.5, -3], [0, 0.5]),
    ):
        check({"type": "number", **bounds}, accepted, rejected)
    check({"type": "integer", "exclusiveMaximum": zero}, [-1, -10], [0, 1])


@pytest.mark.parametrize(
    "schema",
    [
        *({"type": "integer"}, {"type": "number"}, {"type": "number", "minimum": 0}, {"minimum": 0.5}),
        *({"type": "integer", "minimum": 7}, {"exclusiveMinimum": 0}, {"maximum": 2.5}, {"multipleOf": 100}),
        *({"type": "number", "not": {"const": 3}}, {"exclusiveMinimum": -1.5}, {"maximum": 10**30}, True),
        *({"type": "integer", "multipleOf": 7}, {"multipleOf": 0.5}, {"multipleOf": 3, "minimum": 1}),
    ],
)
def test_numbers_have_a_limited_number_of_digits(schema):
    grammar = check_schema(schema)
    sevens = [f"{sign}{'7' * n}{tail}" for sign in ("", "-") for n in range(60) for tail in ("", ".5", ".")]
    fractions = [f"{whole}.{'3' * n}" for whole in ("0", "1", "8", "-8") for n in range(60)]
    exponents = [f"7e{'1' * n}" for n in range(60)]
    taken = [text for text in sevens + fractions + exponents if grammar.check(text).fits]
    assert max(map(len, taken), default=0) <= 42
    assert all(
        grammar.check(text).accepted < len(text) for text in ("7" * 60, "0." + "3" * 60, "7e" + "1" * 60)
    )


@pytest.mark.parametrize("bound", [1e300, 1.7e308, 10**300])
@pytest.mark.parametrize(
    "keyword", ["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf"]
)
@pytest.mark.parametrize("kind", ["number", "integer"])
def test_a_bound_of_300_digits_is_taken_or_refused_in_words(kind: str, keyword: str, bound: float) -> None:
    for value in (bound, -bound):
        with contextlib.suppress(InvalidRequest):
            assert compile_schema({"type": kind, keyword: value})
