"""Options of the caller, limits on the cost of a schema, and errors."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec

from openai_cpu_server.contract.grammar import JSON_VALUES, ValueSpelling
from openai_cpu_server.errors import InvalidRequest
from openai_cpu_server.structured.languages.rules import MOST_LEVELS

_MOST_NAMED = 10


class UnsupportedSchema(InvalidRequest):
    """`path`: JSON pointer. `others`: further places."""

    def __init__(
        self,
        path: str,
        keyword: str,
        reason: str = "cannot be enforced by a grammar",
        others: Sequence[Unenforced] = (),
    ) -> None:
        message = f"{path or '/'}: '{keyword}' {reason}."
        if others:
            named = [f"'{x.keyword}' at {x.path or '/'}" for x in others[:_MOST_NAMED]]
            more = len(others) - len(named)
            named += [f"{more} more"] if more else []
            message += f" Not enforced either: {', '.join(named)}."
        super().__init__(message, code="unsupported_schema")
        self.path = path
        self.keyword = keyword
        self.reason = reason
        self.others = tuple(others)


class InvalidSchema(InvalidRequest):
    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or '/'}: {message}.", code="invalid_schema")
        self.path = path


class SchemaTooLarge(InvalidRequest):
    """`limit`: field of `Limits`. `path`: JSON pointer, or None if unknown."""

    def __init__(self, limit: str, value: int, path: str | None = None) -> None:
        named, advice = _LIMITS.get(limit, (limit.replace("_", " "), "make it smaller"))
        place = "" if path is None else f"{path or '/'}: "
        super().__init__(f"{place}The schema is too large: more than {value} {named}; {advice}.")
        self.limit = limit
        self.value = value
        self.path = path


class GrammarTooLarge(InvalidRequest):
    """Too large, but not a schema. `what` names the input."""

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
    "unfolded": ("steps of merging", "put fewer 'allOf', 'anyOf', 'oneOf' and 'not' beside each other"),
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
    "symbols": ("symbols of the grammar", "remove properties, or split the schema into several requests"),
}


_OTHERS = {
    "values": ("choices", "give fewer, or a pattern"),
    "text": ("characters", "make it shorter"),
    "depth": ("levels of nesting", "nest groups less"),
    "regex_states": ("states of an automaton", "use smaller counts, and simpler look-around"),
    "regex_work": ("steps for automata", "use simpler patterns"),
    "grammar": ("characters of the grammar", "make it shorter"),
    "symbols": ("symbols of the grammar", "make it shorter"),
}


class InvalidPattern(InvalidRequest):
    def __init__(self, pattern: str, position: int, message: str) -> None:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        super().__init__(f"pattern {shown!r}, character {position}: {message}.", code="invalid_pattern")
        self.position = position
        self.reason = message


class InvalidGrammar(InvalidRequest):
    """Line and column count characters from 1."""

    def __init__(self, line: int, column: int, message: str) -> None:
        super().__init__(f"grammar, line {line}, column {column}: {message}.", code="invalid_grammar")
        self.line = line
        self.column = column
        self.reason = message


class Whitespace(enum.Enum):
    COMPACT = "compact"
    """Like `{"a":1}`."""
    FLEXIBLE = "flexible"
    """Blanks and line ends around punctuation, 40 or fewer."""


class PropertyOrder(enum.Enum):
    """Order of an object's declared properties, which usually precede additional ones."""

    SCHEMA = "schema"
    """Order of `properties`, then names that only `required` mentions.

    Where a program has sorted `properties`, the order of an unsorted `required` is allowed too.
    """
    ANY = "any"
    """Any order for up to five properties; more keep the order of `properties` or of `required`."""


class Additional(enum.Enum):
    """Properties of an object that declares `properties` and does not mention additional ones."""

    OPEN = "open"
    """Others, to the letter of the standard."""
    CLOSED = "closed"
    """Models that may invent names do so."""


