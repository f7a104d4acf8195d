"""Values as they are spelt in tool calls whose syntax is not JSON."""

from __future__ import annotations

from openai_cpu_server.contract.grammar import Notation, ValueSpelling
from openai_cpu_server.structured.languages.automaton import Automaton
from openai_cpu_server.structured.languages.charset import ANY, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    Chars,
    Expr,
    Text,
    Token,
    alt,
    both,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import Whitespace
from openai_cpu_server.structured.writing.grammar import GrammarBuilder
from openai_cpu_server.structured.writing.json_text import JsonText, Punctuation


def value_writing(
    grammar: GrammarBuilder, spelling: ValueSpelling, whitespace: Whitespace
) -> tuple[Punctuation, JsonText, JsonText]:
    """Return the marks, and the spelling of texts and of names."""
    mark = Text(spelling.mark) if spelling.mark_token is None else Token(spelling.mark_token)
    match spelling.notation:
        case Notation.JSON:
            texts = JsonText(grammar)
            return Punctuation(grammar, whitespace), texts, texts
        case Notation.PYTHON:
            texts = PythonText(grammar)
            return Punctuation(grammar, whitespace, has_spaces=True), texts, texts
        case Notation.MARKED:
            texts = RawText(grammar, spelling, mark, CharSet.chars("\0"))
            return (
                Punctuation(grammar, whitespace),
                texts,
                BareName(grammar, spelling, _IN_NO_BARE_KEY, texts),
            )
        case Notation.ELEMENTS:
            texts = RawText(grammar, spelling, EMPTY, CharSet.chars("\0"))
            return Elements(grammar, mark), texts, BareName(grammar, spelling, CharSet.chars("\0<>/"), None)


_IN_NO_BARE_KEY = CharSet.of((0, 0x20)) | CharSet.chars(",:{}[]()'\"<\\\x85\xa0")


class RawText(JsonText):
    """Texts without escapes. If a mark that is plain text ends them, its first character is not in them."""

    def __init__(
        self, grammar: GrammarBuilder, spelling: ValueSpelling, around: Expr, forbidden: CharSet
    ) -> None:
        super().__init__(grammar)
        self._mark = spelling.mark
        self._around = around
        is_text = spelling.mark_token is None
        self._forbidden = forbidden | CharSet.chars(self._mark[0]) if is_text else forbidden

    def exactly(self, text: str) -> Expr:
        return NOTHING if self._mark in text or "\0" in text else self._whole(Text(text))

    def _whole(self, content: Expr) -> Expr:
        return self._grammar.define("string", seq(self._around, content, self._around))

    def _excluded(self, text: str) -> Expr:
        return Text(text)

    def _freely(self, chars: CharSet) -> Expr:
        return self._character(chars)

    def _of_set(self, chars: CharSet) -> Expr:
        return Chars(chars - self._forbidden)


class BareName(RawText):
    def __init__(
        self, grammar: GrammarBuilder, spelling: ValueSpelling, forbidden: CharSet, others: RawText | None
    ) -> None:
        """`others`: spelling of names that cannot stand bare, or None if there is none."""
        super().__init__(grammar, spelling, EMPTY, forbidden)
        self._others = others

    def exactly(self, text: str) -> Expr:
        if text and not any(ord(char) in self._forbidden for char in text):
            return Text(text)
        return NOTHING if self._others is None else self._others.exactly(text)

    def _whole(self, content: Expr) -> Expr:
        some = seq(Chars(ANY), repeat(Chars(ANY), 0, None))
        return self._grammar.define("name", both(content, some))


class PythonText(JsonText):
    null = alt(Text("null"), Text("None"))

    def __init__(self, grammar: GrammarBuilder) -> None:
        super().__init__(grammar)
        self._single = _SingleQuoted(grammar)

    def string(self, content: Expr) -> Expr:
        return alt(super().string(content), self._single.string(content))

    def by_states(self, automaton: Automaton) -> Expr:
        return alt(super().by_states(automaton), self._single.by_states(automaton))

    def exactly(self, text: str) -> Expr:
        return alt(super().exactly(text), self._single.exactly(text))

    def none_of(self, texts: list[str], content: Expr) -> Expr:
        return alt(super().none_of(texts, content), self._single.none_of(texts, content))

    def boolean(self, value: bool) -> Expr:
        return alt(super().boolean(value), Text(str(value)))


_SHORT = {"\n": "n", "\r": "r", "\t": "t", "'": "'", "\\": "\\"}
_CONTROLS = CharSet.of((0, 0x1F))


class _SingleQuoted(JsonText):
    """Control characters without a short escape are left to JSON strings."""

    def exactly(self, text: str) -> Expr:
        return self._whole(self._excluded(text))

    def _whole(self, content: Expr) -> Expr:
        return self._grammar.define("string", seq(Text("'"), content, Text("'")))

    def _excluded(self, text: str) -> Expr:
        return seq(*(self._character(CharSet.chars(char)) for char in text))

    def _freely(self, chars: CharSet) -> Expr:
        return self._character(chars)

    def _of_set(self, chars: CharSet) -> Expr:
        short = "".join(letter for char, letter in _SHORT.items() if ord(char) in chars)
        raw = chars - _CONTROLS - CharSet.chars("'\\")
        escapes = [seq(Text("\\"), Chars(CharSet.chars(short)))] if short else []
        return alt(*([Chars(raw)] if raw else []), *escapes)


class Elements(Punctuation):
    def __init__(self, grammar: GrammarBuilder, mark: Expr) -> None:
        super().__init__(grammar, Whitespace.COMPACT)
        self._element_mark = mark

    def _mark(self, name: str, before: Expr, text: str) -> Expr:
        return EMPTY

    def _end(self, name: str, text: str) -> Expr:
        return EMPTY

    def member(self, name: Expr, value: Expr) -> Expr:
        """Return a property between its tags. Readers ignore the name in the second one."""
        return seq(self._tag("<", name), value, self._tag("</", name))

    def item(self, value: Expr) -> Expr:
        return self.member(Text("item"), value)

    def _tag(self, begin: str, name: Expr) -> Expr:
        return self._grammar.structural("tag", seq(self._element_mark, Text(begin), name, Text(">")))
