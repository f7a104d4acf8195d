"""Fields that families have alike become a part of an `Ask`, here alone: the form, and all else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Union

import msgspec
import pydantic_core

from openai_cpu_server.api.asking.ask import Ask, AskedConversation, AskedForm, AskedTexts
from openai_cpu_server.api.asking.body import (
    GenerationBody,
    JsonObject,
    ResponseFormat,
    SharedBody,
    StructuredOutputs,
)
from openai_cpu_server.api.asking.sampling import sampling_of
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.json_size import check_size
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars

Make = Callable[[ModelGrammars, str], CheckedGrammar]


def form_of(body: GenerationBody) -> AskedForm | None:
    """None: free text. Raises InvalidRequest, also for more than one form."""
    return one_form(_forms(body))


def shared_forms(body: SharedBody) -> Iterator[AskedForm]:
    """Of the fields that families have alike."""
    yield from _texts("grammar", body.grammar, _text)
    yield from _texts("regex", body.regex, _regex)
    if body.choice is not None:
        yield _form("choice", _choices(body.choice))


def one_form(forms: Iterator[AskedForm]) -> AskedForm | None:
    """Raises InvalidRequest for several."""
    given = list(forms)
    if len(given) > 1:
        first, second = given[0].path, given[1].path
        raise wrong(f"'{first}' and '{second}' cannot be combined: ask for one structure.", second)
    return given[0] if given else None


def schema_form(schema: JsonObject | str, path: str, *, strict: bool = True, field: str = "") -> AskedForm:
    """`field`: the object that says that a schema is meant, if there is one. Raises InvalidRequest."""
    whole = _parsed(schema, path) if isinstance(schema, str) else schema

    def make(grammars: ModelGrammars, param: str) -> CheckedGrammar:
        return grammars.of_schema(whole, param, strict=strict)

    return AskedForm(path, make, field or path)


def any_object(path: str) -> AskedForm:
    return _form(path, lambda grammars, param: grammars.of_any_object(param))


def _forms(body: GenerationBody) -> Iterator[AskedForm]:
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    yield from _texts("grammar", body.grammar, _text)
    yield from _texts("guided_grammar", body.guided_grammar, _text)
    yield from _texts("regex", body.regex, _regex)
    yield from _texts("guided_regex", body.guided_regex, _regex)
    for name, choices in (("choice", body.choice), ("guided_choice", body.guided_choice)):
        if choices is not None:
            yield _form(name, _choices(choices))
    for name, schema in (("json_schema", body.json_schema), ("guided_json", body.guided_json)):
        if schema is not None:
            yield schema_form(schema, name)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)


def _texts(path: str, given: str | None, make: Callable[[str], Make]) -> Iterator[AskedForm]:
    if given is not None:
        yield _form(path, make(given))


def _form(path: str, make: Make) -> AskedForm:
    return AskedForm(path, make, path)


def _of_format(wanted: ResponseFormat) -> Iterator[AskedForm]:
    at = "response_format.json_schema"
    given = wanted.json_schema
    if wanted.type == "json_schema" and given is None:
        raise missing(at)
    if given is not None and wanted.type != "json_schema":
        raise wrong(f"'{at}' is only allowed with the type 'json_schema'.", at)
    if wanted.type == "json_object":
        yield any_object("response_format")
    if given is not None:
        is_strict = given.strict is not False
        yield schema_form(given.json_schema, f"{at}.schema", strict=is_strict, field="response_format")


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[AskedForm]:
    at = "structured_outputs"
    inner: list[AskedForm] = []
    if wanted.json_schema is not None:
        inner.append(schema_form(wanted.json_schema, f"{at}.json"))
    if wanted.regex is not None:
        inner.append(_form(f"{at}.regex", _regex(wanted.regex)))
    if wanted.choice is not None:
        inner.append(_form(f"{at}.choice", _choices(wanted.choice)))
    if wanted.grammar is not None:
        inner.append(_form(f"{at}.grammar", _text(wanted.grammar)))
    if wanted.json_object:
        inner.append(any_object(f"{at}.json_object"))
    if not inner:
        raise wrong(f"'{at}' needs one of 'json', 'regex', 'choice', 'grammar', 'json_object'.", at)
    yield from inner


def _text(gbnf: str) -> Make:
    return lambda grammars, param: grammars.of_text(gbnf, param)


def _regex(pattern: str) -> Make:
    return lambda grammars, param: grammars.of_regex(pattern, param)


def _choices(choices: list[str]) -> Make:
    return lambda grammars, param: grammars.of_choices(choices, param)


def _parsed(text: str, path: str) -> JsonObject:
    """vLLM also takes a schema as text. Raises InvalidRequest, TooManyValues."""
    check_size(text.encode(errors="surrogatepass"))
    try:
        schema = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise wrong(f"Invalid value for '{path}': it is not valid JSON: {error}.", path) from None
    if not isinstance(schema, dict):
        raise wrong(f"Invalid value for '{path}': a JSON Schema is an object.", path)
    return schema


AskedPrompt = Union[AskedConversation, AskedTexts]


def shared_ask(body: SharedBody, prompt: AskedPrompt, *, id_prefix: str, form: AskedForm | None) -> Ask:
    """All that such a body says; its `service_tier` is that of chat. Raises InvalidRequest."""
    return Ask(
        id_prefix=id_prefix,
        prompt=prompt,
        sampling=sampling_of(body),
        is_seeded=body.seed is not None,
        model=body.model,
        lora=body.lora,
        stream=bool(body.stream),
        form=form,
        user=body.user or body.safety_identifier,
        priority=body.priority,
        service_tier=body.service_tier,
        metadata=body.metadata,
        cache=body.cache,
        cache_salt=body.cache_salt,
        timeout_s=body.timeout,
    )


def generation_ask(body: GenerationBody, prompt: AskedPrompt, *, id_prefix: str) -> Ask:
    """Raises InvalidRequest."""
    ask = shared_ask(body, prompt, id_prefix=id_prefix, form=form_of(body))
    return msgspec.structs.replace(
        ask,
        n=body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_usage=_include_usage(body),
    )


def _include_usage(body: GenerationBody) -> bool:
    """Raises InvalidRequest for `stream_options` without a stream."""
    if body.stream_options is None:
        return False
    if not body.stream:
        raise wrong("'stream_options' is only allowed together with 'stream'.", "stream_options")
    return bool(body.stream_options.include_usage)
