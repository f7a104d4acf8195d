"""Engine's side of grammars: compiled for a vocabulary, cached, and computed by threads beside a step."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from llguidance import LLMatcher, LLTokenizer

from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.errors import ConstraintFailed, InvalidRequest
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.grammar.constrained import MOST_FORCED, ConstrainedOutput, ModelTokens
from openai_cpu_server.llama.grammar.grammar_check import PARSER_LIMITS
from openai_cpu_server.llama.model.vocabulary import Vocabulary

logger = logging.getLogger(__name__)

_SPECIAL = b"\xff"
"""Marks tokens that occur in no text."""


def grammar_tokenizer(vocabulary: Vocabulary) -> LLTokenizer:
    """Return llguidance's tokenizer, which takes a second for 250,000 tokens and must not outlive the
    vocabulary. Raises `ConstraintFailed` without end tokens."""
    if not vocabulary.end_tokens:
        raise ConstraintFailed("This model has no token that ends its output, so it can follow no grammar.")
    return LLTokenizer.from_llamacpp(
        tokens=[_trie_bytes(vocabulary, token) for token in range(vocabulary.vocab_size)],
        vocab_ptr=vocabulary.native,
        tokenize_fptr=ctypes.cast(llama_cpp._lib.llama_tokenize, ctypes.c_void_p).value,
        eos_token=sorted(vocabulary.end_tokens),
        slices=None,
    )


def _trie_bytes(vocabulary: Vocabulary, token: int) -> bytes:
    """A token that is silent in the output counts as no text in the grammar."""
    piece = vocabulary.piece(token)
    if piece:
        return piece
    name = vocabulary.piece(token, special=True)
    return _SPECIAL + name if name else b""


def compile_grammar(lark: str, tokenizer: LLTokenizer) -> LLMatcher:
    """Return a matcher at the grammar's start. Raises `ConstraintFailed`."""
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_lark(lark), log_level=0, limits=PARSER_LIMITS)
    if matcher.is_error():
        logger.debug("llguidance: %s", matcher.get_error())
        raise ConstraintFailed("The grammar cannot be used: it is too complex.")
    return matcher


def grammar_trial(vocabulary: Vocabulary) -> Callable[[str], None]:
    """Return a function that compiles a grammar and computes its first allowed tokens, and must not
    outlive the vocabulary. Both raise InvalidRequest."""
    try:
        tokenizer = grammar_tokenizer(vocabulary)
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


class CompiledGrammars:
    """LRU cache by text. Any thread may use it."""

    def __init__(self, *, max_entries: int = 128, max_bytes: int = 8 * 2**20) -> None:
        """`max_bytes`: limit of all texts."""
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Future[LLMatcher]] = OrderedDict()
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def matcher(self, lark: str, tokenizer: LLTokenizer) -> LLMatcher:
        """Return a copy of the matcher at the grammar's start, compiled once. Raises `ConstraintFailed`;
        other errors are not cached."""
        with self._lock:
            future = self._entries.get(lark)
            is_new = future is None
            if future is None:
                self._entries[lark] = future = Future[LLMatcher]()
                self._num_bytes += len(lark)
            else:
                self._entries.move_to_end(lark)
            while len(self._entries) > 1 and (
                len(self._entries) > self._max_entries or self._num_bytes > self._max_bytes
            ):
                self._remove(next(iter(self._entries)))
        if is_new:
            try:
                future.set_result(compile_grammar(lark, tokenizer))
            except BaseException as error:
                future.set_exception(error)
        if not isinstance(future.exception(), ConstraintFailed | None):
            self.forget(lark)
        return future.result().deep_copy()

    def forget(self, lark: str) -> None:
        """Forget a grammar that hit a limit, because copies share what they learn and would fail too."""
        with self._lock:
            self._remove(lark)

    def _remove(self, lark: str) -> None:
        if self._entries.pop(lark, None) is not None:
            self._num_bytes -= len(lark)


_THREADS = 2


class Constraints:
    """Opens constrained outputs, and computes their masks beside llama.cpp without the GIL."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Read the vocabulary in a thread. It must live until `close`."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._tokens = self._threads.submit(lambda: ModelTokens(vocabulary, grammar_tokenizer(vocabulary)))
        self._grammars = CompiledGrammars()

    def wait_until_ready(self) -> None:
        """Wait for the vocabulary. Without end tokens it fails only requests with constraints."""
        self._tokens.exception()

    def start(self, constraint: Constraint, output: Sequence[int]) -> ConstrainedOutput:
        """Start an output and replay its tokens. Any thread may call this. Raises `ConstraintFailed`."""
        tokens = self._tokens.result()
        grammar = constraint.grammar
        matcher = None if grammar is None else self._grammars.matcher(grammar, tokens.tokenizer)
        constrained = ConstrainedOutput(constraint, matcher, tokens)
        constrained.replay(output)
        return constrained

    def start_beside(self, constraint: Constraint, output: Sequence[int]) -> Future[ConstrainedOutput]:
        return self._threads.submit(self.start, constraint, output)

    @contextmanager
    def foreseeing(self, outputs: Sequence[Future[ConstrainedOutput]]) -> Iterator[None]:
        """Compute the outputs' next masks while the block runs."""
        job = self._threads.submit(_foresee, outputs) if outputs else None
        try:
            yield
        finally:
            if job is not None:
                job.result()

    def give_up(self, constraint: Constraint) -> None:
        if constraint.grammar is not None:
            self._grammars.forget(constraint.grammar)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def _foresee(outputs: Sequence[Future[ConstrainedOutput]]) -> None:
    """Errors occur again when the mask is used."""
    for output in outputs:
        with contextlib.suppress(RequestFailed), contained():
            constrained = output.result()
            if not constrained.is_forced:
                constrained.allowed()
