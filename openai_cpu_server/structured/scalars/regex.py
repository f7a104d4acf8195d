r"""Languages of patterns and formats, which allow less than a standard where common readers (Python's,
pydantic's) fail.

A tree is read backwards: each part gets the language of all that may follow it, so `(?=x)` is an
intersection. Of what is before, only the last character's class matters, because `\b`, `^` and look-behind
need no more.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, KeysView
from typing import NoReturn

from openai_cpu_server.structured.languages.charset import WORD, CharSet, partition
from openai_cpu_server.structured.languages.expr import (
    ALL,
    EMPTY,
    NOTHING,
    Alt,
    Chars,
    Expr,
    Repeat,
    Seq,
    alt,
    both,
    every_expression,
    negate,
    rebuilt,
    repeat,
    seq,
)
from openai_cpu_server.structured.options import InvalidPattern, Limits
from openai_cpu_server.structured.scalars import regex_parser as syntax

_MOST_COPIES = 12
_MOST_STEPS = 2_000
_MOST_ANCHORED = 100_000
"""Steps where anchors are the only assertions, so that each part is read at most twice."""
_DEEPEST = 100
"""Nested parts. Each takes some levels of Python's stack."""
_Follow = Callable[[int], Expr]
"""Language of what may follow, by the class of the character before."""
_START = -1


def plain(tree: Expr) -> Expr:
    if isinstance(tree, Chars):
        return tree if tree.set else NOTHING
    return rebuilt(tree, map(plain, tree.parts))


def _is_plain(tree: Expr) -> bool:
    return not any(isinstance(x, (syntax.Anchor, *syntax.ASSERTIONS)) for x in every_expression([tree]))


def _joined(items: tuple[Expr, ...]) -> tuple[Expr, ...]:
    found: list[Expr] = []
    for is_plain, run in itertools.groupby(items, _is_plain):
        each = tuple(run)
        last = each[-1:] if is_plain and isinstance(each[-1], Chars) else ()
        body = each[: len(each) - len(last)]
        found += [Repeat(Seq(body), 1, 1)] if is_plain and body else body
        found += last
    return tuple(found)


