r"""Values as text, in JSON and in other notations of tool calls.

In JSON, characters beyond ASCII may be written as `\uXXXX` too, because many programs do so.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable

from openai_cpu_server.contract.grammar import Notation, ValueSpelling
from openai_cpu_server.structured.languages.automaton import Automaton
from openai_cpu_server.structured.languages.charset import ANY, DIGITS, CharSet
from openai_cpu_server.structured.languages.expr import (
    EMPTY,
    NOTHING,
    ROOT,
    Chars,
    Expr,
    GrammarRules,
    Ref,
    Seq,
    Text,
    Token,
    alt,
    both,
    literal,
    negate,
    rebuilt,
    repeat,
    rewritten,
    seq,
)
from openai_cpu_server.structured.languages.rewriting import RuleProduct, merged_ways
from openai_cpu_server.structured.options import InvalidGrammar, Whitespace
from openai_cpu_server.structured.scalars.numbers import Digits
from openai_cpu_server.structured.writing.grammar import GrammarBuilder, pruned_rules

_MOST_BLANKS = 40


class Punctuation:
    """Marks take the white space on both sides, so that there is one way to read it."""

    def __init__(self, grammar: GrammarBuilder, whitespace: Whitespace, *, has_spaces: bool = False) -> None:
        """`has_spaces`: a space may stand behind each mark."""
        self._grammar = grammar
        self._blank = repeat(Chars(CharSet.chars(" ")), 0, 1) if has_spaces else EMPTY
        if whitespace is Whitespace.FLEXIBLE:
            self._blank = repeat(Chars(CharSet.chars(" \t\n\r")), 0, _MOST_BLANKS)

    def _mark(self, name: str, before: Expr, text: str) -> Expr:
        lexeme = self._grammar.define(f"{name}-mark", seq(before, Text(text), self._blank))
        return self._grammar.structural(name, lexeme)

    def _end(self, name: str, text: str) -> Expr:
        return self._grammar.define(name, seq(self._blank, Text(text)))

    @functools.cached_property
    def open_object(self) -> Expr:
        return self._mark("open", EMPTY, "{")

    @functools.cached_property
    def close_object(self) -> Expr:
        return self._end("end", "}")

    @functools.cached_property
    def open_array(self) -> Expr:
        return self._mark("list", EMPTY, "[")

    @functools.cached_property
    def close_array(self) -> Expr:
        return self._end("list-end", "]")

    @functools.cached_property
    def comma(self) -> Expr:
        return self._mark("comma", self._blank, ",")

    def member(self, name: Expr, value: Expr) -> Expr:
        """Name and colon are one lexeme."""
        colon = seq(self._blank, Text(":"), self._blank)
        if isinstance(name, Text) and colon == Text(":"):
            return seq(Text(name.text + ":"), value)
        return seq(self._grammar.define("key", seq(name, colon)), value)

    def item(self, value: Expr) -> Expr:
        return value


_MUST_ESCAPE = CharSet.chars('"\\') | CharSet.of((0, 0x1F))
_SHORT = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", '"': '"', "\\": "\\"}
_BEYOND_ASCII = CharSet.of((0x7F, 0xFFFF))
"""DEL is a control that may be written either way."""
_BEYOND_BMP = CharSet.of((0x10000, 0x10FFFF))
_ESCAPED = _MUST_ESCAPE | _BEYOND_ASCII | _BEYOND_BMP
"""Characters that may be escaped; in a string without limits, all may."""
_MOST_ESCAPED_RANGES = 16
"""Ranges of a set that may be written as escapes, from the lowest."""
_HEX = DIGITS | CharSet.chars("abcdefABCDEF")
_HEXADECIMAL = Digits(tuple(CharSet.chars(digit + digit.upper()) for digit in "0123456789abcdef"))


class JsonText:
    """JSON strings, unless a subclass spells characters and ends in another way."""

    null: Expr = Text("null")

    def __init__(self, grammar: GrammarBuilder) -> None:
        self._grammar = grammar
        self._character = functools.cache(self._of_set)

    def string(self, content: Expr) -> Expr:
        plain = plain_text(content)
        if plain is not None:
            return self.exactly(plain)
        return self._grammar.define("string", self._whole(self.content(content)))

    def boolean(self, value: bool) -> Expr:
        return Text("true" if value else "false")

    def by_states(self, automaton: Automaton) -> Expr:
        states = self._grammar.by_states("text", automaton, lambda chars: self.content(Chars(chars)))
        return self._whole(states)

    def exactly(self, text: str) -> Expr:
        if text.isascii():
            return Text(json.dumps(text))
        return self._grammar.define("string", self._whole(self.content(literal(text))))

    def none_of(self, texts: list[str], content: Expr) -> Expr:
        """Needless escapes are forbidden, because they would be other spellings."""
        excluded = [*map(self._excluded, texts)]
        return self._whole(both(_spelt(content, self._character), negate(alt(*excluded))))

    def content(self, content: Expr) -> Expr:
        return _spelt(content, self._freely)

    def _whole(self, content: Expr) -> Expr:
        return seq(Text('"'), content, Text('"'))

    def _excluded(self, text: str) -> Expr:
        is_plain = text.isascii() and text.isprintable()
        return Text(json.dumps(text)[1:-1]) if is_plain else _spelt(literal(text), self._character)

    def _freely(self, chars: CharSet) -> Expr:
        return self._grammar.define("char", _any_character()) if chars == ANY else self._character(chars)

    def _of_set(self, chars: CharSet) -> Expr:
        raw = chars - _MUST_ESCAPE
        if raw == chars and not raw & (_BEYOND_ASCII | _BEYOND_BMP):
            return Chars(raw)
        if not _ESCAPED - chars:
            return alt(Chars(raw), self._grammar.define("escape", _any_escape()))
        whole = alt(*([Chars(raw)] if raw else []), *_escapes(chars))
        return whole if chars.size == 1 else self._grammar.define("char", whole)


def _spelt(content: Expr, spelt: Callable[[CharSet], Expr]) -> Expr:
    if isinstance(content, Chars):
        return spelt(content.set)
    return rebuilt(content, map(functools.partial(_spelt, spelt=spelt), content.parts))


def needfully_escaped(chars: CharSet) -> Expr:
    raw, others = chars - _MUST_ESCAPE, chars & _MUST_ESCAPE
    return alt(*([Chars(raw)] if raw else []), *_escapes(others)) if others else Chars(raw)


def plain_text(content: Expr) -> str | None:
    """Return None unless the language plainly has one string."""
    items = content.items if isinstance(content, Seq) else (content,)
    chars = [chr(x.set.ranges[0][0]) for x in items if isinstance(x, Chars) and x.set.size == 1]
    return "".join(chars) if len(chars) == len(items) else None


@functools.cache
def _any_escape() -> Expr:
    return alt(*_escapes(_ESCAPED))


@functools.cache
def _any_character() -> Expr:
    """Lone surrogates are left out."""
    unit = alt(
        seq(Chars(_HEX - CharSet.chars("dD")), repeat(Chars(_HEX), 3, 3)),
        seq(Chars(CharSet.chars("dD")), Chars(CharSet.chars("01234567")), repeat(Chars(_HEX), 2, 2)),
        _surrogates(),
    )
    escape = alt(Chars(CharSet.chars('"\\/bfnrt')), seq(Text("u"), unit))
    return alt(Chars(ANY - _MUST_ESCAPE), seq(Text("\\"), escape))


def _surrogates() -> Expr:
    r"""Low and high half, behind the first `\u`."""
    two = repeat(Chars(_HEX), 2, 2)
    high = seq(Chars(CharSet.chars("dD")), Chars(CharSet.chars("89abAB")), two)
    return seq(high, Text("\\u"), Chars(CharSet.chars("dD")), Chars(CharSet.chars("cdefCDEF")), two)


def _escapes(chars: CharSet) -> list[Expr]:
    short = "".join(letter for char, letter in _SHORT.items() if ord(char) in chars)
    controls = chars & (CharSet.of((0, 0x1F)) - CharSet.chars("".join(_SHORT)))
    beyond = chars & _BEYOND_ASCII
    escapes = [seq(Text("\\"), Chars(CharSet.chars(short)))] if short else []
    escapes += [seq(Text("\\u"), _HEXADECIMAL.numbers(low, high, 4)) for low, high in controls.ranges]
    for low, high in beyond.ranges[:_MOST_ESCAPED_RANGES]:
        escapes.append(seq(Text("\\u"), _HEXADECIMAL.numbers(low, high, 4)))
    return escapes + _pairs(chars & _BEYOND_BMP)


def _pairs(chars: CharSet) -> list[Expr]:
    if chars == _BEYOND_BMP:
        return [seq(Text("\\u"), _surrogates())]
    if chars.size != 1:
        return []
    code = chars.ranges[0][0] - 0x10000
    high, low = 0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF)
    return [
        seq(Text("\\u"), _HEXADECIMAL.numbers(high, high, 4), Text("\\u"), _HEXADECIMAL.numbers(low, low, 4))
    ]


def raw_texts(rules: GrammarRules, mark: str) -> GrammarRules:
    """Return the texts up to `mark`, or {} if there are none or that is too much work."""
    try:
        return pruned_rules(_MarkFree(rules, mark).rules)
    except InvalidGrammar:
        return {}


def quoted_texts(rules: GrammarRules) -> GrammarRules:
    escaped = rewritten(rules, _escaped)
    inner = next(f"{ROOT}-{number}" for number in range(len(rules) + 1) if f"{ROOT}-{number}" not in rules)
    text = escaped.pop(ROOT)
    return {ROOT: seq(Text('"'), Ref(inner), Text('"')), inner: text, **escaped}


def _escaped(expr: Expr) -> Expr:
    if isinstance(expr, Chars):
        return needfully_escaped(expr.set)
    if isinstance(expr, Text):
        return seq(*(needfully_escaped(CharSet.chars(char)) for char in expr.text))
    return expr


class _MarkFree(RuleProduct[int]):
    """A state counts the characters of the mark that have come."""

    def __init__(self, source: GrammarRules, mark: str) -> None:
        self._mark = mark
        self._alphabet = [CharSet.chars(char) for char in dict.fromkeys(mark)]
        self._others = ANY - CharSet.chars(mark)
        super().__init__(dict(source), ROOT, 0)

    def _leaf(self, expr: Expr, before: int) -> dict[int, Expr]:
        if isinstance(expr, Text):
            return self._ways(literal(expr.text), before)
        assert isinstance(expr, Chars), expr
        ways: list[dict[int, Expr]] = [{0: Chars(expr.set & self._others)}] if expr.set & self._others else []
        for each in self._alphabet:
            after = self._next(before, chr(each.ranges[0][0]))
            if expr.set & each and after < len(self._mark):
                ways.append({after: Chars(each)})
        return merged_ways(ways)

    def _may_end(self, state: int) -> bool:
        """The text's end and the mark behind it must not form the mark sooner."""
        for char in self._mark[:-1]:
            state = self._next(state, char)
            if state == len(self._mark):
                return False
        return True

    def _next(self, state: int, char: str) -> int:
        text = self._mark[:state] + char
        return next(size for size in range(len(text), -1, -1) if text.endswith(self._mark[:size]))


def value_writing(
    grammar: GrammarBuilder, spelling: ValueSpelling, whitespace: Whitespace
) -> tuple[Punctuation, JsonText, JsonText]:
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


_SHORT_IN_SINGLE_QUOTES = {"\n": "n", "\r": "r", "\t": "t", "'": "'", "\\": "\\"}
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
        short = "".join(letter for char, letter in _SHORT_IN_SINGLE_QUOTES.items() if ord(char) in chars)
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
        """Readers ignore the name in the second tag."""
        return seq(self._tag("<", name), value, self._tag("</", name))

    def item(self, value: Expr) -> Expr:
        return self.member(Text("item"), value)

    def _tag(self, begin: str, name: Expr) -> Expr:
        return self._grammar.structural("tag", seq(self._element_mark, Text(begin), name, Text(">")))