class Limits(msgspec.Struct, frozen=True):
    """Counted, not timed, so that a schema passes or fails on every machine."""

    containers: int = 60_000
    schemas: int = 12_000
    depth: int = 48
    references: int = 200
    """References in a row to the same value, as by `allOf` with a `$ref`."""
    levels: int = MOST_LEVELS
    values: int = 2_000
    text: int = 200_000
    branches: int = 6_000
    unfolded: int = 60_000
    regex_states: int = 1_500
    regex_work: int = 80_000
    rules: int = 10_000
    grammar: int = 600_000

    @property
    def enlarged(self) -> Limits:
        return msgspec.structs.replace(self, **{name: 4 * getattr(self, name) for name in _WORK})


class Options(msgspec.Struct, frozen=True):
    whitespace: Whitespace = Whitespace.COMPACT
    order: PropertyOrder = PropertyOrder.SCHEMA
    additional: Additional = Additional.OPEN
    values: ValueSpelling = JSON_VALUES
    strict: bool = True
    """True rejects keywords that cannot be enforced."""
    limits: Limits = msgspec.field(default_factory=Limits)


_WORK = ("schemas", "text", "branches", "unfolded", "regex_work", "rules", "grammar")
"""Limits that are about time."""


class Budget:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._allowed: dict[str, int] = msgspec.structs.asdict(limits)
        self._spent: dict[str, int] = {}
        self.path: str | None = None

    def spend(self, limit: str, amount: int = 1) -> None:
        """Count a cost. Raises SchemaTooLarge."""
        spent = self._spent[limit] = self._spent.get(limit, 0) + amount
        if spent > self._allowed[limit]:
            raise SchemaTooLarge(limit, self._allowed[limit], self.path)

    def spent(self, limit: str) -> int:
        return self._spent.get(limit, 0)

    @property
    def share(self) -> float:
        """Return the cost as a share of the limits; 1 is about a second."""
        return sum(self.spent(limit) / self._allowed[limit] for limit in _WORK)

    def check(self, limit: str, amount: int, path: str | None = None) -> None:
        """`path`: None for the current place."""
        if amount > self._allowed[limit]:
            raise SchemaTooLarge(limit, self._allowed[limit], self.path if path is None else path)

    @contextmanager
    def looking_at(self, path: str) -> Iterator[None]:
        """Name this place in errors. Raises SchemaTooLarge for a RecursionError."""
        before, self.path = self.path, path
        try:
            yield
        except RecursionError:
            raise SchemaTooLarge("depth", self.limits.depth, path) from None
        finally:
            self.path = before


class Unenforced(msgspec.Struct, frozen=True):
    path: str
    keyword: str


class UnenforcedReport:
    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._found: dict[Unenforced, None] = {}
        self._reasons: dict[Unenforced, str] = {}

    def refuse(self, path: str, keyword: str, reason: str) -> None:
        if self._strict:
            raise UnsupportedSchema(path, keyword, reason)
        self._reasons.setdefault(Unenforced(path, keyword), reason)
        self.note(path, keyword)

    def add_joined(self, joined: Mapping[tuple[str, str], Iterable[tuple[str, str]]]) -> None:
        queue = list(self._found)
        for each in queue:
            for path, keyword in joined.get((each.path, each.keyword), ()):
                if (other := Unenforced(path, keyword)) not in self._found:
                    self._found[other] = None
                    queue.append(other)
                if each in self._reasons:
                    self._reasons.setdefault(other, self._reasons[each])

    @property
    def error(self) -> UnsupportedSchema | None:
        if not self._reasons:
            return None
        (first, reason), *_ = self._reasons.items()
        others = [each for each in self._reasons if each != first]
        return UnsupportedSchema(first.path, first.keyword, reason, others)

    def note(self, path: str, keyword: str) -> None:
        """Note a keyword that the standard lets give way."""
        self._found[Unenforced(path, keyword)] = None

    @property
    def unenforced(self) -> tuple[Unenforced, ...]:
        return tuple(self._found)
