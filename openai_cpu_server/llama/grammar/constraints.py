"""Grammars in the engine, whose masks are computed beside a step."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.grammar import CAPTURE
from openai_cpu_server.contract.request import Constraint, ReasoningTracker
from openai_cpu_server.contract.step import num_right
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.grammar.compile import MOST_FORCED, compile_grammar, grammar_tokenizer
from openai_cpu_server.llama.grammar.grammar_check import ListItems, keeps_items_apart, new_trials
from openai_cpu_server.llama.model.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


class TriggerSearch:
    def __init__(self, triggers: Sequence[str]) -> None:
        if not all(triggers):
            raise ConstraintFailed("A trigger is empty.")
        self._triggers = [trigger.encode() for trigger in triggers]
        self._keep = max(map(len, self._triggers)) - 1
        self._tail = b""

    def rest_behind(self, piece: bytes) -> bytes | None:
        text = self._tail + piece
        ends = [at + len(t) for t in self._triggers if (at := text.find(t)) >= 0]
        return text[min(ends) :] if ends else None

    def push(self, piece: bytes) -> None:
        text = self._tail + piece
        self._tail = text[max(0, len(text) - self._keep) :]


Allowed = npt.NDArray[np.bool_]
"""(vocabulary,): True for allowed tokens."""

_PATIENCE_S = 2.0
"""CPU seconds for one output: ten times those of a long output under a large schema."""
_PATIENCE_PER_TOKEN_S = 0.003
"""Added for each token if items must differ. Trying one ahead takes 0.4 to 2.8 ms."""
NO_OTHER_ITEM = "The list needs more items, and none can differ from the others."
_SLOW_S = 0.02
"""Time of a mask behind which other sequences do not wait for the next."""


class ModelTokens:
    def __init__(self, vocabulary: Vocabulary, tokenizer: LLTokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = vocabulary.vocab_size
        self.ends = vocabulary.end_tokens
        self.end = vocabulary.eos if vocabulary.eos in self.ends else min(self.ends)
        self._vocabulary = vocabulary

    def text_of(self, token: int) -> bytes:
        """Control tokens appear by name."""
        return self._vocabulary.piece(token, special=True)

    def spell(self, text: bytes) -> list[int] | None:
        """Return tokens with exactly these bytes, or None."""
        tokens = self.tokenizer.tokenize_bytes(text)
        return tokens if self.tokenizer.decode_bytes(tokens) == text else None


class ConstrainedOutput:
    """Thoughts, the opening, free text until a trigger, the grammar, each optional. Not thread-safe.

    Forced tokens are found immediately, so that sampled, forced and replayed tokens have the same result.
    Methods raise `ConstraintFailed` at the grammar's limits.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: LLMatcher | None,
        tokens: ModelTokens,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self._patience_s = patience_s
        self._matcher = matcher
        self._tokens = tokens
        self._constraint = constraint
        self._thoughts = _thoughts(constraint)
        """Parser of thoughts; None once the answer has begun."""
        self._items = ListItems() if CAPTURE in (constraint.grammar or "") else None
        """Open lists, or None if no items must differ."""
        self._trials = new_trials()
        self._search = TriggerSearch(constraint.triggers) if constraint.triggers else None
        """Search for a trigger; None once the grammar has begun."""
        self._forced: deque[int] = deque()
        """Tokens not in the output yet, but already consumed by matcher and search."""
        self._allowed: Allowed | None = None
        self._spent_s = 0.0
        self._mask_s = 0.0
        if self._thoughts is None:
            self._begin_answer(b"")
        elif constraint.thinking is not None:
            self._force(constraint.thinking.opening)
        self._find_forced()

    @property
    def is_forced(self) -> bool:
        return bool(self._forced)

    @property
    def is_slow(self) -> bool:
        return self._mask_s > _SLOW_S

    def take_forced(self) -> tuple[int, ...]:
        forced = tuple(self._forced)
        self._forced.clear()
        return forced

    def take_one_forced(self) -> int:
        return self._forced.popleft()

    def allowed(self) -> Allowed | None:
        """Return None if the next token may be any. It must not be forced."""
        assert not self._forced, "the next token is forced"
        matcher = self._active_matcher
        if matcher is None:
            return None
        if self._allowed is None:
            spent_s = self._spent_s
            with self._charged():
                self._allowed = self._mask(matcher)
            self._mask_s = self._spent_s - spent_s
        return self._allowed

    def takes(self, token: int) -> bool:
        """Return False for an allowed token with which the output cannot continue.

        It ends thoughts or a trigger with text against the grammar, ends the output before a required answer,
        or repeats an item.
        """
        if self._matcher is None:
            return True
        if self._active_matcher is not None:
            if self._items is None:
                return True
            with self._charged():
                return keeps_items_apart(
                    self._items, token, self._matcher, self._tokens.text_of, self._trials
                )
        if token in self._tokens.ends:
            return self._search is not None
        answer: bytes | None = self._tokens.text_of(token)
        if self._thoughts is not None and answer is not None:
            answer = copy(self._thoughts).read(answer)
        if answer is None:
            return True
        if self._search is None:
            return not answer.strip()
        rest = self._search.rest_behind(answer)
        if not rest:
            return True
        spelling = self._tokens.spell(rest)
        return spelling is not None and self._matcher.validate_tokens(spelling) == len(spelling)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """Return how many leading tokens may come next; the end of a trigger is checked when it comes."""
        must = num_right(tokens, self._forced)
        if must < min(len(tokens), len(self._forced)):
            return must
        rest = list(tokens[must:])
        matcher = self._active_matcher
        if matcher is None or not rest:
            return len(tokens)
        with self._charged():
            num_valid: int = matcher.validate_tokens(rest)
            return must + num_valid

    def masked_draft(self) -> MaskedDraft | None:
        """Return None in free text and where masks are slow or items must differ.

        A matcher that was taken back keeps its captures.
        """
        matcher = self._active_matcher
        if matcher is None or self._forced or self.is_slow or self._items is not None:
            return None
        return MaskedDraft(self, matcher)

    def mask_of(self, matcher: LLMatcher) -> Allowed:
        with self._charged():
            return self._mask(matcher)

    def accept(self, token: int) -> None:
        assert not self._forced, "the next token is forced"
        if token in self._tokens.ends:
            return
        with self._charged():
            self._read_token(token)
            self._find_forced()

    def replay(self, output: Iterable[int]) -> None:
        """Consume a resumed output, which may end within forced tokens."""
        for token in output:
            if not self._forced:
                self.accept(token)
            elif self.take_one_forced() != token:
                raise ConstraintFailed("The output so far does not begin as its constraint demands.")

    @property
    def _active_matcher(self) -> LLMatcher | None:
        return self._matcher if self._thoughts is None and self._search is None else None

    def _force(self, tokens: Sequence[int]) -> None:
        self._forced.extend(tokens)
        for token in tokens:
            self._read_token(token)

    def _read_token(self, token: int) -> None:
        matcher = self._active_matcher
        if matcher is not None:
            self._consume(matcher, [token])
        elif self._thoughts is None:
            self._search_trigger(self._tokens.text_of(token))
        elif (answer := self._thoughts.read(self._tokens.text_of(token))) is not None:
            self._thoughts = None
            self._begin_answer(answer)

    def _begin_answer(self, text: bytes) -> None:
        """`text`: the answer in the same token, white space unless a free part comes first."""
        self._search_trigger(text)
        self._forced.extend(self._constraint.opening)
        for token in self._constraint.opening:
            self._search_trigger(self._tokens.text_of(token))

    def _search_trigger(self, piece: bytes) -> None:
        if self._search is None:
            return
        rest = self._search.rest_behind(piece)
        if rest is None:
            self._search.push(piece)
            return
        spelling = self._tokens.spell(rest)
        if spelling is None:
            raise ConstraintFailed("The text after the trigger cannot be spelt in tokens.")
        self._search = None
        if self._matcher is not None:
            self._consume(self._matcher, spelling)

    def _consume(self, matcher: LLMatcher, tokens: list[int]) -> None:
        self._allowed = None
        if self._items is None:
            if tokens and not matcher.consume_tokens(tokens):
                raise _failure(matcher)
            return
        self._patience_s += _PATIENCE_PER_TOKEN_S * len(tokens)
        self._trials = new_trials()
        for token in tokens:
            if not matcher.consume_token(token):
                raise _failure(matcher)
            self._items = self._items.behind(self._tokens.text_of(token), matcher)
            if self._items is None:
                raise ConstraintFailed(NO_OTHER_ITEM)

    def _find_forced(self) -> None:
        if self._thoughts is not None and self._thoughts.is_used_up and self._constraint.thinking is not None:
            self._force(self._constraint.thinking.closing)
            if self._thoughts is not None:
                raise ConstraintFailed("This model's tokens cannot end its thoughts.")
        matcher = self._active_matcher
        if matcher is None:
            return
        forced = matcher.compute_ff_tokens()[:MOST_FORCED]  # the mask leads to the others
        self._consume(matcher, forced)
        self._forced.extend(forced)
        if matcher.is_error():
            raise _failure(matcher)
        if matcher.is_stopped():
            self._forced.append(self._tokens.end)

    def _mask(self, matcher: LLMatcher) -> Allowed:
        bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        if matcher.is_error():
            raise _failure(matcher)
        allowed = np.unpackbits(bits, bitorder="little", count=self._tokens.size).view(np.bool_)
        if not allowed.any():
            raise ConstraintFailed("The grammar leads to where no token of this model can continue.")
        return allowed

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """A slow grammar must not delay other requests' steps for long."""
        started = time.thread_time()
        yield
        self._spent_s += time.thread_time() - started
        if self._spent_s > self._patience_s:
            raise ConstraintFailed("The grammar is too ambiguous: to follow it takes too much time.")


