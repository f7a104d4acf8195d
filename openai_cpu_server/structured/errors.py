"""Reasons why a schema, a pattern or a grammar cannot be compiled.
The client can mend them all: status 400."""

from __future__ import annotations

from openai_cpu_server.errors import InvalidRequest


class UnsupportedSchema(InvalidRequest):
    """A keyword that no grammar can enforce here. `path` is a JSON pointer to the schema that contains it."""

    def __init__(self, path: str, keyword: str, reason: str = "cannot be enforced by a grammar") -> None:
        super().__init__(f"{path or '/'}: '{keyword}' {reason}.", code="unsupported_schema")
        self.path = path
        self.keyword = keyword
        self.reason = reason


class InvalidSchema(InvalidRequest):
    """The schema is no JSON Schema, or no value can satisfy it."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or '/'}: {message}.", code="invalid_schema")
        self.path = path


class SchemaTooLarge(InvalidRequest):
    """A limit of `Limits` was exceeded; `limit` is the name of its field.
    `path` is a JSON pointer, where the place is known."""

    def __init__(self, limit: str, value: int, path: str | None = None) -> None:
        named, advice = _LIMITS.get(limit, (limit.replace("_", " "), "make it smaller"))
        place = f"{path}: " if path else ""
        super().__init__(f"{place}The schema is too large: more than {value} {named}; {advice}.")
        self.limit = limit
        self.path = path


_LIMITS = {
    "containers": ("objects and lists", "remove definitions that nothing refers to, and examples"),
    "schemas": ("subschemas", "remove properties and definitions that are not needed"),
    "depth": ("levels of nesting", "move inner schemas to '$defs' and refer to them"),
    "references": (
        "references in a row, each of which stands for the same value as the next",
        "let '$ref' name the last definition of the chain, or merge definitions that extend one another",
    ),
    "levels": (
        "levels of rules that lie within one another, in a circle of definitions",
        "refer back to definitions sooner, in smaller circles",
    ),
    "values": ("values of one 'enum', or names of one 'properties'", "use a 'pattern', or fewer"),
    "text": ("characters of names, values and patterns", "shorten lists of values and patterns"),
    "branches": (
        "alternatives made by merging",
        "put fewer 'anyOf', 'oneOf' and 'not' beside each other, or list the whole alternatives once",
    ),
    "unfolded": (
        "steps of merging",
        "put fewer 'allOf', 'anyOf', 'oneOf' and 'not' beside each other",
    ),
    "regex_states": (
        "states of an automaton",
        "use smaller counts in 'pattern', 'maxLength' and 'multipleOf', and fewer of them at once",
    ),
    "regex_work": (
        "steps for automata",
        "use simpler patterns, fewer 'patternProperties' and fewer of 'pattern', 'format' and 'not' at once",
    ),
    "rules": ("rules of the grammar", "use smaller 'minItems', 'minProperties' and 'minContains'"),
    "grammar": ("characters of the grammar", "remove properties, or split the schema into several requests"),
}
"""By the limit's name: what it counts, and what to change."""


class InvalidPattern(InvalidRequest):
    """A regular expression that is broken or not regular; `position` counts characters."""

    def __init__(self, pattern: str, position: int, message: str) -> None:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        super().__init__(f"pattern {shown!r}, character {position}: {message}.", code="invalid_pattern")
        self.position = position
        self.reason = message


class InvalidGrammar(InvalidRequest):
    """GBNF that is broken or exceeds a limit; line and column count characters from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(f"grammar, line {line}, column {column}: {message}.", code="invalid_grammar")
        self.line = line
        self.column = column
        self.reason = message
