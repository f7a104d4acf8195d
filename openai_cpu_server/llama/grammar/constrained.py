"""One request's output under its constraint: which tokens may come next, and which must."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer

from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import num_right
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.llama.grammar.triggers import TriggerSearch
from openai_cpu_server.llama.model.vocabulary import Vocabulary

Allowed = npt.NDArray[np.bool_]
"""Whether each token is allowed, (vocabulary,)."""

_PATIENCE_S = 2.0
"""CPU seconds for one output: ten times what a long output under a large schema takes."""


class Words:
    """A model's tokens as constraints need them."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: LLTokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = vocabulary.vocab_size
        self.ends = vocabulary.end_tokens
        self.end = vocabulary.eos if vocabulary.eos in self.ends else min(self.ends)
        self._vocabulary = vocabulary

    def shown(self, token: int) -> bytes:
        """The token's text, with control tokens by name."""
        return self._vocabulary.piece(token, special=True)

    def spell(self, text: bytes) -> list[int] | None:
        """Tokens with exactly these bytes; None if there are none."""
        tokens = self.tokenizer.tokenize_bytes(text)
        return tokens if self.tokenizer.decode_bytes(tokens) == text else None


class ConstrainedOutput:
    """Follows the tokens of one output: first the opening, then free text until a trigger, then the grammar.

    After each token it finds at once which tokens are then forced. So the result is the same however the
    output came about: sampled, forced in bursts, or replayed after a preemption or a crash. It is not
    thread-safe. All methods raise `ConstraintFailed` when the grammar's limits are reached.
    """

    def __init__(
        self,
        constraint: Constraint,
        matcher: LLMatcher,
        words: Words,
        *,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        """`matcher` stands at the grammar's start. `patience_s` is the CPU time for the whole output."""
        self._patience_s = patience_s
        self._matcher = matcher
        self._words = words
        self._search = TriggerSearch(constraint.triggers) if constraint.triggers else None
        """Looks for a trigger; None once the grammar has begun."""
        self._must: deque[int] = deque()
        """Forced tokens that are not in the output yet. The matcher and the search have read them already."""
        self._allowed: Allowed | None = None
        """The mask of the next token, if it is known already."""
        self._spent_s = 0.0
        if self._search is not None:
            for token in constraint.opening:
                self._listen(token)
        self._must.extend(constraint.opening)
        self._settle()

    @property
    def is_forced(self) -> bool:
        """Whether only one token can come next."""
        return bool(self._must)

    def take_forced(self) -> tuple[int, ...]:
        """Take all forced tokens; they belong to the output from now on."""
        forced = tuple(self._must)
        self._must.clear()
        return forced

    def take_one_forced(self) -> int:
        """Take the first forced token; it belongs to the output from now on."""
        return self._must.popleft()

    def allowed(self) -> Allowed | None:
        """The mask of the next token, with at least one in it; None allows all. No token may be forced."""
        assert not self._must, "the next token is forced"
        if self._search is not None:
            return None
        if self._allowed is None:
            with self._charged():
                self._allowed = self._mask()
        return self._allowed

    def takes(self, token: int) -> bool:
        """Whether an allowed token can come, not one that ends a trigger and breaks the grammar behind it."""
        if self._search is None or token in self._words.ends:
            return True
        rest = self._search.rest_behind(self._words.shown(token))
        if not rest:
            return True
        spelt = self._words.spell(rest)
        return spelt is not None and self._matcher.validate_tokens(spelt) == len(spelt)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, from the first on, may come next. The state does not change.

        In the free part all may come: a token that ends a trigger is looked at when it has come.
        """
        must = num_right(tokens, self._must)
        if must < min(len(tokens), len(self._must)):
            return must
        rest = list(tokens[must:])
        if self._search is not None or not rest:
            return len(tokens)
        with self._charged():
            num_valid: int = self._matcher.validate_tokens(rest)
            return must + num_valid

    def accept(self, token: int) -> None:
        """Record the token that was chosen."""
        assert not self._must, "the next token is forced"
        if token in self._words.ends:
            return
        with self._charged():
            self._listen(token)
            self._settle()

    def replay(self, output: Iterable[int]) -> None:
        """Read the output so far of a request that resumes. It may end within forced tokens."""
        for token in output:
            if not self._must:
                self.accept(token)
            elif self.take_one_forced() != token:
                raise ConstraintFailed("The output so far does not begin as its constraint demands.")

    def _listen(self, token: int) -> None:
        """Read one token, in the free part or in the grammar."""
        if self._search is None:
            self._consume([token])
            return
        piece = self._words.shown(token)
        rest = self._search.rest_behind(piece)
        if rest is None:
            self._search.push(piece)
            return
        spelt = self._words.spell(rest)
        if spelt is None:
            raise ConstraintFailed("What stands behind the trigger cannot be spelt in tokens.")
        self._search = None
        self._consume(spelt)

    def _consume(self, tokens: list[int]) -> None:
        self._allowed = None
        if tokens and not self._matcher.consume_tokens(tokens):
            raise self._failure()

    def _settle(self) -> None:
        """Find the tokens that the grammar forces now, up to the end if nothing else is possible."""
        if self._search is not None:
            return
        forced = self._matcher.compute_ff_tokens()
        self._consume(forced)
        self._must.extend(forced)
        if self._matcher.is_error():
            raise self._failure()
        if self._matcher.is_stopped():
            self._must.append(self._words.end)

    def _mask(self) -> Allowed:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            raise self._failure()
        allowed = np.unpackbits(bits, bitorder="little", count=self._words.size).view(np.bool_)
        if not allowed.any():
            raise ConstraintFailed("The grammar leads to where no token of this model can continue.")
        return allowed

    @contextmanager
    def _charged(self) -> Iterator[None]:
        """Charge the block's CPU time to the output:
        a grammar must not slow down everybody's steps for long."""
        started = time.thread_time()
        yield
        self._spent_s += time.thread_time() - started
        if self._spent_s > self._patience_s:
            raise ConstraintFailed("The grammar is too ambiguous: to follow it takes too much time.")

    def _failure(self) -> ConstraintFailed:
        return ConstraintFailed(f"The grammar could not be followed further: {self._matcher.get_error()}")
