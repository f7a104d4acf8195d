from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol, Union

import msgspec

BYTES_AND_END = 257
"""256 bytes and an end token, before the control tokens that a grammar names."""
FIRST_ITEM, OTHER_ITEM = "=first", "=other"
"""Ends of the names of rules for list items that must differ. `=` is in no other rule's name."""
CAPTURE = 'capture="__LIST_APPEND:'
"""Attribute by which llguidance keeps all texts of a rule. Without the prefix it omits a text that equals the
last one of the same name."""


def is_list_item(rule: str) -> bool:
    return rule.endswith((FIRST_ITEM, OTHER_ITEM))


class GrammarSource(enum.Enum):
    SCHEMA = "schema"
    """JSON text, because the order of properties counts."""
    ANY_OBJECT = "any_object"
    REGEX = "regex"
    CHOICES = "choices"
    GBNF = "gbnf"
    LARK = "lark"
    RUST_REGEX = "rust_regex"
    """Regular expression in the syntax of Lark terminals."""
    PARTS = "parts"
    """Our own GBNF: the root's expression, then lines of rules that refer to `parts`."""


class Notation(enum.Enum):
    JSON = "json"
    PYTHON = "python"
    MARKED = "marked"
    """JSON with bare keys, and raw text between two marks in place of strings."""
    ELEMENTS = "elements"
    """Raw texts in tags, each behind a mark; array items have the tag `item`."""


class ValueSpelling(msgspec.Struct, frozen=True):
    notation: Notation = Notation.JSON
    mark: str = ""
    mark_token: int | None = None
    """Control token of the mark of MARKED and ELEMENTS, or None for plain text."""


JSON_VALUES = ValueSpelling()


class GrammarOrder(msgspec.Struct, frozen=True, kw_only=True):
    source: GrammarSource
    text: str = ""
    pointer: str = ""
    is_strict: bool = True
    """Reject keywords that cannot be enforced."""
    is_flexible: bool = False
    is_open: bool = False
    values: ValueSpelling = JSON_VALUES
    text_end: str = ""
    """Mark behind raw texts of LARK and RUST_REGEX. Without one they are JSON strings."""
    parts: Mapping[str, bytes] = {}


class MadeGrammar(msgspec.Struct, frozen=True, tag="made"):
    lark: str
    rules: bytes
    unenforced: tuple[tuple[str, str], ...] = ()
    """JSON pointers into the schema, each with the keyword that is not enforced there."""
    share: float = 0.0
    is_raw: bool = False
    """Texts are raw and end before the order's `text_end`."""


class RefusedGrammar(msgspec.Struct, frozen=True, tag="refused"):
    message: str
    code: str | None = None
    path: str | None = None


GrammarAnswer = Union[MadeGrammar, RefusedGrammar]


class GrammarMaker(Protocol):
    """Thread-safe function that can take a second."""

    def __call__(self, order: GrammarOrder) -> GrammarAnswer: ...
