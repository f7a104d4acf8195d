from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import pydantic_core

from openai_cpu_server.api.generation.params import (
    ConversationParam,
    CustomGrammar,
    DetailsParam,
    FormParam,
    FunctionParam,
    GenerationParams,
    JsonObject,
    LimitParam,
    MessageParam,
    PromptsParam,
    ReasoningParam,
)
from openai_cpu_server.api.generation.sampling import sampling_param
from openai_cpu_server.api.generation.schema import (
    GenerationBody,
    PredictionBody,
    ReasoningBody,
    ResponseFormat,
    SharedBody,
    StructuredOutputs,
    Syntax,
)
from openai_cpu_server.api.generation.structural_tags import tag_form
from openai_cpu_server.contract.grammar import GrammarSource
from openai_cpu_server.errors import missing, wrong
from openai_cpu_server.http.parse import Body, Ignored, first_names
from openai_cpu_server.json_size import check_json_size
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
    """Build a function with one parameter, described by the grammar."""
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


def one_form(forms: Iterator[FormParam]) -> FormParam | None:
    """Reject several forms. Raises InvalidRequest."""
    all_forms = list(forms)
    if len(all_forms) > 1:
        first, second = all_forms[0].path, all_forms[1].path
        raise wrong(f"'{first}' and '{second}' cannot be combined: ask for one structure.", second)
    return all_forms[0] if all_forms else None


def schema_form(schema: JsonObject | str, path: str, *, strict: bool = True, field: str = "") -> FormParam:
    """`field`: object that selects the schema, if any. Raises InvalidRequest."""
    whole = _parsed(schema, path) if isinstance(schema, str) else schema
    return FormParam(path, lambda grammars: grammars.of_schema(whole, path, strict=strict), field or path)


def any_object(path: str) -> FormParam:
    return FormParam(path, lambda grammars: grammars.of_any_object(path), path)


_Make = Callable[[ModelGrammars, Any, str], CheckedGrammar]
_MAKERS: Mapping[str, _Make] = {
    "grammar": ModelGrammars.of_text,
    "regex": ModelGrammars.of_regex,
    "choice": ModelGrammars.of_choices,
}


def _form(make: _Make, value: object, path: str) -> FormParam:
    return FormParam(path, lambda grammars: make(grammars, value, path), path)


def _field_forms(body: Body, names: Sequence[str], at: str = "") -> Iterator[FormParam]:
    for name in names:
        if (value := getattr(body, name)) is not None:
            path = at + (type(body).model_fields[name].alias or name)
            make = _MAKERS.get(name.removeprefix("guided_"))
            yield schema_form(value, path) if make is None else _form(make, value, path)


def shared_forms(body: SharedBody) -> Iterator[FormParam]:
    return _field_forms(body, ("grammar", "regex", "choice"))


_GENERATION_FORMS = "grammar guided_grammar regex guided_regex choice guided_choice json_schema guided_json"


def _forms(body: GenerationBody) -> Iterator[FormParam]:
    if body.response_format is not None:
        yield from _format_forms(body.response_format)
    yield from _field_forms(body, _GENERATION_FORMS.split())
    if body.structured_outputs is not None:
        yield from _structured_output_forms(body.structured_outputs)


_OF_TAGS = ("format", "structures", "triggers")
_TYPES = {**dict.fromkeys(_OF_TAGS, "structural_tag"), "json_schema": "json_schema", "shape": "json_object"}
"""Type of format by field."""


def _format_forms(wanted: ResponseFormat) -> Iterator[FormParam]:
    at, sent = "response_format", {name: getattr(wanted, name) for name in _TYPES}
    for name, kind in _TYPES.items():
        if sent[name] is not None and wanted.type != kind:
            path = f"{at}.{type(wanted).model_fields[name].alias or name}"
            raise wrong(f"'{path}' is only allowed with the type '{kind}'.", path)
    if wanted.type == "structural_tag":
        tag = {name: sent[name] for name in _OF_TAGS if sent[name] is not None}
        yield tag_form({"type": wanted.type, **tag}, at)
    elif wanted.type == "json_schema":
        if (schema := wanted.json_schema) is None:
            raise missing(f"{at}.json_schema")
        is_strict = schema.strict is not False
        yield schema_form(schema.json_schema, f"{at}.json_schema.schema", strict=is_strict, field=at)
    elif wanted.shape:
        yield schema_form(wanted.shape, f"{at}.schema", field=at)
    elif wanted.type == "json_object":
        yield any_object(at)


def _structured_output_forms(wanted: StructuredOutputs) -> Iterator[FormParam]:
    at = "structured_outputs"
    inner = list(_field_forms(wanted, ("json_schema", "regex", "choice", "grammar"), f"{at}."))
    if wanted.json_object:
        inner.append(any_object(f"{at}.json_object"))
    if (tag := wanted.structural_tag) is not None:
        path = f"{at}.structural_tag"
        inner.append(tag_form(_parsed(tag, path) if isinstance(tag, str) else tag, path))
    if not inner:
        kinds = "'json', 'regex', 'choice', 'grammar', 'json_object', 'structural_tag'"
        raise wrong(f"'{at}' needs one of {kinds}.", at)
    yield from inner


