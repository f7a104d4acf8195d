"""Which of the many fields that shape the answer's text is given, and its grammar."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pydantic_core

from openai_cpu_server.api.schemas.generation import GenerationBody
from openai_cpu_server.api.schemas.structured import JsonObject, ResponseFormat, StructuredOutputs
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.json_size import check_size
from openai_cpu_server.models.grammars import Grammar, Grammars

_HINTS = re.compile(rb"response_format|tools|functions|grammar|regex|choice|json|structured_outputs|\\u00")

_LONG_BODY = 64 * 1024

Make = Callable[[Grammars, str], Grammar]
Wish = tuple[str, Make]
"""A field's path, and how its grammar is made."""


def answer_grammar(body: GenerationBody, grammars: Grammars) -> Grammar | None:
    """The grammar of the answer; None: free text. Raises InvalidRequest, also for more than one wish."""
    wishes = list(_wishes(body))
    if len(wishes) > 1:
        (first, _), (second, _) = wishes[:2]
        message = f"'{first}' and '{second}' cannot be combined: ask for one structure."
        raise InvalidRequest(message, param=second, code="invalid_value")
    return next((make(grammars, param) for param, make in wishes), None)


def asks_for_form(body: GenerationBody) -> bool:
    """Whether the answer must be more than text; tools aside."""
    return next(_wishes(body), None) is not None


def is_slow(data: bytes) -> bool:
    """Whether a body may take more than some milliseconds: it is long, or may have something to compile.

    The latter is sound without parsing: a body has none of these fields unless it has one of these words, or
    an escaped letter.
    """
    return len(data) > _LONG_BODY or _HINTS.search(data) is not None


def _wishes(body: GenerationBody) -> Iterator[Wish]:
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    yield from _texts("grammar", body.grammar, "guided_grammar", body.guided_grammar, make=_text)
    yield from _texts("regex", body.regex, "guided_regex", body.guided_regex, make=_regex)
    for name, choices in (("choice", body.choice), ("guided_choice", body.guided_choice)):
        if choices is not None:
            yield name, _choices(choices)
    for name, schema in (("json_schema", body.json_schema), ("guided_json", body.guided_json)):
        if schema is not None:
            yield name, _schema(schema)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)


def _texts(name: str, one: str | None, alias: str, other: str | None, *, make: _OfText) -> Iterator[Wish]:
    if one is not None:
        yield name, make(one)
    if other is not None:
        yield alias, make(other)


def _of_format(wanted: ResponseFormat) -> Iterator[Wish]:
    at = "response_format.json_schema"
    given = wanted.json_schema
    if wanted.type == "json_schema" and given is None:
        raise InvalidRequest(
            f"Missing required parameter: '{at}'.", param=at, code="missing_required_parameter"
        )
    if given is not None and wanted.type != "json_schema":
        message = f"'{at}' is only allowed with the type 'json_schema'."
        raise InvalidRequest(message, param=at, code="invalid_value")
    if wanted.type == "json_object":
        yield "response_format", _any_object
    if given is not None:
        yield f"{at}.schema", _schema(given.json_schema, strict=given.strict is not False)


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[Wish]:
    at = "structured_outputs"
    inner: list[Wish] = []
    if wanted.json_schema is not None:
        inner.append((f"{at}.json", _schema(wanted.json_schema)))
    if wanted.regex is not None:
        inner.append((f"{at}.regex", _regex(wanted.regex)))
    if wanted.choice is not None:
        inner.append((f"{at}.choice", _choices(wanted.choice)))
    if wanted.grammar is not None:
        inner.append((f"{at}.grammar", _text(wanted.grammar)))
    if wanted.json_object:
        inner.append((f"{at}.json_object", _any_object))
    if not inner:
        message = f"'{at}' needs one of 'json', 'regex', 'choice', 'grammar', 'json_object'."
        raise InvalidRequest(message, param=at, code="invalid_value")
    yield from inner


_OfText = Callable[[str], Make]


def _text(gbnf: str) -> Make:
    return lambda grammars, param: grammars.of_text(gbnf, param)


def _regex(pattern: str) -> Make:
    return lambda grammars, param: grammars.of_regex(pattern, param)


def _choices(choices: list[str]) -> Make:
    return lambda grammars, param: grammars.of_choices(choices, param)


def _any_object(grammars: Grammars, param: str) -> Grammar:
    return grammars.of_any_object(param)


def _schema(schema: JsonObject | str, *, strict: bool = True) -> Make:
    def make(grammars: Grammars, param: str) -> Grammar:
        whole = _parsed(schema, param) if isinstance(schema, str) else schema
        return grammars.of_schema(whole, param, strict=strict)

    return make


def _parsed(text: str, param: str) -> JsonObject:
    """vLLM also takes a schema as text. Raises InvalidRequest, TooManyValues."""
    check_size(text.encode(errors="surrogatepass"))
    try:
        schema = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        message = f"Invalid value for '{param}': it is not valid JSON: {error}."
        raise InvalidRequest(message, param=param, code="invalid_value") from None
    if not isinstance(schema, dict):
        message = f"Invalid value for '{param}': a JSON Schema is an object."
        raise InvalidRequest(message, param=param, code="invalid_value")
    return schema
