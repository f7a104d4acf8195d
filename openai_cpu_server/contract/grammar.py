"""Orders to a grammar maker (a reader process) and its answers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol, Union

import msgspec

BYTES_AND_END = 257
"""Vocabulary for checking grammars: 256 bytes and an end token, before the control tokens that a grammar
names."""
FIRST_ITEM, OTHER_ITEM = "=first", "=other"
"""Ends of the names of rules for items of a list that must differ. `=` is in no other rule's name."""
CAPTURE = 'capture="__LIST_APPEND:'
"""Attribute by which llguidance keeps all texts of a rule. Without the prefix it leaves out a text that
equals the last one of the same name."""


def is_list_item(rule: str) -> bool:
    return rule.endswith((FIRST_ITEM, OTHER_ITEM))


class GrammarSource(enum.Enum):
    SCHEMA = "schema"
    """JSON Schema as JSON text, because the order of properties counts."""
    ANY_OBJECT = "any_object"
    REGEX = "regex"
    CHOICES = "choices"
    GBNF = "gbnf"
    LARK = "lark"
    """Text input of a tool, as is RUST_REGEX."""
    RUST_REGEX = "rust_regex"
    """Regular expression in the syntax of Lark terminals."""
    PARTS = "parts"
    """Rules of our own as GBNF: the root's expression, then lines of rules that refer to `parts`."""


class Notation(enum.Enum):
    """Spelling of the values of a schema: JSON, or that of a tool-call format."""

    JSON = "json"
    PYTHON = "python"
    """JSON, or literals of Python."""
    MARKED = "marked"
    """JSON with bare keys, and with raw text between two marks in place of strings."""
    ELEMENTS = "elements"
    """Raw texts in tags, each behind a mark. The tag of array items is `item`."""


class ValueSpelling(msgspec.Struct, frozen=True):
    notation: Notation = Notation.JSON
    mark: str = ""
    mark_token: int | None = None
    """Control token of the mark of MARKED and ELEMENTS, or None if it is plain text."""


JSON_VALUES = ValueSpelling()


class GrammarOrder(msgspec.Struct, frozen=True, kw_only=True):
    source: GrammarSource
    text: str = ""
    pointer: str = ""
    is_strict: bool = True
    """Reject keywords that cannot be enforced, instead of naming them in the answer."""
    is_flexible: bool = False
    """Allow white space between JSON tokens."""
    is_open: bool = False
    """Allow undeclared properties where a schema does not mention them."""
    values: ValueSpelling = JSON_VALUES
    text_end: str = ""
    """Mark behind raw texts of LARK and RUST_REGEX. Without one, or if every text has it, they are JSON
    strings."""
    parts: Mapping[str, bytes] = {}
    """Rules of grammars by their names in `text`."""


class MadeGrammar(msgspec.Struct, frozen=True, tag="made"):
    lark: str
    rules: bytes
    unenforced: tuple[tuple[str, str], ...] = ()
    """JSON pointers into the schema, as `RefusedGrammar.path`, each with the keyword that is left out
    there."""
    share: float = 0.0
    is_raw: bool = False
    """True if texts are raw and end before the order's `text_end`."""


class RefusedGrammar(msgspec.Struct, frozen=True, tag="refused"):
    message: str
    code: str | None = None
    path: str | None = None


GrammarAnswer = Union[MadeGrammar, RefusedGrammar]


class GrammarMaker(Protocol):
    """Thread-safe function that can take a second."""

    def __call__(self, order: GrammarOrder) -> GrammarAnswer: ...
