"""Conversion of the fields that families share into parts of a `GenerationParams`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Union

import msgspec
import pydantic_core
from pydantic import AfterValidator, Field, JsonValue, PlainValidator
from pydantic_core import PydanticCustomError

from openai_cpu_server.api.generation.params import (
    ConversationParam,
    CustomGrammar,
    DetailsParam,
    FormParam,
    FunctionParam,
    GenerationParams,
    LimitParam,
    MessageParam,
    PromptsParam,
)
from openai_cpu_server.api.generation.sampling import Samplers, is_seed, sampling_of, sampling_sent
from openai_cpu_server.api.generation.schema import (
    GenerationBody,
    JsonObject,
    ProgressBody,
    ResponseFormat,
    SharedBody,
    StructuredOutputs,
    Syntax,
    Whole,
)
from openai_cpu_server.api.generation.structural_tags import format_tag, outputs_tag
from openai_cpu_server.contract.grammar import GrammarSource
from openai_cpu_server.contract.request import COUNT
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.http.parse import MOST_NAMED, Body, Ignored
from openai_cpu_server.json_size import check_size
from openai_cpu_server.models.grammars import CheckedGrammar, ModelGrammars
from openai_cpu_server.prompt.conversation import with_bound_results
from openai_cpu_server.prompt.tool_formats import INPUT

_SYNTAXES = {"lark": GrammarSource.LARK, "regex": GrammarSource.RUST_REGEX}
_FOLLOWS = {
    "lark": "It must match this Lark grammar:",
    "regex": "It must match this regular expression as a whole:",
}


def custom_tool(
    name: str, description: str | None, syntax: Syntax | None, path: str, grammar_path: str
) -> FunctionParam:
    """Build a tool that models see as a function with one parameter, described by the grammar."""
    content, grammar, at = "Any text.", None, f"{grammar_path}.definition"
    if syntax is not None:
        content = f"{_FOLLOWS[syntax.syntax]}\n{syntax.definition}"
        grammar = CustomGrammar(_SYNTAXES[syntax.syntax], syntax.definition, at)
    parameters: JsonObject = {
        "type": "object",
        "properties": {INPUT: {"type": "string", "description": content}},
        "required": [INPUT],
        "additionalProperties": False,
    }
    return FunctionParam(name, path, at, description, parameters, is_custom=True, grammar=grammar)


Make = Callable[[ModelGrammars, str], CheckedGrammar]


def one_form(forms: Iterator[FormParam]) -> FormParam | None:
    """Return the only form, or None. Raises InvalidRequest for several."""
    given = list(forms)
    if len(given) > 1:
        first, second = given[0].path, given[1].path
        raise wrong(f"'{first}' and '{second}' cannot be combined: ask for one structure.", second)
    return given[0] if given else None


def schema_form(schema: JsonObject | str, path: str, *, strict: bool = True, field: str = "") -> FormParam:
    """Build the form. `field`: object that selects the schema, if there is one. Raises InvalidRequest."""
    whole = _parsed(schema, path) if isinstance(schema, str) else schema

    def make(grammars: ModelGrammars, param: str) -> CheckedGrammar:
        return grammars.of_schema(whole, param, strict=strict)

    return FormParam(path, make, field or path)


def any_object(path: str) -> FormParam:
    return _form(path, lambda grammars, param: grammars.of_any_object(param))


def _form(path: str, make: Make) -> FormParam:
    return FormParam(path, make, path)


def _text(gbnf: str, path: str) -> FormParam:
    return _form(path, lambda grammars, param: grammars.of_text(gbnf, param))


def _regex(pattern: str, path: str) -> FormParam:
    return _form(path, lambda grammars, param: grammars.of_regex(pattern, param))


def _choices(choices: list[str], path: str) -> FormParam:
    return _form(path, lambda grammars, param: grammars.of_choices(choices, param))


Fields = Mapping[str, Callable[..., FormParam]]
"""Constructors of forms by field, called with the field's value and path."""
_SHARED: Fields = {"grammar": _text, "regex": _regex, "choice": _choices}
_GENERATION: Fields = {
    "grammar": _text,
    "guided_grammar": _text,
    "regex": _regex,
    "guided_regex": _regex,
    "choice": _choices,
    "guided_choice": _choices,
    "json_schema": schema_form,
    "guided_json": schema_form,
}
_STRUCTURED_OUTPUTS: Fields = {
    "json_schema": schema_form,
    "regex": _regex,
    "choice": _choices,
    "grammar": _text,
}


