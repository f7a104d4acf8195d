"""Fit of a text to a grammar, and lists whose items must differ."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from openai_cpu_server.contract.grammar import BYTES_AND_END, CAPTURE, FIRST_ITEM
from openai_cpu_server.errors import InvalidRequest

logger = logging.getLogger(__name__)

_END = BYTES_AND_END - 1
_TOKENS = 64
"""Numbers for control tokens named by a grammar."""


class _Bytes:
    eos_token_id = _END
    bos_token_id = None
    special_token_ids = tuple(range(_END, BYTES_AND_END + _TOKENS))

    def __init__(self) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
        self.tokens += [b"<token %d>" % i for i in range(_TOKENS)]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


_ENDS_OF_ITEMS = frozenset(b'"0,]} \t\r\nel')
"""Last bytes of items, and bytes behind numbers."""
_BLANKS = re.compile(rb'("(?:[^"\\]|\\.)*"?)|\s+', re.DOTALL)
_NOT_NULL = re.compile(rb"[^\0]")
"""Bytes of a mask that allow tokens. Readers need not load numpy."""
_TAIL = 64
"""Bytes by which an item's end is found in the output."""


class _OpenList(NamedTuple):
    rule: str
    texts: tuple[bytes, ...]
    values: frozenset[object]
    owed: bytes
    """End of the last item that the output does not have yet."""
    rest: bytes = b""
    """Output behind the last item."""
    like: tuple[bytes, ...] = ()
    """Texts that begin like the next item."""

    def behind(self, text: bytes) -> _OpenList:
        item = _without_blanks((self.next_item(text) if self.like else None) or b"")
        like = tuple(other for other in self.like if other.startswith(item))
        return self._replace(owed=self.owed[len(text) :], rest=self.rest + text[len(self.owed) :], like=like)

    def with_item(self, text: bytes, value: object, owed: bytes, rest: bytes) -> _OpenList:
        texts = (*self.texts, _without_blanks(text))
        return _OpenList(self.rule, texts, self.values | {value}, owed, rest, texts)

    def next_item(self, text: bytes = b"") -> bytes | None:
        """Return the beginning of the next item in the output and `text`, or None before its comma."""
        rest = (self.rest + text[len(self.owed) :]).lstrip()
        return rest[1:].lstrip() if rest.startswith(b",") else None


class ListItems(msgspec.Struct, frozen=True):
    """Inner lists last."""

    lists: tuple[_OpenList, ...] = ()
    _num_captures: int = 0
    _tail: bytes = b""

    def behind(self, text: bytes, matcher: LLMatcher) -> ListItems | None:
        """Return None if an item is in its list already. `matcher` has consumed the token, and was never
        taken back."""
        lists = [each.behind(text) for each in self.lists]
        output, end = self._tail + text, len(self._tail)
        captures = [] if _ENDS_OF_ITEMS.isdisjoint(text) else matcher.get_captures()
        for name, item in captures[self._num_captures :]:
            value = _comparable(json.loads(item, parse_int=Decimal, parse_float=Decimal))
            rule, is_first = name.rpartition("=")[0], name.endswith(FIRST_ITEM)
            at = len(lists) if is_first else next(self._places(lists, rule, item), len(lists))
            if at == len(lists):
                end = _end_of(item, output, end)
                lists.append(_OpenList(rule, (), frozenset(), b""))
            elif value in lists[at].values:
                return None
            else:
                end = len(output) + len(item) - len(lists[at].next_item() or b"")
            owed = item[len(item) - max(0, end - len(output)) :]
            lists[at:] = [lists[at].with_item(item, value, owed, output[end:])]
        still_open = tuple(each for each in lists if not each.rest.lstrip().startswith(b"]"))
        return ListItems(still_open, max(self._num_captures, len(captures)), output[-_TAIL:])

    @staticmethod
    def _places(lists: Sequence[_OpenList], rule: str, item: bytes) -> Iterator[int]:
        for i in reversed(range(len(lists))):
            found = lists[i].next_item()
            if (
                lists[i].rule == rule
                and found is not None
                and (found.startswith(item) or item.startswith(found))
            ):
                yield i

    def repeat(self, text: bytes = b"") -> bool:
        """Return True if the output with `text` may have two equal items."""
        for each in self.lists:
            if each.like and (item := each.next_item(text)) is not None:
                item = _without_blanks(item)
                if any(other.startswith(item) or (text and item.startswith(other)) for other in each.like):
                    return True
        return False

    def may_end(self, text: bytes) -> bool:
        return (bool(self.lists) or b"," in text) and not _ENDS_OF_ITEMS.isdisjoint(text)

    def is_blank(self, text: bytes) -> bool:
        """Return True for white space outside of strings."""
        outer = self.lists[0]
        return text.isspace() and not outer.owed and not _without_blanks(outer.rest + text).endswith(text)


_MOST_TOKENS = 2_000
"""Allowed tokens of which one surely makes an item differ."""
_MOST_TRIALS = 120
"""Tokens tried behind others for one place of the output, some 0.5 ms each."""


def new_trials() -> Iterator[int]:
    return iter(range(_MOST_TRIALS))