class AssertionReader:
    def __init__(self, pattern: str, tree: Expr) -> None:
        self._pattern = pattern
        self._tree = tree
        self._num_steps = 0
        self._depth = 0
        parts = every_expression([tree])
        self._has_assertions = any(isinstance(x, syntax.ASSERTIONS) for x in parts)
        edges = [WORD] if any(isinstance(x, syntax.Boundary) for x in parts) else []
        self._classes = partition([*edges, *(x.set for x in parts if isinstance(x, syntax.Behind))])

    def searched(self) -> Expr:

        def follow(before: int) -> Expr:
            return ALL

        at_start = self._read(self._tree, _START, follow)
        later: dict[Expr, list[CharSet]] = {}
        for i, chars in enumerate(self._classes):
            later.setdefault(self._read(self._tree, i, follow), []).append(chars)
        if len(later) == 1:
            (anywhere,) = later
            first, others = _alternatives(at_start), _alternatives(anywhere)
            if others <= first:
                return alt(*(each for each in first if each not in others), seq(ALL, anywhere))
        rest = [seq(ALL, alt(*map(Chars, chars)), language) for language, chars in later.items()]
        return alt(at_start, *rest)

    def matched(self) -> Expr:
        return self._read(self._tree, _START, lambda before: EMPTY)

    def _read(self, tree: Expr, before: int, follow: _Follow) -> Expr:
        self._num_steps += 1
        self._depth += 1
        most_steps = _MOST_STEPS if self._has_assertions else _MOST_ANCHORED
        if self._num_steps > most_steps or self._depth > _DEEPEST:
            self._fail("look-around, '\\b' or anchors in a pattern with too many parts: simplify the pattern")
        found = self._dispatched(tree, before, follow)
        self._depth -= 1
        return found

    def _dispatched(self, tree: Expr, before: int, follow: _Follow) -> Expr:
        if isinstance(tree, syntax.Anchor):
            if tree.is_start:
                return follow(before) if before == _START else NOTHING
            return EMPTY if follow(before).is_nullable else NOTHING
        if isinstance(tree, syntax.ASSERTIONS):
            return both(follow(before), self._asserted(tree, before))
        if isinstance(tree, Chars):
            parts: dict[Expr, list[CharSet]] = {}
            for i, each in enumerate(self._classes):
                if common := tree.set & each:
                    parts.setdefault(follow(i), []).append(common)
            return alt(*(seq(alt(*map(Chars, sets)), language) for language, sets in parts.items()))
        if isinstance(tree, Seq):
            return self._sequence(_joined(tree.items), before, follow)
        if isinstance(tree, Alt):
            return alt(*(self._read(x, before, follow) for x in tree.items))
        assert isinstance(tree, Repeat), tree
        return self._plainly(tree, before, follow) if _is_plain(tree) else self._rounds(tree, before, follow)

    def _asserted(self, tree: syntax.Boundary | syntax.Ahead | syntax.Behind, before: int) -> Expr:
        if isinstance(tree, syntax.Ahead):
            found = self._read(tree.item, before, lambda _: ALL)
            return found if tree.is_wanted else negate(found)
        if isinstance(tree, syntax.Behind):
            return ALL if self._is_in(tree.set, before) == tree.is_wanted else NOTHING
        word_follows = seq(Chars(WORD), ALL)
        wants_word = self._is_in(WORD, before) != tree.is_edge
        return word_follows if wants_word else negate(word_follows)

    def _is_in(self, chars: CharSet, before: int) -> bool:
        return before != _START and self._classes[before].ranges[0][0] in chars

    def _sequence(self, items: tuple[Expr, ...], before: int, follow: _Follow) -> Expr:
        if not items:
            return follow(before)
        languages: dict[int, Expr] = {}

        def rest(last: int) -> Expr:
            if last not in languages:
                languages[last] = self._sequence(items[1:], last, follow)
            return languages[last]

        return self._read(items[0], before, rest)

    def _plainly(self, tree: Repeat, before: int, follow: _Follow) -> Expr:
        language = plain(tree)
        ends: dict[Expr, list[CharSet]] = {}
        for i, chars in enumerate(self._classes):
            ends.setdefault(follow(i), []).append(chars)
        if len(ends) == 1 and (not language.is_nullable or follow(before) in ends):
            return seq(language, next(iter(ends)))
        options = [follow(before)] if language.is_nullable else []
        for behind, sets in ends.items():
            options.append(seq(both(language, seq(ALL, alt(*map(Chars, sets)))), behind))
        return alt(*options)

    def _rounds(self, tree: Repeat, before: int, follow: _Follow) -> Expr:
        if tree.high is not None and tree.high <= _MOST_COPIES:
            needed, spare = (tree.item,) * tree.low, tree.high - tree.low
            rest: Expr = Seq(())
            for _ in range(spare):
                rest = Alt((Seq((tree.item, rest)), Seq(())))
            return self._sequence((*needed, rest), before, follow)
        unwanted = _tempered(tree.item)
        every = (before, *range(len(self._classes)))
        if unwanted is None and not self._has_assertions:
            self._fail("anchors inside a repetition are not supported")
        if unwanted is None or any(follow(i) is not EMPTY for i in every):
            self._fail("look-around inside an endless repetition: state it once, before the repetition")
        texts = repeat(Chars(unwanted[1]), tree.low, tree.high)
        return both(texts, negate(seq(ALL, unwanted[0], ALL)))

    def _fail(self, message: str) -> NoReturn:
        raise InvalidPattern(self._pattern, 0, message)


def _alternatives(language: Expr) -> KeysView[Expr]:
    return dict.fromkeys(language.items if isinstance(language, Alt) else (language,)).keys()


def _tempered(item: Expr) -> tuple[Expr, CharSet] | None:
    match item:
        case Seq((syntax.Ahead(tree, False), Chars(chars))) if _is_plain(tree):
            unwanted = plain(tree)
            return None if unwanted is NOTHING or unwanted.is_nullable else (unwanted, chars)
    return None