def _parsed(text: str, path: str) -> JsonObject:
    """Parse an object sent as text, as vLLM accepts it. Raises InvalidRequest, TooManyValues."""
    check_json_size(text.encode(errors="surrogatepass"))
    try:
        schema = pydantic_core.from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise wrong(f"Invalid value for '{path}': it is not valid JSON: {error}.", path) from None
    if not isinstance(schema, dict):
        raise wrong(f"Invalid value for '{path}': it must be a JSON object.", path)
    return schema


def adapted_names(names: Sequence[str], messages: Sequence[MessageParam]) -> Ignored:
    """Name for a header what was dropped or replaced, and results without a call."""
    placed = with_bound_results([message.fields for message in messages])
    strays = [f"{messages[each.place].path} (result without a call)" for each in placed if each.is_stray]
    return Ignored(first_names([*names, *strays]))


def shared_params(
    body: SharedBody, prompt: ConversationParam | PromptsParam, *, id_prefix: str, form: FormParam | None
) -> GenerationParams:
    """Convert with the `service_tier` of chat. Raises InvalidRequest."""
    return GenerationParams(
        id_prefix=id_prefix,
        prompt=prompt,
        sampling=sampling_param(body),
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


def generation_params(
    body: GenerationBody, prompt: ConversationParam | PromptsParam, *, id_prefix: str
) -> GenerationParams:
    params = shared_params(body, prompt, id_prefix=id_prefix, form=one_form(_forms(body)))
    check_stream_options(body.stream_options, stream=body.stream)
    return msgspec.structs.replace(
        params,
        n=body.n,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        include_usage=body.stream_options is not None and bool(body.stream_options.include_usage),
    )


def prediction_limit(body: PredictionBody) -> LimitParam | None:
    return None if body.n_predict is None else LimitParam.ceiling(body.n_predict, "n_predict")


def details_param(body: PredictionBody) -> DetailsParam:
    return DetailsParam(timings=bool(body.timings_per_token), progress=bool(body.return_progress))


def check_stream_options(options: object, *, stream: bool | None) -> None:
    """Reject options without a stream. Raises InvalidRequest."""
    if options is not None and not stream:
        raise wrong("'stream_options' is only allowed together with 'stream'.", "stream_options")


# -- reasoning ---------------------------------------------------------------------------------------------

_EFFORT_NAMES = {"max": "xhigh"}
_SWITCHES = ("enable_thinking", "thinking")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
_OURS = frozenset(
    {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}
    | {"raise_exception", "strftime_now", "range", "dict", "namespace", "cycler", "joiner"}
)
"""Template variables that requests cannot set."""
T = TypeVar("T")
_FieldValue = tuple[str, T]
"""Path and value."""


def reasoning_param(
    *,
    efforts: Sequence[_FieldValue[str]] = (),
    switches: Sequence[_FieldValue[bool]] = (),
    budgets: Sequence[_FieldValue[int]] = (),
    variables: Mapping[str, object] | None = None,
    is_hidden: bool = False,
) -> ReasoningParam:
    """Combine fields, which must agree; an effort also switches. Raises InvalidRequest."""
    variables = dict(variables or {})
    for name in variables:
        if name in _OURS or not _VARIABLE.fullmatch(name):
            shown = name[:64]
            message = f"'{shown}' is not a chat template variable that a request can set."
            raise wrong(message, f"chat_template_kwargs.{shown}")
    efforts = [(path, _EFFORT_NAMES.get(effort, effort)) for path, effort in efforts]
    by_effort = [(path, effort != "none") for path, effort in efforts]
    by_variable = [
        (f"chat_template_kwargs.{name}", value)
        for name in _SWITCHES
        if isinstance(value := variables.get(name), bool)
    ]
    return ReasoningParam(
        effort=_one(efforts),
        is_on=_one([*by_effort, *switches, *by_variable]),
        budget=_one(budgets),
        is_hidden=is_hidden,
        variables=variables,
        paths=tuple(path for path, _ in (*efforts, *budgets)),
    )


def thinking_of(body: ReasoningBody) -> ReasoningParam:
    """Reject contradictions. Raises InvalidRequest."""
    by_budget = [(path, budget > 0) for path, budget in sent_fields(body, "reasoning.max_tokens")]
    by_type = [
        (path, kind == "enabled")
        for path, kind in sent_fields(body, "thinking.type")
        if kind in ("enabled", "disabled")
    ]
    names = ("thinking_budget", "thinking_token_budget", "thinking_budget_tokens", "reasoning_budget_tokens")
    is_excluded = body.reasoning is not None and body.reasoning.exclude is True
    return reasoning_param(
        efforts=sent_fields(body, "reasoning_effort", "reasoning.effort"),
        switches=[*sent_fields(body, "enable_thinking", "reasoning.enabled"), *by_budget, *by_type],
        budgets=sent_fields(body, *names, "reasoning.max_tokens", "thinking.budget_tokens"),
        variables=body.chat_template_kwargs,
        is_hidden=is_excluded or body.include_reasoning is False,
    )


def sent_fields(body: Body, *paths: str) -> list[_FieldValue[Any]]:
    values = []
    for path in paths:
        value: Any = body
        for name in path.split("."):
            value = None if value is None else getattr(value, name)
        if value is not None:
            values.append((path, value))
    return values


def _one(sent: Sequence[_FieldValue[T]]) -> T | None:
    if not sent:
        return None
    path, value = sent[0]
    for other, contrary in sent[1:]:
        if contrary != value:
            raise wrong(f"'{path}' and '{other}' contradict each other about the model's thinking.", other)
    return value