@dataclass(eq=False)
class MaskedDraft:
    """Takes the output's matcher along a draft and back (`undo`). Methods raise `ConstraintFailed`."""

    output: ConstrainedOutput
    matcher: LLMatcher
    _num_tokens: int = 0

    def allowed(self) -> Allowed | None:
        return self.output.mask_of(self.matcher) if self._num_tokens else self.output.allowed()

    def accept(self, token: int) -> None:
        if not self.matcher.consume_token(token):
            raise _failure(self.matcher)
        self._num_tokens += 1

    def undo(self) -> None:
        if self._num_tokens:
            self.matcher.rollback(self._num_tokens)
            self._num_tokens = 0


def _thoughts(constraint: Constraint) -> ReasoningTracker | None:
    """Create the parser of thoughts. Raises `ConstraintFailed` if the grammar's beginning is ambiguous."""
    thinking = constraint.thinking
    if thinking is None:
        return None
    is_ruled_at_once = constraint.grammar is not None and not constraint.triggers
    if is_ruled_at_once and thinking.begin and not thinking.opening:
        raise ConstraintFailed("Thoughts that may be there or not stand in front of a grammar.")
    return ReasoningTracker(thinking.begin, thinking.end, budget=thinking.budget, ends_at=thinking.ends_at)


def _failure(matcher: LLMatcher) -> ConstraintFailed:
    logger.debug("llguidance: %s", matcher.get_error())
    return ConstraintFailed("The grammar could not be followed further: it is too complex here.")


