"""Types are strict, `null` means absent, and errors name a path."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args, get_origin

import msgspec
from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, core_schema, from_json

from openai_cpu_server.errors import InvalidRequest, missing
from openai_cpu_server.http.ignored_params import (
    HISTORY_UNSUPPORTED,
    IgnoredParams,
    UnsupportedParam,
    UnsupportedParams,
    is_one_of,
)
from openai_cpu_server.json_size import MOST_NUMBERS, check_json_size

_KINDS = {
    "bool_type": "a boolean",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "string_type": "a string",
    "list_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    # Our own, of unions: their messages say what is expected.
    "text_or_list": None,
    "text_or_object": None,
    "prompt_kind": None,
    "tool_choice": None,
    "function_call": None,
}
_JSON_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}
_BOUNDS = {
    "greater_than": (">", "gt", "below_min"),
    "greater_than_equal": (">=", "ge", "below_min"),
    "less_than": ("<", "lt", "above_max"),
    "less_than_equal": ("<=", "le", "above_max"),
}
_SIZES = {
    "string_too_short": ("at least", "min_length", "characters", "string_below_min_length"),
    "string_too_long": ("at most", "max_length", "characters", "string_above_max_length"),
    "too_short": ("at least", "min_length", "items", "array_below_min_length"),
    "too_long": ("at most", "max_length", "items", "array_above_max_length"),
}
_MAX_VALUE_CHARS = 40
_MOST_SHOWN = 64
"""Characters of a client's name."""


def _complaint(param: str, error: ErrorDetails) -> tuple[str, str]:
    kind, words = error["type"], error["msg"].removeprefix("Input should be ")
    if kind in _KINDS:
        expected, actual = _KINDS[kind] or words, _JSON_KINDS[type(error["input"])]
        return f"Invalid type for '{param}': expected {expected}, but got {actual}.", "invalid_type"
    if kind in _BOUNDS:
        return _out_of_bounds(param, error)
    if kind in _SIZES:
        return _wrong_size(param, error)
    if kind == "string_pattern_mismatch":
        words = f"a string that matches '{error['ctx']['pattern']}'"
    expected = f"expected {words}" if words != error["msg"] else words
    return f"Invalid value for '{param}': {expected}.", "invalid_value"


def _out_of_bounds(param: str, error: ErrorDetails) -> tuple[str, str]:
    sign, name, side = _BOUNDS[error["type"]]
    bound = error["ctx"][name]
    code = f"{'decimal' if isinstance(bound, float) else 'integer'}_{side}_value"
    limit = f"{bound:g}" if isinstance(bound, float) else str(bound)
    actual = str(error["input"])[:_MAX_VALUE_CHARS]
    return f"Invalid value for '{param}': expected a value {sign} {limit}, but got {actual}.", code


def _wrong_size(param: str, error: ErrorDetails) -> tuple[str, str]:
    least_or_most, name, units, code = _SIZES[error["type"]]
    limit, size = error["ctx"][name], len(error["input"])
    if isinstance(error["input"], dict):
        units, code = "properties", "object_above_max_properties"
    elif not size and isinstance(error["input"], list):
        code = "empty_array"
    unit = units.removesuffix("s") if limit == 1 else units
    message = f"Invalid value for '{param}': expected {least_or_most} {limit} {unit}, but got {size}."
    return message, code


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, frozen=True, defer_build=True)

    ignored: ClassVar[IgnoredParams] = {}
    unsupported: ClassVar[UnsupportedParams] = {}
    most_numbers: ClassVar[int] = MOST_NUMBERS
    is_open: ClassVar[bool] = False
    """Unknown fields are always harmless."""

    @property
    def extra(self) -> dict[str, object]:
        return {name: value for name, value in (self.model_extra or {}).items() if value is not None}

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """Describe ignored fields too, because they are accepted."""
        reference = handler(core_schema)
        schema = handler.resolve_ref_schema(reference)
        schema["additionalProperties"] = cls.is_open
        properties = schema.setdefault("properties", {})
        for name, param in cls.ignored.items():
            properties.setdefault(name, {"description": f"Ignored: {param.why}.", "x-ignored": True})
        for name, unsupported in cls.unsupported.items():
            described = f"Nothing else is supported: {unsupported.why}."
            accepted = {"enum": [*unsupported.accepted, None], "description": described, "x-refused": True}
            properties.setdefault(name, accepted)
        return reference


