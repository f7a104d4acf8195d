"""What the caller may choose, what a schema may cost, and why one cannot be compiled or enforced in full."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.languages.rules import MOST_LEVELS


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
        place = "" if path is None else f"{path or '/'}: "
        super().__init__(f"{place}The schema is too large: more than {value} {named}; {advice}.")
        self.limit = limit
        self.value = value
        self.path = path


class GrammarTooLarge(InvalidRequest):
    """The same for what is no schema: `what` names it."""

    def __init__(self, what: str, found: SchemaTooLarge) -> None:
        named, advice = _OTHERS.get(found.limit, (_LIMITS[found.limit][0], "make it smaller"))
        message = f"{what} is too large: more than {found.value} {named}; {advice}."
        super().__init__(message, code="invalid_grammar")


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


_OTHERS = {
    "values": ("choices", "give fewer, or a pattern"),
    "text": ("characters", "make it shorter"),
    "depth": ("levels of nesting", "nest groups less"),
    "regex_states": ("states of an automaton", "use smaller counts, and simpler look-around"),
    "regex_work": ("steps for automata", "use simpler patterns"),
    "grammar": ("characters of the grammar", "make it shorter"),
}


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


class Whitespace(enum.Enum):
    COMPACT = "compact"
    """No white space between tokens: `{"a":1}`."""
    FLEXIBLE = "flexible"
    """Up to 40 blanks and line ends around punctuation."""


class PropertyOrder(enum.Enum):
    """The order in which an object's declared properties may stand. Additional ones come after them."""

    SCHEMA = "schema"
    """The order of `properties`, then names that only `required` mentions.

    If `properties` are sorted by name and `required` names them in another order, then that order too: a
    program has sorted them, so that only `required` tells which order the author meant.
    """
    ANY = "any"
    """Any order for up to five properties; for more, the order of `properties`, or that of `required` first.

    Additional properties may stand anywhere. This is for checking what others wrote, not for writing.
    """


class Limits(msgspec.Struct, frozen=True):
    """Limits are counted, not timed, so that a schema passes or fails on every machine."""

    containers: int = 60_000
    """Objects and lists in the document, for whatever use."""
    schemas: int = 12_000
    """Subschemas that are looked at."""
    depth: int = 48
    """Levels of nested subschemas, of values in a `const`, and of groups in a pattern."""
    references: int = 200
    """References in a row that lead from one value to the same value, as `allOf` with a `$ref` does."""
    levels: int = MOST_LEVELS
    """Levels of rules within one another (`languages.order`) where rules lead back to themselves."""
    values: int = 2_000
    """Values of one `enum`, or names of one `properties`."""
    text: int = 200_000
    """Characters of all names, values and patterns together."""
    branches: int = 6_000
    """Alternatives that merging makes of `anyOf`, `oneOf`, `not` and their like, over the whole schema."""
    unfolded: int = 60_000
    """Steps of that merging."""
    regex_states: int = 1_500
    """States of one automaton."""
    regex_work: int = 80_000
    """Transitions of all automata together."""
    rules: int = 10_000
    grammar: int = 600_000
    """Characters of the finished text."""


class Options(msgspec.Struct, frozen=True):
    whitespace: Whitespace = Whitespace.COMPACT
    order: PropertyOrder = PropertyOrder.SCHEMA
    strict: bool = True
    """Whether keywords that cannot be enforced are refused; else they are left out and reported."""
    limits: Limits = msgspec.field(default_factory=Limits)


_WORK = ("schemas", "text", "branches", "unfolded", "regex_work", "rules", "grammar")
"""These limits are about time."""


class Budget:
    """The rest of each limit while one schema is compiled."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._allowed: dict[str, int] = msgspec.structs.asdict(limits)
        self._spent: dict[str, int] = {}
        self.path: str | None = None
        """The place in the schema that is being looked at, as a JSON pointer."""

    def spend(self, limit: str, amount: int = 1) -> None:
        """Count a cost. Raises SchemaTooLarge once the sum exceeds the limit of that name."""
        spent = self._spent[limit] = self._spent.get(limit, 0) + amount
        if spent > self._allowed[limit]:
            raise SchemaTooLarge(limit, self._allowed[limit], self.path)

    def spent(self, limit: str) -> int:
        return self._spent.get(limit, 0)

    @property
    def share(self) -> float:
        """What was spent, as a share of all that may be: 1 is about a second."""
        return sum(self.spent(limit) / self._allowed[limit] for limit in _WORK)

    def check(self, limit: str, amount: int, path: str | None = None) -> None:
        """Raises SchemaTooLarge, which names `path`, a pointer into the schema; None: what is looked at."""
        if amount > self._allowed[limit]:
            raise SchemaTooLarge(limit, self._allowed[limit], self.path if path is None else path)

    @contextmanager
    def looking_at(self, path: str) -> Iterator[None]:
        """Limits that are exceeded in the block name this place."""
        before, self.path = self.path, path
        try:
            yield
        except RecursionError:
            raise SchemaTooLarge("depth", self.limits.depth, path) from None
        finally:
            self.path = before


class Unenforced(msgspec.Struct, frozen=True):
    """A keyword that was left out of the grammar."""

    path: str
    keyword: str


class UnenforcedReport:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._found: dict[Unenforced, None] = {}

    def refuse(self, path: str, keyword: str, reason: str) -> None:
        """Refuse a keyword. Raises UnsupportedSchema, unless unenforced keywords are only to be noted."""
        if self._strict:
            raise UnsupportedSchema(path, keyword, reason)
        self.note(path, keyword)

    def note(self, path: str, keyword: str) -> None:
        """Note a keyword that the standard lets give way."""
        self._found[Unenforced(path, keyword)] = None

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return tuple(self._found)
