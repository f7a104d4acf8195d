"""What is asked of whoever makes grammars (a reader process), and what comes of it."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Protocol, Union

import msgspec

BYTES_AND_END = 257
"""Tokens of the vocabulary on which grammars are checked: 256 bytes and an end. Behind them come control
tokens, in the order in which a grammar names them."""


class GrammarSource(enum.Enum):
    """What a grammar is made of."""

    SCHEMA = "schema"
    """A JSON Schema, as JSON text: the order of its properties counts."""
    ANY_OBJECT = "any_object"
    REGEX = "regex"
    CHOICES = "choices"
    """A list of texts, as JSON."""
    GBNF = "gbnf"
    """A client's own."""
    LARK = "lark"
    """A client's own, for the text that a tool takes."""
    RUST_REGEX = "rust_regex"
    """A client's own, in the syntax that terminals of Lark have."""
    PARTS = "parts"
    """Our own rules, as GBNF: the root's expression, then lines of rules. They refer to `parts`."""


class GrammarOrder(msgspec.Struct, frozen=True, kw_only=True):
    source: GrammarSource
    text: str = ""
    pointer: str = ""
    """The place in the schema whose values are wanted: a JSON pointer."""
    is_strict: bool = True
    """What cannot be enforced is refused; else it is left out and named."""
    is_flexible: bool = False
    """White space may stand between the tokens of JSON."""
    text_end: str = ""
    """Texts of LARK and RUST_REGEX stand raw before this mark, and do not contain it; without a mark, or
    where no text lacks it, they are JSON strings."""
    parts: Mapping[str, bytes] = {}
    """What grammars are made of, by the names that `text` has for them."""


class MadeGrammar(msgspec.Struct, frozen=True, tag="made"):
    """A grammar that is known to compile."""

    lark: str
    """What llguidance runs. Control tokens are there by their numbers."""
    rules: bytes
    """What it is made of, for grammars that it is a part of."""
    unenforced: tuple[tuple[str, str], ...] = ()
    """JSON pointers within the schema, each with a keyword that is left out there."""
    share: float = 0.0
    """What a schema cost, as a share of what one may cost."""
    is_raw: bool = False
    """Texts stand raw before the order's `text_end`."""


class RefusedGrammar(msgspec.Struct, frozen=True, tag="refused"):
    message: str
    code: str | None = None
    path: str | None = None
    """The place within the schema, as a JSON pointer, where that is known."""


GrammarAnswer = Union[MadeGrammar, RefusedGrammar]


class GrammarMaker(Protocol):
    """Any thread may call it. It can take a second."""

    def __call__(self, order: GrammarOrder) -> GrammarAnswer: ...