def _given(body: Body, fields: Fields, at: str = "") -> Iterator[FormParam]:
    for name, form in fields.items():
        if (value := getattr(body, name)) is not None:
            yield form(value, at + (type(body).model_fields[name].alias or name))


def shared_forms(body: SharedBody) -> Iterator[FormParam]:
    return _given(body, _SHARED)


def _forms(body: GenerationBody) -> Iterator[FormParam]:
    if body.response_format is not None:
        yield from _of_format(body.response_format)
    yield from _given(body, _GENERATION)
    if body.structured_outputs is not None:
        yield from _of_structured_outputs(body.structured_outputs)


_OF_TAGS = ("format", "structures", "triggers")


def _of_format(wanted: ResponseFormat) -> Iterator[FormParam]:
    at = "response_format.json_schema"
    given = wanted.json_schema
    tag = {name: value for name in _OF_TAGS if (value := getattr(wanted, name)) is not None}
    if wanted.type == "structural_tag":
        yield format_tag({"type": wanted.type, **tag})
    elif tag:
        path = f"response_format.{next(iter(tag))}"
        raise wrong(f"'{path}' is only allowed with the type 'structural_tag'.", path)
    if wanted.type == "json_schema" and given is None:
        raise missing(at)
    if given is not None and wanted.type != "json_schema":
        raise wrong(f"'{at}' is only allowed with the type 'json_schema'.", at)
    if wanted.shape is not None and wanted.type != "json_object":
        path = "response_format.schema"
        raise wrong(f"'{path}' is only allowed with the type 'json_object'.", path)
    if wanted.shape:
        yield schema_form(wanted.shape, "response_format.schema", field="response_format")
    elif wanted.type == "json_object":
        yield any_object("response_format")
    if given is not None:
        is_strict = given.strict is not False
        yield schema_form(given.json_schema, f"{at}.schema", strict=is_strict, field="response_format")


def _of_structured_outputs(wanted: StructuredOutputs) -> Iterator[FormParam]:
    at = "structured_outputs"
    inner = list(_given(wanted, _STRUCTURED_OUTPUTS, f"{at}."))
    if wanted.json_object:
        inner.append(any_object(f"{at}.json_object"))
    if (tag := wanted.structural_tag) is not None:
        inner.append(outputs_tag(_parsed(tag, f"{at}.structural_tag") if isinstance(tag, str) else tag))
    if not inner:
        kinds = "'json', 'regex', 'choice', 'grammar', 'json_object', 'structural_tag'"
        raise wrong(f"'{at}' needs one of {kinds}.", at)
    yield from inner


def _parsed(text: str, path: str) -> JsonObject:
    """Parse an object that is sent as text, as vLLM accepts it. Raises InvalidRequest, TooManyValues."""
    check_size(text.encode(errors="surrogatepass"))
    try:
        schema = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise wrong(f"Invalid value for '{path}': it is not valid JSON: {error}.", path) from None
    if not isinstance(schema, dict):
        raise wrong(f"Invalid value for '{path}': it must be a JSON object.", path)
    return schema


def adapted_names(told: Sequence[str], messages: Sequence[MessageParam]) -> Ignored:
    """Name what was dropped or replaced by text, and results without a call, for a header."""
    placed = with_bound_results([message.fields for message in messages])
    strays = [f"{messages[each.place].path} (result without a call)" for each in placed if each.is_stray]
    names = [*told, *strays]
    more = ("...",) if len(names) > MOST_NAMED else ()
    return Ignored((*names[:MOST_NAMED], *more))


