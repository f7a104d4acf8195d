"""One live request's output in the engine: tokens become events, and it is decided when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import msgspec

from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.step import Sample, TokenLogprob
from openai_cpu_server.engine.parts import OutputParts, StopShield
from openai_cpu_server.engine.text import Release, TextStream
from openai_cpu_server.scheduler.sequence import Sequence
from openai_cpu_server.scheduler.spans import Advance

_NOTHING = Release(0, "")
Events = tuple[TokenEvent, ...]


@dataclass(frozen=True)
class _Token:
    number: int
    logprob: TokenLogprob | None
    is_forced: bool = False


class Output:
    """Turns each advance of its sequence into events: none or one, and one for each part of the output where
    a step goes from one to the next. The one with `finish` is the last.

    A sequence that resumes after a crash starts with nothing held: its first `num_told` output tokens were
    all released.
    """

    def __init__(
        self,
        sequence: Sequence,
        *,
        piece: Callable[[int], bytes],
        name: Callable[[int], bytes],
        end_tokens: frozenset[int],
        num_told: int,
    ) -> None:
        """`piece`: what a token adds to the text; `name`: the same, with control tokens by their names."""
        self._sequence = sequence
        self._piece = piece
        self._end_tokens = end_tokens
        self._num_tokens = num_told
        """Tokens of the output that were looked at; forced ones behind its end do not count."""
        self._num_forced = 0
        """How many of these were computed without sampling."""
        self._shield = _shield(sequence)
        """Stop strings wait for what is for the user; None: that has begun."""
        self._text = TextStream(sequence.request.stop if self._shield is None else ())
        marks = sequence.request.marks
        self._parts = OutputParts(marks, name) if marks is not None else None
        """None: all is the answer."""
        self._resume(sequence.output[:num_told])
        self._held: list[_Token] = []
        """Tokens that are not told yet."""
        self._gained = _NOTHING
        """What may be told of the held tokens."""
        self._scores: list[TokenLogprob] = []

    def begin(self, beginning: Iterable[int]) -> Events:
        """Take what is forced before the first sample. It is told with that sample, unless it is all."""
        reason = self._push([_Token(token, None, is_forced=True) for token in beginning])
        return () if reason is None else self._event(self._finish(reason))

    def advance(self, advance: Advance) -> Events:
        self._scores.extend(advance.scores)
        if advance.samples:
            return self._sampled(advance)
        if _has_failed(advance):
            return self._failed(advance)
        if self._sequence.pending == 0:
            return self.end(FinishReason.LENGTH)  # max_tokens is 0: the prompt was only scored
        return ()

    def end(self, reason: FinishReason) -> Events:
        """The last events, for a request that ends without another token."""
        self._gained = _NOTHING
        return self._event(self._finish(reason))

    def _sampled(self, advance: Advance) -> Events:
        """What has failed behind the samples matters only if the output does not end before."""
        reason = self._push(_tokens(advance.samples))
        if reason is not None:
            return self._event(self._finish(reason))
        if _has_failed(advance):
            return self._failed(advance)
        return self._event(None) if self._gained.num_tokens else ()

    def _failed(self, advance: Advance) -> Events:
        finish = self._finish(FinishReason.ERROR)
        error, is_own = advance.failure or advance.fault, advance.failure is not None
        return self._event(msgspec.structs.replace(finish, error=error, is_own_fault=is_own))

    def _push(self, tokens: Iterable[_Token]) -> FinishReason | None:
        """Look at tokens up to the output's end; returns why it ends there, if it does."""
        for token in tokens:
            reason = self._push_one(token)
            if reason is not None:
                return reason
        return None

    def _push_one(self, token: _Token) -> FinishReason | None:
        self._num_tokens += 1
        self._num_forced += token.is_forced
        if token.number in self._end_tokens:
            self._gain(self._text.flush())
            return FinishReason.STOP
        self._held.append(token)
        piece = self._piece(token.number)
        release = self._text.push(piece)
        self._follow(piece)
        self._gain(release)
        if release.stopped:
            return FinishReason.STOP
        if self._num_tokens >= self._sequence.request.max_tokens:
            self._gain(self._text.flush())
            return FinishReason.LENGTH
        return None

    def _resume(self, told: Seq[int]) -> None:
        """Read what an engine before this one has told."""
        for token in told:
            self._follow(self._piece(token))
        if self._parts is not None:
            self._parts.read(told, b"".join(map(self._piece, told)).decode(errors="replace"))

    def _follow(self, piece: bytes) -> None:
        """Stop strings are looked for from the token on that follows thoughts, and headers behind them."""
        if self._shield is not None and self._shield.ends_with(piece):
            self._shield = None
            self._text.watch(self._sequence.request.stop)

    def _gain(self, release: Release) -> None:
        gained = self._gained
        num_tokens, text = gained.num_tokens + release.num_tokens, gained.text + release.text
        self._gained = Release(num_tokens, text, release.stop)

    def _event(self, finish: Finish | None) -> Events:
        gained, self._gained = self._gained, _NOTHING
        told, self._held = self._held[: gained.num_tokens], self._held[gained.num_tokens :]
        scores, self._scores = tuple(self._scores), []
        event = TokenEvent(
            id=self._sequence.request.id,
            tokens=tuple(token.number for token in told),
            text=gained.text,
            logprobs=tuple(token.logprob for token in told if token.logprob is not None),
            prompt_logprobs=scores,
            finish=finish,
        )
        return (event,) if self._parts is None else self._parts.cut(event)

    def _finish(self, reason: FinishReason) -> Finish:
        sequence = self._sequence
        return Finish(
            reason=reason,
            stop_string=self._gained.stop,
            output_tokens=self._num_tokens,
            forced_tokens=self._num_forced,
            cached_tokens=sequence.cached_tokens or 0,
            preemptions=sequence.num_preemptions,
            interruptions=sequence.num_interruptions,
            padded_tokens=sequence.num_padded,
            drafted_tokens=sequence.num_drafted,
            accepted_tokens=sequence.num_accepted,
        )


def _has_failed(advance: Advance) -> bool:
    return advance.failure is not None or advance.fault is not None


def _shield(sequence: Sequence) -> StopShield | None:
    constraint = sequence.request.constraint
    if constraint is None or constraint.thinking is None:
        return None
    return StopShield(constraint.thinking)


def _tokens(samples: Iterable[Sample]) -> Iterator[_Token]:
    for sample in samples:
        yield _Token(sample.token, sample.logprob)
        yield from (_Token(token, None, is_forced=True) for token in sample.forced)