@functools.lru_cache(maxsize=32)
def search_language(pattern: str, limits: Limits) -> Expr:
    """Return the strings that contain a match. Raises InvalidPattern."""
    tree = syntax.RegexParser(pattern, limits).parse()
    if _is_plain(tree):
        return seq(ALL, plain(tree), ALL)
    return AssertionReader(pattern, tree).searched()


def full_language(pattern: str, limits: Limits) -> Expr:
    """Return the strings that match as a whole. Raises InvalidPattern."""
    return _language_of(pattern, syntax.RegexParser(pattern, limits))


def rust_language(pattern: str, limits: Limits, flags: str = "") -> Expr:
    return _language_of(pattern, syntax.RustRegexParser(pattern, limits, flags))


def _language_of(pattern: str, parser: syntax.RegexParser) -> Expr:
    tree = parser.parse()
    return plain(tree) if _is_plain(tree) else AssertionReader(pattern, tree).matched()


_DAYS_31 = r"(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])"
_DAYS_30 = r"(?:0[469]|11)-(?:0[1-9]|[12]\d|30)"
_FEBRUARY = r"02-(?:0[1-9]|1\d|2[0-8])"
_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d\d|00[1-9]\d|000[1-9])"
"""Year 0000 of RFC 3339 is left out, which Python's dates lack."""
_FOURTH = r"(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR = rf"(?:\d\d{_FOURTH}|{_FOURTH}00)"
_DATE = rf"(?:{_YEAR}-(?:{_DAYS_31}|{_DAYS_30}|{_FEBRUARY})|{_LEAP_YEAR}-02-29)"
_HOUR, _SIXTY = r"(?:[01]\d|2[0-3])", r"[0-5]\d"
_TIME = rf"{_HOUR}:{_SIXTY}:{_SIXTY}(?:\.\d{{1,9}})?(?:Z|[+-]{_HOUR}:{_SIXTY})"
"""Leap seconds and fractions of nanoseconds are left out; RFC 3339 demands capital letters of writers."""

_CLOCK = r"T(?:\d{1,6}H(?:\d{1,6}M(?:\d{1,6}S)?)?|\d{1,7}M(?:\d{1,7}S)?|\d{1,9}S)"
"""Less than 2**32 seconds in all."""
_CALENDAR = r"(?:\d{1,6}Y(?:\d{1,7}M(?:\d{1,8}D)?)?|\d{1,7}M(?:\d{1,8}D)?|\d{1,8}D)"
"""Less than a billion days, the limit of Python's durations."""
_DURATION = rf"P(?:{_CALENDAR}(?:{_CLOCK})?|{_CLOCK}|\d{{1,8}}W)"


def _label(longest: int) -> str:
    return rf"[A-Za-z0-9](?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?"


def _labels(longest: int, most: int) -> str:
    return rf"{_label(longest)}(?:\.{_label(longest)}){{0,{most - 1}}}"


_HOSTNAME = rf"(?:{_labels(63, 3)}|{_labels(30, 8)}|{_labels(14, 16)})"
"""Length of 253 or less: few labels of any length, or more short ones."""

_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_EMAIL = rf"{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOSTNAME}"

_OCTET = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_H16 = r"[0-9A-Fa-f]{1,4}"
_LS32 = rf"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6 = (
    "(?:"
    + "|".join(
        [
            rf"(?:{_H16}:){{6}}{_LS32}",
            rf"::(?:{_H16}:){{5}}{_LS32}",
            rf"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
            rf"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
            rf"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
            rf"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
            rf"(?:(?:{_H16}:){{0,6}}{_H16})?::",
        ]
    )
    + ")"
)

