"""The one place where what clients ask for becomes GBNF that is known to compile."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Union

from openai_cpu_server.contract.grammar import GrammarOrder, GrammarSource, MadeGrammar, RefusedGrammar
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.compiler import compile_schema
from openai_cpu_server.structured.errors import SchemaTooLarge, UnsupportedSchema
from openai_cpu_server.structured.extras import choice_to_gbnf, json_object_gbnf, regex_to_gbnf
from openai_cpu_server.structured.gbnf.parser import names_tokens
from openai_cpu_server.structured.options import Options, Whitespace
from openai_cpu_server.structured.writing.compose import compose


def grammar_maker(
    check: Callable[[str], object],
) -> Callable[[GrammarOrder], Union[MadeGrammar, RefusedGrammar]]:
    """The contract's `GrammarMaker`. `check` raises InvalidRequest for GBNF that cannot be executed."""

    def make(order: GrammarOrder) -> Union[MadeGrammar, RefusedGrammar]:
        try:
            made = _made(order)
            check(made.gbnf)
        except InvalidRequest as error:
            path = error.path if isinstance(error, (UnsupportedSchema, SchemaTooLarge)) else None
            return RefusedGrammar(str(error), error.code, path)
        return made

    return make


def _made(order: GrammarOrder) -> MadeGrammar:
    whitespace = Whitespace.FLEXIBLE if order.is_flexible else Whitespace.COMPACT
    options = Options(whitespace=whitespace, strict=order.is_strict)
    match order.source:
        case GrammarSource.SCHEMA:
            compiled = compile_schema(json.loads(order.text), options)
            left_out = tuple((each.path, each.keyword) for each in compiled.unenforced)
            return MadeGrammar(compiled.gbnf, left_out, compiled.share)
        case GrammarSource.ANY_OBJECT:
            return MadeGrammar(json_object_gbnf(options))
        case GrammarSource.REGEX:
            return MadeGrammar(regex_to_gbnf(order.text))
        case GrammarSource.CHOICES:
            return MadeGrammar(choice_to_gbnf(json.loads(order.text)))
        case GrammarSource.GBNF:
            if names_tokens(order.text):
                raise InvalidRequest("Control tokens (<[...]>) cannot be named: write characters.")
            return MadeGrammar(order.text)
        case GrammarSource.PARTS:
            root, parts = json.loads(order.text)
            return MadeGrammar(compose(root, parts))
