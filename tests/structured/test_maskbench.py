"""A sample of real schemas, if the data lies beside the checkout. `scripts/maskbench.py` runs all of them."""

import json
import runpy
from pathlib import Path

import pytest

from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.lark.translation import Translation
from openai_cpu_server.structured.options import InvalidGrammar, Options, SchemaTooLarge
from tests.structured.test_engine_limits import NATIVE

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data" / "maskbench-dev" / "cases.jsonl.gz"


def case(name, schema, *tests):
    return {"name": name, "schema": schema, "tests": [{"valid": v, "data": data} for v, data in tests]}


TINY = [
    case("integer", {"type": "integer"}, (True, 1), (False, "x")),
    case("refused", {"pattern": "(a)\\1"}),
    case("order", {"properties": {"a": {}, "b": {}}}, (True, {"b": 1, "a": 1})),
]


@pytest.fixture(scope="module")
def bench():
    return runpy.run_path(str(ROOT / "scripts" / "maskbench.py"))


def test_the_bench_counts_outcomes(bench):
    run = bench["Bench"](bench["tokenizer_of_text"](TINY, size=300), bench["Options"]())
    for each in TINY:
        run.run(each)
    result = run.result
    assert (result.cases, result.passed, dict(result.refused)) == (3, 1, {"pattern": 1})
    assert (result.rejects_valid, result.accepts_invalid) == (1, 0)
    assert (len(result.compile_s), len(result.convert_s), len(result.load_s)) == (3, 2, 2)
    assert result.mask_s
    report = bench["report"](result, 2, 1, 300)
    assert "1 of 3 (33.3 %)" in report
    assert "1 pattern" in report


@pytest.mark.skipif(not DATA.exists(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize(
    ("order", "least_passed"), [pytest.param("schema", 0.92, marks=pytest.mark.slow), ("any", 0.95)]
)
def test_a_sample_of_real_schemas(bench, order, least_passed):
    cases = bench["read_cases"](DATA)[::25]
    run = bench["Bench"](
        bench["tokenizer_of_text"](TINY, size=300), bench["Options"](order=bench["PropertyOrder"](order))
    )
    for each in cases:
        run.run(each)
    assert run.result.accepts_invalid == 0
    assert run.result.passed >= least_passed * len(cases)


SIZES = [21_746, 21_514, 20_900, 20_877, 20_494, 19_775, 19_762, 19_645, 19_603, 19_464]
"""Characters of the ten largest schemas of the data."""


@pytest.mark.skipif(not DATA.exists(), reason="the cases are not beside this checkout")
@pytest.mark.parametrize("place", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 10))])
def test_the_largest_public_schemas_compile_or_are_refused_in_our_words(bench, place):
    schemas = sorted((case["schema"] for case in bench["read_cases"](DATA)), key=size_of, reverse=True)
    assert [size_of(schema) for schema in schemas[:10]] == SIZES
    try:
        GrammarCheck(Translation(compile_schema(schemas[place], Options(strict=False)).rules).text())
    except (SchemaTooLarge, InvalidGrammar) as error:
        assert not [word for word in NATIVE if word in str(error)]  # noqa: PT017


def size_of(schema):
    return len(json.dumps(schema))