@dataclass(frozen=True)
class _Choice:
    """Annotation of a union, whose member is chosen by `names`; without an `error` the last one takes other
    values. `path_of` leaves out tags in angle brackets."""

    names: Callable[[Any], Iterable[object]]
    name: Callable[[Any], object]
    error: str | None
    message: str | None

    def __get_pydantic_core_schema__(self, union: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices: dict[Any, CoreSchema] = {}
        for member in get_args(union):
            schema = handler.generate_schema(member)
            for name in self.names(member):
                choices.setdefault(f"<{name}>", schema)
        other = next(reversed(choices)) if self.error is None else None
        return core_schema.tagged_union_schema(
            choices,
            lambda value: tag if (tag := f"<{self.name(value)}>") in choices else other,
            custom_error_type=self.error,
            custom_error_message=self.message,
        )


def by_value(error: str | None = None, message: str | None = None) -> _Choice:
    def names(member: Any) -> list[str]:
        while get_origin(member) is Annotated:
            member, *_ = get_args(member)
        kind = get_origin(member) or member
        if kind is not Literal and issubclass(kind, BaseModel):
            kind = dict
        return ["str" if kind is Literal else kind.__name__]

    return _Choice(names, lambda value: type(value).__name__, error, message)


def _type_of(value: object) -> str | None:
    name = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return name if name is None or isinstance(name, str) else ""


def _literals(kind: object) -> Iterator[object]:
    if get_origin(kind) is Literal:
        yield from get_args(kind)
    elif kind is type(None):
        yield None
    for part in get_args(kind):
        yield from _literals(part)


def by_type(
    error: str | None = None, message: str | None = None, name: Callable[[Any], str | None] = _type_of
) -> _Choice:
    """Choose by the literals of the field `type`."""

    def names(member: type[BaseModel]) -> list[object]:
        return [*_literals(member.model_fields["type"].annotation)] or [member.__name__]

    return _Choice(names, name, error, message)


class IgnoredField(NamedTuple):
    path: str
    """`messages[3].colour`."""
    kind: str
    """`messages[].colour`, the same for all elements of a list."""
    is_harmless: bool
    unsupported: UnsupportedParam | None


def ignored_params(body: Body, at: str = "", kind: str = "") -> Iterator[IgnoredField]:
    """Yield fields, at any depth, outside the schema or without effect."""
    for name, value in body.extra.items():
        if not _has_no_effect(body, name, value):
            is_harmless, shown = body.is_open or name in body.ignored, name[:_MOST_SHOWN]
            yield IgnoredField(at + shown, kind + shown, is_harmless, body.unsupported.get(name))
    for name in type(body).model_fields:
        value = getattr(body, name)
        if name in body.ignored and value is not None and not _has_no_effect(body, name, value):
            yield IgnoredField(at + name, kind + name, is_harmless=True, unsupported=None)
        elif isinstance(value, Body):
            yield from ignored_params(value, f"{at}{name}.", f"{kind}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], (Body, str)):
            for index, item in enumerate(value):
                if isinstance(item, Body):  # beside texts, too
                    yield from ignored_params(item, f"{at}{name}[{index}].", f"{kind}{name}[].")


def _has_no_effect(body: Body, name: str, value: object) -> bool:
    rule = body.unsupported.get(name) or body.ignored.get(name)
    return rule is not None and is_one_of(value, rule.accepted)


B = TypeVar("B", bound=Body)
MOST_IGNORED_NAMED = 32
"""A header has little room, and a conversation many messages."""

IGNORED = "x-ignored-parameters"
_LENIENT = "lenient"


def first_names(names: Sequence[str]) -> tuple[str, ...]:
    return (*names[:MOST_IGNORED_NAMED], *(("...",) if len(names) > MOST_IGNORED_NAMED else ()))


class Ignored(msgspec.Struct, frozen=True):
    names: tuple[str, ...] = ()

    @property
    def headers(self) -> dict[str, str]:
        return {IGNORED: ",".join(self.names)} if self.names else {}


def is_lenient(info: ValidationInfo) -> bool:
    return bool(info.context and info.context[_LENIENT])


def parse(schema: type[B], data: bytes, *, lenient: bool) -> tuple[B, Ignored]:
    """`lenient`: unknown fields are ignored. Raises InvalidRequest."""
    check_json_size(data, most_numbers=schema.most_numbers)
    validated = partial(schema.model_validate_json, data, context={_LENIENT: lenient})
    return _checked(validated, partial(from_json, data), lenient=lenient)


def parse_fields(
    schema: type[B], fields: Mapping[str, object], *, lenient: bool, at: str = ""
) -> tuple[B, Ignored]:
    """Validate a parsed part of a body. `at`: its path, for errors. Raises InvalidRequest."""
    validated = partial(schema.model_validate, fields, context={_LENIENT: lenient})
    return _checked(validated, lambda: fields, lenient=lenient, at=at)


_FORM_NAME = re.compile(r"([^\[\]]+)(?:\[([^\[\]]*)\])?")
"""`name`, `name[]` of a list, or `name[key]` of an object."""
_JSON_WORDS = {"true": "true", "false": "false", "none": "null", "null": "null", "undefined": "null"}


def parse_form(schema: type[B], fields: Iterable[tuple[str, str]], *, lenient: bool) -> tuple[B, Ignored]:
    """An empty field is absent, and values are JSON text, also as Python and JavaScript write them. Raises
    InvalidRequest."""
    found: dict[str, Any] = {}
    for name, text in fields:
        match = _FORM_NAME.fullmatch(name)
        at, key = match.groups() if match is not None else (name, None)
        field = schema.model_fields.get(at)
        value: object = text
        if field is not None and not text.strip():
            continue
        if field is not None and not _takes_text(field.annotation):
            with suppress(ValueError, RecursionError):
                value = json.loads(_JSON_WORDS.get(text.strip().lower(), text))
        if key:
            found[at] = {**(found[at] if isinstance(found.get(at), dict) else {}), key: value}
        elif key is not None or at in found:
            earlier = found.get(at, [])
            found[at] = [*(earlier if isinstance(earlier, list) else [earlier]), value]
        else:
            found[at] = value
    return parse_fields(schema, found, lenient=lenient)


def _takes_text(kind: object) -> bool:
    return kind is str or isinstance(kind, str) or any(map(_takes_text, get_args(kind)))


def _checked(
    validate: Callable[[], B], content: Callable[[], object], *, lenient: bool, at: str = ""
) -> tuple[B, Ignored]:
    try:
        body = validate()
    except ValidationError as error:
        raise _invalid(error.errors(include_url=False)[0], content, at) from None
    kinds: dict[str, None] = {}
    unknown: list[str] = []
    for field in ignored_params(body, at and f"{at}."):
        unsupported = field.unsupported or HISTORY_UNSUPPORTED.get(field.path)
        if unsupported is not None:
            raise _not_supported(field.path, unsupported)
        if not field.is_harmless:
            unknown.append(field.path)
        kinds[field.kind] = None
    if unknown and not lenient:
        names = ", ".join(f"'{name}'" for name in unknown[:8])
        message = f"Unknown parameter{'s' if len(unknown) > 1 else ''}: {names}."
        raise InvalidRequest(message, param=unknown[0], code="unknown_parameter")
    return body, Ignored(tuple(map(header_safe, first_names([*kinds]))))


def path_of(location: Sequence[int | str], content: object, *, is_missing: bool = False) -> str | None:
    """Return `messages[0].type` for `("messages", 0, "<choice>", "type")`. Parts that the body lacks are
    pydantic's own. `is_missing`: the last part may be lacking."""
    path, last = "", len(location) - 1 if is_missing else None
    for at, part in enumerate(location):
        if isinstance(part, int):
            path += f"[{part}]"
            content = content[part] if isinstance(content, list) and part < len(content) else None
        elif at == last or (isinstance(content, dict) and part in content):
            path += f".{part[:_MOST_SHOWN]}" if path else part[:_MOST_SHOWN]
            content = content.get(part) if isinstance(content, dict) else None
    return path or None


def _invalid(error: ErrorDetails, content: Callable[[], object], at: str) -> InvalidRequest:
    if error["type"] == "json_invalid":
        why = error["msg"].removeprefix("Invalid JSON: ")
        if "hex escape" in why or "surrogate" in why:
            why += "; a character may be cut in half (\\ud800 to \\udfff come in pairs)"
        return InvalidRequest(f"The request body is not valid JSON: {why}.", code="invalid_json")
    path = path_of(error["loc"], content(), is_missing=error["type"] == "missing")
    param = ".".join(filter(None, (at, path)))
    if not param:
        return InvalidRequest("The request body must be a JSON object.", code="invalid_json")
    if error["type"] == "missing":
        return missing(param)
    message, code = _complaint(param, error)
    return InvalidRequest(message, param=param, code=code)


def header_safe(name: str) -> str:
    return "".join(c if c.isascii() and c.isprintable() and c != "," else "?" for c in name[:128])


def _not_supported(path: str, unsupported: UnsupportedParam) -> InvalidRequest:
    values = dict.fromkeys(json.dumps(value) for value in unsupported.accepted)
    but = f" (only {' or '.join(values)} is accepted)" if values else ""
    message = f"'{path[:128]}' is not supported: {unsupported.why}{but}."
    return InvalidRequest(message, param=path, code=unsupported.code)
