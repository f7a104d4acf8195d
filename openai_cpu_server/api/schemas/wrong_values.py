"""What is wrong with a value: pydantic's finding in a client's words, and OpenAI's code for it."""

from __future__ import annotations

from typing import NamedTuple

from pydantic_core import ErrorDetails

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
_SHOWN = 40
"""A message repeats so many characters of a number."""


class Complaint(NamedTuple):
    message: str
    code: str


def complaint(param: str, error: ErrorDetails) -> Complaint:
    """`error` must have its input and context."""
    kind = error["type"]
    if kind in _KINDS:
        return _wrong_type(param, error)
    if kind in _BOUNDS:
        return _out_of_bounds(param, error)
    if kind in _SIZES:
        return _wrong_size(param, error)
    if kind == "part_type":
        return Complaint(f"Invalid value for '{param}': {error['msg']}.", "unsupported_content")
    said = error["msg"].removeprefix("Input should be ")
    expected = f"expected {said}" if said != error["msg"] else said
    return Complaint(f"Invalid value for '{param}': {expected}.", "invalid_value")


def _wrong_type(param: str, error: ErrorDetails) -> Complaint:
    expected = _KINDS[error["type"]] or error["msg"].removeprefix("Input should be ")
    given = _JSON_KINDS[type(error["input"])]
    return Complaint(f"Invalid type for '{param}': expected {expected}, but got {given}.", "invalid_type")


def _out_of_bounds(param: str, error: ErrorDetails) -> Complaint:
    sign, name, side = _BOUNDS[error["type"]]
    bound = error["ctx"][name]
    code = f"{'decimal' if isinstance(bound, float) else 'integer'}_{side}_value"
    limit, given = f"{bound:g}" if isinstance(bound, float) else str(bound), str(error["input"])[:_SHOWN]
    message = f"Invalid value for '{param}': expected a value {sign} {limit}, but got {given}."
    return Complaint(message, code)


def _wrong_size(param: str, error: ErrorDetails) -> Complaint:
    least_or_most, name, units, code = _SIZES[error["type"]]
    limit, given = error["ctx"][name], len(error["input"])
    if isinstance(error["input"], dict):
        units, code = "properties", "object_above_max_properties"
    elif not given and isinstance(error["input"], list):
        code = "empty_array"
    unit = units.removesuffix("s") if limit == 1 else units
    message = f"Invalid value for '{param}': expected {least_or_most} {limit} {unit}, but got {given}."
    return Complaint(message, code)
