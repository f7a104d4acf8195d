"""Braces, brackets, commas and colons, with the white space that may stand around them."""

from __future__ import annotations

import functools

from openai_cpu_server.structured.languages.charset import CharSet
from openai_cpu_server.structured.languages.expr import EMPTY, Chars, Expr, Text, repeat, seq
from openai_cpu_server.structured.options import Whitespace
from openai_cpu_server.structured.writing.grammar import Grammar

_MOST_BLANKS = 40


class Punctuation:
    """Each mark takes the white space on both sides, so that it can be read in one way only."""

    def __init__(self, grammar: Grammar, whitespace: Whitespace) -> None:
        self._grammar = grammar
        self._blank = EMPTY
        if whitespace is Whitespace.FLEXIBLE:
            self._blank = repeat(Chars(CharSet.chars(" \t\n\r")), 0, _MOST_BLANKS)

    def _mark(self, name: str, before: Expr, text: str, after: Expr) -> Expr:
        return self._grammar.structural(
            name, self._grammar.define(f"{name}-mark", seq(before, Text(text), after))
        )

    @functools.cached_property
    def open_object(self) -> Expr:
        return self._mark("open", EMPTY, "{", self._blank)

    @functools.cached_property
    def close_object(self) -> Expr:
        return self._grammar.define("end", seq(self._blank, Text("}")))

    @functools.cached_property
    def open_array(self) -> Expr:
        return self._mark("list", EMPTY, "[", self._blank)

    @functools.cached_property
    def close_array(self) -> Expr:
        return self._grammar.define("list-end", seq(self._blank, Text("]")))

    @functools.cached_property
    def comma(self) -> Expr:
        return self._mark("comma", self._blank, ",", self._blank)

    def key(self, content: Expr) -> Expr:
        """A property's name in quotes with its colon, as one lexeme."""
        colon = seq(self._blank, Text(":"), self._blank)
        if isinstance(content, Text) and colon == Text(":"):
            return Text(content.text + ":")
        return self._grammar.define("key", seq(content, colon))