@dataclass(eq=False)
class CompiledGrammars:
    """LRU cache by text. Any thread may use it."""

    max_entries: int = 128
    max_bytes: int = 8 * 2**20
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _entries: OrderedDict[str, Future[LLMatcher]] = field(default_factory=OrderedDict)
    _num_bytes: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def matcher(self, lark: str, tokenizer: LLTokenizer) -> LLMatcher:
        """Return a copy of the grammar's matcher. Raises `ConstraintFailed`; other errors are not cached."""
        with self._lock:
            future = self._entries.get(lark)
            is_new = future is None
            if future is None:
                self._entries[lark] = future = Future[LLMatcher]()
                self._num_bytes += len(lark)
            else:
                self._entries.move_to_end(lark)
            while len(self._entries) > 1 and (
                len(self._entries) > self.max_entries or self._num_bytes > self.max_bytes
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
        """Forget a grammar that hit a limit, because copies share what they learn."""
        with self._lock:
            self._remove(lark)

    def _remove(self, lark: str) -> None:
        if self._entries.pop(lark, None) is not None:
            self._num_bytes -= len(lark)


_THREADS = 2


class Constraints:
    def __init__(self, vocabulary: Vocabulary) -> None:
        """A thread reads the vocabulary, which must live until `close`."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grammar")
        self._slow_thread = ThreadPoolExecutor(1, thread_name_prefix="slow-grammar")
        self._tokens = self._threads.submit(
            lambda: ModelTokens(vocabulary, grammar_tokenizer(vocabulary, for_many_masks=True))
        )
        self._grammars = CompiledGrammars()

    def wait_until_ready(self) -> None:
        self._tokens.exception()

    def start(self, constraint: Constraint, output: Sequence[int]) -> ConstrainedOutput:
        """Replay `output` in a new one, in any thread. Raises `ConstraintFailed`."""
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
        job = self._threads.submit(_foresee, outputs) if outputs else None
        try:
            yield
        finally:
            if job is not None:
                job.result()

    def compute_ahead(self, output: ConstrainedOutput) -> Future[None] | None:
        """Begin to compute the next mask of a slow output, which nothing else may use until then."""
        return self._slow_thread.submit(_foresee_one, output) if output.is_slow else None

    def give_up(self, constraint: Constraint) -> None:
        if constraint.grammar is not None:
            self._grammars.forget(constraint.grammar)

    def close(self) -> None:
        self._slow_thread.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)


def _foresee(outputs: Sequence[Future[ConstrainedOutput]]) -> None:
    for output in outputs:
        with contextlib.suppress(RequestFailed), contained():
            _foresee_one(output.result())


def _foresee_one(output: ConstrainedOutput) -> None:
    """Errors occur again when the mask is used."""
    with contextlib.suppress(RequestFailed), contained():
        if not output.is_forced:
            output.allowed()
