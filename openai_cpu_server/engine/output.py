"""One live request's output in the engine: tokens become events, and it is decided when it ends."""

from __future__ import annotations

from collections.abc import Callable

from openai_cpu_server.contract.messages import Finish, FinishReason, TokenEvent
from openai_cpu_server.contract.step import Sample, TokenLogprob
from openai_cpu_server.engine.text import Release, TextStream
from openai_cpu_server.scheduler.scheduler import Advance
from openai_cpu_server.scheduler.sequence import Sequence

_NOTHING = Release(0, "")


class Output:
    """Turns each advance of its sequence into at most one event; the one with `finish` is the last.

    A sequence that resumes after a crash starts with nothing held: its tokens were all released.
    """

    def __init__(
        self, sequence: Sequence, *, piece: Callable[[int], bytes], end_tokens: frozenset[int]
    ) -> None:
        self._sequence = sequence
        self._piece = piece
        self._end_tokens = end_tokens
        self._text = TextStream(sequence.request.stop)
        self._held: list[Sample] = []
        """Sampled tokens whose text is not released yet."""
        self._scores: list[TokenLogprob] = []

    def advance(self, advance: Advance) -> TokenEvent | None:
        self._scores.extend(advance.scores)
        if advance.sample is not None:
            return self._sampled(advance.sample)
        if self._sequence.pending == 0:
            return self.end(FinishReason.LENGTH)  # max_tokens is 0: the prompt was only scored
        return None

    def end(self, reason: FinishReason, error: str | None = None) -> TokenEvent:
        """The last event, for a request that ends without another token."""
        return self._event(_NOTHING, self._finish(reason, error))

    def _sampled(self, sample: Sample) -> TokenEvent | None:
        if sample.token in self._end_tokens:
            return self._event(self._text.flush(), self._finish(FinishReason.STOP))
        self._held.append(sample)
        release = self._text.push(self._piece(sample.token))
        if release.stopped:
            return self._event(release, self._finish(FinishReason.STOP))
        if self._sequence.remaining <= 0:
            return self._event(_join(release, self._text.flush()), self._finish(FinishReason.LENGTH))
        return self._event(release, None) if release.num_tokens else None

    def _event(self, release: Release, finish: Finish | None) -> TokenEvent:
        samples, self._held = self._held[: release.num_tokens], self._held[release.num_tokens :]
        scores, self._scores = tuple(self._scores), []
        return TokenEvent(
            id=self._sequence.request.id,
            tokens=tuple(s.token for s in samples),
            text=release.text,
            logprobs=tuple(s.logprob for s in samples if s.logprob is not None),
            prompt_logprobs=scores,
            finish=finish,
        )

    def _finish(self, reason: FinishReason, error: str | None = None) -> Finish:
        sequence = self._sequence
        return Finish(
            reason=reason,
            output_tokens=sequence.num_output,
            cached_tokens=sequence.cached_tokens or 0,
            preemptions=sequence.num_preemptions,
            interruptions=sequence.num_interruptions,
            padded_tokens=sequence.num_padded,
            error=error,
        )


def _join(first: Release, second: Release) -> Release:
    return Release(first.num_tokens + second.num_tokens, first.text + second.text)