_PERCENT = r"%[0-9A-Fa-f]{2}"
_UNRESERVED = r"A-Za-z0-9._~!$&'()*+,;=\-"
_PCHAR = rf"(?:[{_UNRESERVED}:@]|{_PERCENT})"
_HOST = rf"(?:\[{_IPV6}\]|(?:[{_UNRESERVED}]|{_PERCENT})*)"
_PORT = r"(?:\d{0,4}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
_AUTHORITY = rf"(?:(?:[{_UNRESERVED}:]|{_PERCENT})*@)?{_HOST}(?::{_PORT})?"
_PATH = rf"(?:[{_UNRESERVED}:@/]|{_PERCENT})*"
"""Flat, so that a limit on the length is cheap."""
_ABSOLUTE = rf"/(?:{_PCHAR}{_PATH})?"
_MORE = rf"(?:[{_UNRESERVED}:@/?]|{_PERCENT})*"
_TAIL = rf"(?:\?{_MORE})?(?:#{_MORE})?"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{_AUTHORITY}(?:/{_PATH})?|{_ABSOLUTE}|{_PCHAR}{_PATH}|){_TAIL}"
_NO_COLON = rf"(?:[{_UNRESERVED}@]|{_PERCENT})+"
_RELATIVE = rf"(?://{_AUTHORITY}(?:/{_PATH})?|{_ABSOLUTE}|{_NO_COLON}(?:/{_PATH})?|){_TAIL}"

_HEX = "[0-9A-Fa-f]"

_TEMPLATE_CHARACTER = r"[!#$&(-;=?-\[\]_a-z~\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\uffef]"
_VARIABLE = rf"(?:\w|{_PERCENT})(?:\.?(?:\w|{_PERCENT}))*(?::[1-9]\d{{0,3}}|\*)?"
_EXPRESSION = rf"\{{[+#./;?&]?{_VARIABLE}(?:,{_VARIABLE})*\}}"
"""Operators that RFC 6570 reserves are left out, because no reader supports them."""
_URI_TEMPLATE = rf"(?:{_TEMPLATE_CHARACTER}|{_PERCENT}|{_EXPRESSION})*"

_IPV4_INTERFACE = rf"{_IPV4}(?:/(?:[12]?\d|3[0-2]))?"
_IPV6_INTERFACE = rf"{_IPV6}(?:/(?:[1-9]?\d|1[01]\d|12[0-8]))?"
_IPV4_NETWORK = (
    rf"(?:{_IPV4}(?:/32)?|{_OCTET}\.{_OCTET}\.{_OCTET}\.0/24|{_OCTET}\.{_OCTET}\.0\.0/16|"
    rf"{_OCTET}\.0\.0\.0/8|0\.0\.0\.0/0)"
)
"""Readers reject addresses with bits behind the network's."""
_IPV6_NETWORK = rf"(?:{_IPV6}(?:/128)?|(?:{_H16}:){{1,4}}:/64|::/0)"


def _base64(more: str, padding: str = "") -> str:
    """`padding`: "?" where it may be left out, as RFC 4648 allows in URLs."""
    char = rf"[A-Za-z0-9{more}]"
    return rf"(?:{char}{{4}})*(?:{char}{{2}}(?:==){padding}|{char}{{3}}={padding})?"


STRING_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}T{_TIME}",
    "duration": _DURATION,
    "email": _EMAIL,
    "hostname": _HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uri": _URI,
    "uri-reference": rf"(?:{_URI}|{_RELATIVE})",
    "uri-template": _URI_TEMPLATE,
    "uuid": rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}",
    "json-pointer": r"(?:/(?:[^~/]|~[01])*)*",
    # Names of pydantic's types.
    **{
        f"uuid{version}": rf"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}"
        for version in (1, 3, 4, 5, 6, 7, 8)
    },
    "ipv4interface": _IPV4_INTERFACE,
    "ipv4network": _IPV4_NETWORK,
    "ipv6interface": _IPV6_INTERFACE,
    "ipv6network": _IPV6_NETWORK,
    "ipvanyaddress": rf"(?:{_IPV4}|{_IPV6})",
    "ipvanyinterface": rf"(?:{_IPV4_INTERFACE}|{_IPV6_INTERFACE})",
    "ipvanynetwork": rf"(?:{_IPV4_NETWORK}|{_IPV6_NETWORK})",
    "base64": _base64("+/"),
    "base64url": _base64("_-"),
}
FORMATS_BESIDE_PATTERNS = {**STRING_FORMATS, "base64url": _base64("_-", "?")}
"""Padding may be left out beside a `pattern`, as RFC 4648 allows and Zod's pattern demands."""
