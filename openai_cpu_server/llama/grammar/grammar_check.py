"""Checks how far a text fits a grammar, byte by byte and without a model."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from decimal import Decimal

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from openai_cpu_server.contract.grammar import BYTES_AND_END, CAPTURE, FIRST_ITEM
from openai_cpu_server.errors import InvalidRequest

logger = logging.getLogger(__name__)

_END = BYTES_AND_END - 1
_TOKENS = 64
"""Numbers for control tokens named by a grammar."""


class _Bytes:
    """Tokens for each byte, for the end, and without meaning."""

    eos_token_id = _END
    bos_token_id = None
    special_token_ids = tuple(range(_END, BYTES_AND_END + _TOKENS))

    def __init__(self) -> None:
        self.tokens = [bytes([i]) for i in range(256)] + [b"<end>"]
        self.tokens += [b"<token %d>" % i for i in range(_TOKENS)]

    def __call__(self, text: bytes | str) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


ENDS_OF_ITEMS = frozenset(b'"0,] \t\r\n')
"""Bytes at which a string or a number can end: nothing follows a zero that stands alone."""


class ListItems:
    """Strings and numbers of the lists whose items must differ, from captures of a matcher that is never
    taken back."""

    def __init__(self) -> None:
        self._num_read = 0
        self._lists: dict[str, frozenset[str | Decimal]] = {}

    def __copy__(self) -> ListItems:
        other = ListItems()
        other._num_read, other._lists = self._num_read, self._lists.copy()
        return other

    def read(self, captures: Sequence[tuple[str, bytes]]) -> bool:
        """Read what is new. Return False if an item is in its list already."""
        do_differ = True
        for name, text in captures[self._num_read :]:
            key = name.rpartition("=")[0]
            items = frozenset() if name.endswith(FIRST_ITEM) else self._lists.get(key, frozenset())
            item = json.loads(text, parse_int=Decimal, parse_float=Decimal)
            do_differ = do_differ and item not in items
            self._lists[key] = items | {item}
        self._num_read = len(captures)
        return do_differ


class TextFit(msgspec.Struct, frozen=True):
    """`accepted`: bytes that fit. `is_complete`: True if the text may end there."""

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
        """Compile the grammar, with control tokens from `BYTES_AND_END` on. Raises InvalidRequest if it is
        too large."""
        grammar = LLMatcher.grammar_from_lark(lark)
        self._start = LLMatcher(TOKENIZER, grammar, log_level=0, limits=PARSER_LIMITS)
        self._matcher = self._start.deep_copy()
        self._has_list_items = CAPTURE in lark
        if self._matcher.is_error():
            raise self._too_complex("The grammar is too large, or too deeply nested, to be used.")

    def check(self, text: str | bytes) -> TextFit:
        self._matcher = self._start.deep_copy()
        tokens = list(text.encode() if isinstance(text, str) else text)
        accepted = self._num_accepted(tokens)
        if self._matcher.is_error():
            raise self._too_complex(f"The grammar is too complex after {accepted} bytes of the text.")
        return TextFit(accepted, len(tokens), accepted == len(tokens) and self._matcher.is_accepting())

    def _num_accepted(self, tokens: list[int]) -> int:
        if not self._has_list_items:
            return int(self._matcher.try_consume_tokens(tokens))
        items = ListItems()
        for number, token in enumerate(tokens):
            is_accepted = self._matcher.try_consume_tokens([token])
            if not is_accepted or (token in ENDS_OF_ITEMS and not items.read(self._matcher.get_captures())):
                return number
        return len(tokens)

    def _keeps_items_apart(self, byte: int) -> bool:
        if not self._has_list_items or byte not in ENDS_OF_ITEMS:
            return True
        trial = self._matcher.deep_copy()
        trial.consume_token(byte)
        return ListItems().read(trial.get_captures())

    def _too_complex(self, message: str) -> InvalidRequest:
        """Return an error without the native text, which has paths and backtraces."""
        logger.debug("llguidance: %s", self._matcher.get_error())
        return InvalidRequest(message)

    def after(self, text: bytes) -> WhatMayFollow:
        """`text` must fit completely."""
        self._matcher = self._start.deep_copy()
        accepted = self._matcher.try_consume_tokens(list(text))
        assert accepted == len(text), "the text does not fit"
        mask = self._matcher.compute_bitmask()
        allowed = bytes(i for i in range(_END) if mask[i >> 3] >> (i & 7) & 1 and self._keeps_items_apart(i))
        return WhatMayFollow(self._matcher.compute_ff_bytes(), allowed, self._matcher.is_accepting())


TOKENIZER = LLTokenizer(TokenizerWrapper(_Bytes()))