def keeps_items_apart(
    items: ListItems,
    token: int,
    matcher: LLMatcher,
    text_of: Callable[[int], bytes],
    trials: Iterator[int],
) -> bool:
    """Return False if an allowed token completes a repeated item, or leads to where every text does.

    `trials`: those left for this place; without any, only the token itself is checked.
    """

    def can_differ(items: ListItems, token: int, before: LLMatcher) -> bool:
        matcher, tokens = before.deep_copy(), [token]
        while tokens:
            for token in tokens:
                if not matcher.consume_token(token):
                    return True
                following = items.behind(text_of(token), matcher)
                if following is None:
                    return False
                items = following
            if not items.repeat():
                return True
            tokens = matcher.compute_ff_tokens()
        mask = matcher.compute_bitmask()
        if int.from_bytes(mask, "little").bit_count() > _MOST_TOKENS:
            return True
        ways = {
            text_of(token): token
            for byte in _NOT_NULL.finditer(mask)
            for token in range(8 * byte.start(), 8 * byte.end())
            if byte[0][0] >> token % 8 & 1
        }
        shortest = [text for text in ways if not any(text[:n] in ways for n in range(1, len(text)))]
        shortest = [text for text in shortest if not items.is_blank(text)]
        if not all(items.repeat(text) or items.may_end(text) for text in shortest):
            return True
        return any(next(trials, None) is None or can_differ(items, ways[text], matcher) for text in shortest)

    text = text_of(token)
    return not (items.repeat(text) or items.may_end(text)) or can_differ(items, token, matcher)


def _without_blanks(text: bytes) -> bytes:
    return _BLANKS.sub(rb"\1", text)


def _end_of(item: bytes, output: bytes, size: int) -> int:
    """Count missing bytes behind the output."""
    for end in range(size, len(output) + len(item)):
        there = item[: len(item) - max(0, end - len(output))]
        if output[:end].endswith(there[-min(_TAIL, end) :]):
            return end
    return len(output)


def _comparable(value: object) -> object:
    if isinstance(value, dict):
        return frozenset((name, _comparable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return type(value), value


class TextFit(msgspec.Struct, frozen=True):
    """`accepted`: bytes that fit. `is_complete`: the text may end there."""

    accepted: int
    size: int
    is_complete: bool

    @property
    def fits(self) -> bool:
        return self.accepted == self.size and self.is_complete


class WhatMayFollow(msgspec.Struct, frozen=True):
    """`forced`: bytes without an alternative. `allowed`: possible first bytes."""

    forced: bytes
    allowed: bytes
    is_end: bool


PARSER_LIMITS = LLParserLimits(
    max_lexer_states=50_000,  # of some 2 kB
    initial_lexer_fuel=10_000_000,  # to see whether any text has 10,000 characters and a pattern
    step_lexer_fuel=10_000_000,
    max_items_in_row=10_000,  # four for each optional property that may come next
    step_max_items=200_000,
    verbose_errors=False,
)
"""Shared, so that a grammar that passes one check runs everywhere."""


class GrammarCheck:
    def __init__(self, lark: str) -> None:
        """Number control tokens from `BYTES_AND_END` on. Raises InvalidRequest."""
        grammar = LLMatcher.grammar_from_lark(lark)
        self._start = LLMatcher(TOKENIZER, grammar, log_level=0, limits=PARSER_LIMITS)
        self._matcher = self._start.deep_copy()
        self._has_list_items = CAPTURE in lark
        if self._matcher.is_error():
            raise self._too_complex("The grammar is too large, or too deeply nested, to be used.")

    def check(self, text: str | bytes) -> TextFit:
        tokens = list(text.encode() if isinstance(text, str) else text)
        accepted, _ = self._follow(tokens)
        if self._matcher.is_error():
            raise self._too_complex(f"The grammar is too complex after {accepted} bytes of the text.")
        return TextFit(accepted, len(tokens), accepted == len(tokens) and self._matcher.is_accepting())

    def _follow(self, tokens: list[int]) -> tuple[int, ListItems]:
        self._matcher = self._start.deep_copy()
        items = ListItems()
        if not self._has_list_items:
            return int(self._matcher.try_consume_tokens(tokens)), items
        for number, token in enumerate(tokens):
            if not self._matcher.try_consume_tokens([token]):
                return number, items
            if (following := items.behind(bytes([token]), self._matcher)) is None:
                return number, items
            items = following
        return len(tokens), items

    def _too_complex(self, message: str) -> InvalidRequest:
        """Native text has paths and backtraces."""
        logger.debug("llguidance: %s", self._matcher.get_error())
        return InvalidRequest(message)

    def after(self, text: bytes) -> WhatMayFollow:
        """`text` must fit completely."""
        accepted, items = self._follow(list(text))
        assert accepted == len(text), "the text does not fit"
        mask = self._matcher.compute_bitmask()
        possible = (byte for byte in range(_END) if mask[byte >> 3] >> (byte & 7) & 1)
        allowed = bytes(
            byte
            for byte in possible
            if keeps_items_apart(items, byte, self._matcher, text_of_byte, new_trials())
        )
        return WhatMayFollow(self._matcher.compute_ff_bytes(), allowed, self._matcher.is_accepting())


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))


def text_of_byte(token: int) -> bytes:
    return bytes([token]) if token < _END else b"<end>"
