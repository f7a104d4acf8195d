"""A function's parameters, one by one, for formats that write each by itself."""

from __future__ import annotations

import re

from openai_cpu_server.api.asking.ask import AskedFunction, JsonObject
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.models.grammars import Grammar, Grammars
from openai_cpu_server.prompt.tool_formats import Parameter

_NOTES = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment"}
_SHARED = ("$defs", "definitions")
_SPLIT = {*_NOTES, *_SHARED, "type", "properties", "required", "additionalProperties"}
"""Keywords of an object's schema that mean the same when its properties are taken one by one."""
_TEXT = {*_NOTES, "type", "enum", "const"}
"""Keywords of a string's schema that leave it raw."""
_MOST_CHOICES = 200
_WRITABLE = re.compile(r"[^<>(){}\[\]=:,\"'\\\x00-\x20]+")
"""Matches names that no format's marks are in."""
_WAYS = {"$ref", "allOf", "anyOf", "oneOf"}


class SplitParameters:
    """Grammars of the values of one function's parameters; additional ones are never written."""

    def __init__(self, function: AskedFunction, schema: JsonObject, grammars: Grammars, stem: str) -> None:
        """`stem` begins the names of the rules. Raises InvalidRequest."""
        self._function = function
        self._grammars = grammars
        self._shared: JsonObject = {key: schema[key] for key in _SHARED if key in schema}
        self.parts: dict[str, bytes] = {}
        """Grammars by the names of their rules."""
        self.unenforced: tuple[str, ...] = self._left_out(schema)
        self.share = 0.0
        """What they cost together, as a share of what one schema may cost."""
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise self._invalid("properties", "an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._invalid("required", "a list of names")
        needed = [str(name) for name in required]
        names = [name for name in dict.fromkeys([*properties, *needed]) if self._is_written(name, needed)]
        self.parameters = tuple(
            self._parameter(name, properties.get(name, {}), f"{stem}p{index}", is_required=name in needed)
            for index, name in enumerate(names)
        )

    def _invalid(self, keyword: str, expected: str) -> InvalidRequest:
        message = f"Invalid schema for function '{self._function.name}': '{keyword}' must be {expected}."
        return InvalidRequest(message, param=f"{self._function.schema_path}.{keyword}", code="invalid_schema")

    def _left_out(self, schema: JsonObject) -> tuple[str, ...]:
        """Paths of keywords that say something of all parameters together."""
        others = sorted(schema.keys() - _SPLIT)
        is_lost = bool(_WAYS & schema.keys()) and not schema.get("properties")
        if others and (self._function.is_strict or is_lost):
            message = f"'{others[0]}' cannot be enforced: this model writes each parameter by itself."
            path = f"{self._function.schema_path}.{others[0]}"
            raise InvalidRequest(message, param=path, code="unsupported_schema")
        return tuple(f"{self._function.schema_path}.{each}" for each in others)

    def _is_written(self, name: str, required: list[str]) -> bool:
        if _WRITABLE.fullmatch(name):
            return True
        if name in required:
            message = f"A parameter of the name '{name[:64]}' cannot be written in this model's format."
            path = f"{self._function.schema_path}.required"
            raise InvalidRequest(message, param=path, code="invalid_function_parameters")
        return False

    def _parameter(self, name: str, schema: object, rule: str, *, is_required: bool) -> Parameter:
        choices = _choices(schema)
        self.parts[rule] = self._value(name, schema).rules
        return Parameter(
            name,
            is_required=is_required,
            rule=rule,
            is_text=choices is not None,
            choices=choices or (),
            is_boolean=isinstance(schema, dict)
            and schema.keys() - _NOTES == {"type"}
            and schema["type"] == "boolean",
        )

    def _value(self, name: str, schema: object) -> Grammar:
        path, is_strict = f"{self._function.schema_path}.properties.{name}", self._function.is_strict
        if not isinstance(schema, dict):
            known: JsonObject = {} if schema is not False else {"not": {}}
        else:
            known = {**self._shared, **schema}
        grammar = self._grammars.of_schema(known, path, strict=is_strict)
        self.unenforced += grammar.unenforced
        self.share += grammar.share
        return grammar


def _choices(schema: object) -> tuple[str, ...] | None:
    """The strings that the schema allows, (): all of them; None: more or less than that."""
    if not isinstance(schema, dict) or schema.get("type") != "string" or schema.keys() - _TEXT:
        return None
    listed = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if not isinstance(listed, list) or {"const", "enum"} <= schema.keys():
        return None
    texts = tuple(value for value in listed if isinstance(value, str))
    is_plain = len(texts) == len(listed) <= _MOST_CHOICES and "" not in texts
    return texts if is_plain and ("enum" not in schema or texts) else None
