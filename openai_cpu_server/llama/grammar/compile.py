"""Compilation of grammars for a vocabulary."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Iterator
from itertools import pairwise

from llguidance import LLMatcher, LLTokenizer

from openai_cpu_server.errors import ConstraintFailed, InvalidRequest
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.grammar.grammar_check import PARSER_LIMITS
from openai_cpu_server.llama.model.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

MOST_FORCED = 128
"""Forced tokens that are read at once, because reading takes longer, the more are forced behind."""

_PLAIN = r'[^"\\\x00-\x1F\x7F]'
_SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_PLAIN}{{1,{length}}}" for length in (10, 14, 20, 30)),
    f"{_PLAIN}+",
)
"""Languages whose tokens a mask takes as a whole. llguidance's own lack 14 and 20.

Masks of a bounded string would take 300 us instead of 60 where 13 to 29 characters remain.
"""
_SPECIAL = b"\xff"


def grammar_tokenizer(vocabulary: Vocabulary, *, for_many_masks: bool) -> LLTokenizer:
    """Return llguidance's tokenizer, which must not outlive the vocabulary. Raises `ConstraintFailed` without
    end tokens.

    `for_many_masks`: sort tokens into slices, for fast masks within strings; a second for 260,000 tokens.
    """
    if not vocabulary.end_tokens:
        raise ConstraintFailed("This model has no token that ends its output, so it can follow no grammar.")
    return LLTokenizer.from_llamacpp(
        tokens=list(_trie_bytes(vocabulary)),
        vocab_ptr=vocabulary.native,
        tokenize_fptr=ctypes.cast(llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=sorted(vocabulary.end_tokens),
        slices=list(_SLICES) if for_many_masks else [],
    )


def _trie_bytes(vocabulary: Vocabulary) -> Iterator[bytes]:
    """A token that is silent in the output counts as no text in the grammar."""
    text, ends, _ = vocabulary.pieces
    silent = vocabulary.silent_tokens
    for token, (start, end) in enumerate(pairwise((0, *ends))):
        is_marked = token in silent and start < end
        yield _SPECIAL + text[start:end] if is_marked else text[start:end]


def compile_grammar(lark: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the grammar's start. Raises `ConstraintFailed`."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=PARSER_LIMITS)
    if matcher.is_error():
        logger.debug("llguidance: %s", matcher.get_error())
        raise ConstraintFailed("The grammar cannot be used: it is too complex.")
    return matcher


def grammar_trial(vocabulary: Vocabulary) -> Callable[[str], None]:
    """Return a function that compiles a grammar and computes its first mask. Both raise InvalidRequest.

    It must not outlive the vocabulary.
    """
    try:
        tokenizer = grammar_tokenizer(vocabulary, for_many_masks=False)
    except ConstraintFailed as error:
        raise InvalidRequest(str(error)) from None

    def trial(lark: str) -> None:
        try:
            _find_first(compile_grammar(lark, tokenizer))
        except ConstraintFailed as error:
            raise InvalidRequest(str(error)) from None

    return trial


def _find_first(matcher: LLMatcher) -> None:
    matcher.consume_tokens(matcher.compute_ff_tokens()[:MOST_FORCED])
    if matcher.is_stopped() and not matcher.is_error():
        return
    mask = matcher.compute_bitmask()
    if matcher.is_error():
        logger.debug("llguidance: %s", matcher.get_error())
        raise ConstraintFailed("The grammar is too complex for this model's tokens.")
    if not any(mask):
        raise ConstraintFailed("The grammar begins with what no token of this model can write.")