AskedPrompt = Union[ConversationParam, PromptsParam]


def shared_ask(
    body: SharedBody, prompt: AskedPrompt, *, id_prefix: str, form: FormParam | None
) -> GenerationParams:
    """Convert the shared fields, with the `service_tier` of chat. Raises InvalidRequest."""
    return GenerationParams(
        id_prefix=id_prefix,
        prompt=prompt,
        sampling=sampling_of(body),
        sent=sampling_sent(body),
        is_seeded=is_seed(body.seed),
        bad_words=tuple(body.bad_words or ()),
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
        details=DetailsParam(progress=bool(body.return_progress)),
    )


def generation_ask(body: GenerationBody, prompt: AskedPrompt, *, id_prefix: str) -> GenerationParams:
    ask = shared_ask(body, prompt, id_prefix=id_prefix, form=one_form(_forms(body)))
    check_stream_options(body.stream_options, stream=body.stream)
    return msgspec.structs.replace(
        ask,
        n=body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def _no_zero(number: int) -> int:
    if number == 0:
        raise PydanticCustomError("zero", "Input should be -1, or 1 at least")
    return number


LastTokens = Annotated[int, Field(ge=-1, le=COUNT.most), AfterValidator(_no_zero)]
Prediction = Annotated[int, Field(ge=-2, le=COUNT.most), Whole]
"""Negative values allow all that the context leaves."""


class PredictionBody(ProgressBody):
    n_predict: Prediction | None = None
    timings_per_token: bool | None = None
    samplers: Samplers | None = None


def prediction(body: PredictionBody) -> LimitParam | None:
    limit = body.n_predict
    return None if limit is None or limit < 0 else LimitParam(limit, "n_predict", is_ceiling=True)


def asked_details(body: PredictionBody) -> DetailsParam:
    return DetailsParam(timings=bool(body.timings_per_token), progress=bool(body.return_progress))


def check_stream_options(given: object, *, stream: bool | None) -> None:
    """Reject options without a stream. Raises InvalidRequest."""
    if given is not None and not stream:
        raise wrong("'stream_options' is only allowed together with 'stream'.", "stream_options")


Item = Union[int, str]
MixedText = Union[str, tuple[Item, ...]]


def _wrong_prompt() -> PydanticCustomError:
    return PydanticCustomError(
        "prompt_kind",
        "Input should be a string, a list of token ids and strings, an object with 'prompt_string', or a "
        "list of these",
    )


def _prompts(value: object) -> tuple[MixedText, ...]:
    """Read one prompt from a list with token ids, and several from any other list."""
    if not isinstance(value, list):
        return (_one_prompt(value),)
    if not value:
        raise _wrong_prompt()
    if any(is_token_id(item) for item in value):
        return (_mixed(value),)
    return tuple(_mixed(item) if isinstance(item, list) else _one_prompt(item) for item in value)


def _one_prompt(value: object) -> str:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            message = "pictures belong to the messages of '/v1/chat/completions'"
            raise PydanticCustomError("multimodal_data", message)
        value = value.get("prompt_string")
    if not isinstance(value, str):
        raise _wrong_prompt()
    return value


def _mixed(value: list[object]) -> tuple[Item, ...]:
    items = tuple(item for item in value if isinstance(item, str) or is_token_id(item))
    if not items or len(items) < len(value):
        raise _wrong_prompt()
    return tuple(item if isinstance(item, str) else int(str(item)) for item in items)


def is_token_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_Object = dict[str, JsonValue]
_Told = Union[str, list[Union[int, str, list[Union[int, str]], _Object]], _Object]
Prompts = Annotated[tuple[MixedText, ...], PlainValidator(_prompts, json_schema_input_type=_Told)]
