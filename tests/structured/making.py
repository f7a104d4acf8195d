"""Grammars for tests: schemas, GBNF and rules as Lark and as a check of texts."""

from __future__ import annotations

import contextlib
import tracemalloc
from collections.abc import Callable

from openai_cpu_server.contract.grammar import BYTES_AND_END
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.llama.grammar.grammar_check import GrammarCheck
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.gbnf.parser import parse_gbnf
from openai_cpu_server.structured.languages.expr import GrammarRules
from openai_cpu_server.structured.lark.plan import Work
from openai_cpu_server.structured.lark.translation import Translation, numbered_from
from openai_cpu_server.structured.options import Options
from openai_cpu_server.structured.schema.document import Json


def schema_to_lark(schema: Json, options: Options | None = None) -> str:
    return Translation(compile_schema(schema, options).rules).text()


def gbnf_to_lark(
    gbnf: str, renumber: Callable[[int], int] = lambda token: token, *, work: Work | None = None
) -> str:
    return Translation(parse_gbnf(gbnf), num_read=len(gbnf), work=work).text(renumber)


def check_schema(schema: Json, options: Options | None = None) -> GrammarCheck:
    return GrammarCheck(schema_to_lark(schema, options))


def check_rules(rules: GrammarRules) -> GrammarCheck:
    return GrammarCheck(Translation(rules).text(numbered_from(BYTES_AND_END)))


def check_gbnf(gbnf: str) -> GrammarCheck:
    return GrammarCheck(gbnf_to_lark(gbnf, numbered_from(BYTES_AND_END)))


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        with contextlib.suppress(InvalidRequest):
            work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
