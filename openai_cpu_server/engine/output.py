"""Events of sequences' progress."""

from __future__ import annotations

import codecs
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.messages import Finish, FinishReason, PromptProgress, TokenEvent
from openai_cpu_server.contract.request import GenerationRequest, overlap
from openai_cpu_server.contract.step import Backend, Sample, TokenLogprob
from openai_cpu_server.engine.base import failure
from openai_cpu_server.engine.parts import OutputParts, StopStringBuffer
from openai_cpu_server.scheduler.admission import LiveSequences
from openai_cpu_server.scheduler.sequence import Sequence, SequenceAdvance, take_over

_utf8 = codecs.getincrementaldecoder("utf-8")


class ReleasedText(NamedTuple):
    """Text and its number of held tokens."""

    num_tokens: int
    text: str
    stop: str | None = None


class TextStream:
    """Releases text by tokens, but holds back those within a character or a possible stop string."""

    def __init__(self, stop: Iterable[str]) -> None:
        self.watch(stop)
        self._held = b""
        self._ends: list[int] = []
        """End of each token in `_held`."""

    def watch(self, stop: Iterable[str]) -> None:
        """Replace the stop strings, also for the held text."""
        self._stop = [s.encode() for s in stop]

    def push(self, piece: bytes) -> ReleasedText:
        self._held += piece
        self._ends.append(len(self._held))
        found = [(at, s) for s in self._stop if (at := self._held.find(s)) >= 0]
        if not found:
            return self._release(self._num_releasable())
        at, stop = min(found, key=lambda place: place[0])
        starts = [0, *self._ends[:-1]]
        text = self._held[:at].decode(errors="replace")
        return ReleasedText(sum(start < at for start in starts), text, stop.decode())

    def flush(self) -> ReleasedText:
        """An unfinished character becomes U+FFFD."""
        return self._release(len(self._ends))

    def _num_releasable(self) -> int:
        unfinished_stops = (overlap(self._held, stop) for stop in self._stop)
        safe = len(self._held) - max([self._unfinished_character(), *unfinished_stops])
        num_tokens = bisect_right(self._ends, safe)
        while num_tokens and self._splits_character(self._ends[num_tokens - 1]):
            num_tokens -= 1
        return num_tokens

    def _release(self, num_tokens: int) -> ReleasedText:
        cut = self._ends[num_tokens - 1] if num_tokens else 0
        text = self._held[:cut].decode(errors="replace")
        self._held = self._held[cut:]
        self._ends = [end - cut for end in self._ends[num_tokens:]]
        return ReleasedText(num_tokens, text)

    def _unfinished_character(self) -> int:
        if not self._held or self._held[-1] < 0x80:
            return 0
        decoder = _utf8(errors="replace")
        decoder.decode(self._held)
        return len(decoder.getstate()[0])

    def _splits_character(self, at: int) -> bool:
        return at < len(self._held) and self._held[at] & 0xC0 == 0x80


LOOP_TOKENS = 1024
"""Repeated tokens that count as a loop. Real repetition is shorter in SmolLM2's vocabulary: 1,000 blanks are
17 tokens, a sentence 100 times 800, 64 equal rows of a table 896."""
LONGEST_PERIOD = 256
"""Tokens of the longest repeated passage, which then stands there five times."""
_INTERVAL = 64
"""Tokens between two looks, which make the cost of a token constant and small."""


class LoopDetector:
    """Detector of repetition by tokens alone, so that no schedule, draft or crash moves the end."""

    def __init__(self) -> None:
        self._recent: deque[str] = deque(maxlen=LOOP_TOKENS + LONGEST_PERIOD)
        self._num_tokens = 0

    def read(self, token: int) -> bool:
        """Read the token as a character, because texts are searched fast; return True in a loop."""
        self._recent.append(chr(token))
        self._num_tokens += 1
        if self._num_tokens % _INTERVAL or self._num_tokens <= LOOP_TOKENS:
            return False
        recent = "".join(self._recent)
        return recent[-LOOP_TOKENS:] in recent[:-1]


_NOTHING = ReleasedText(0, "")
Events = tuple[TokenEvent, ...]


class _Token(NamedTuple):
    number: int
    logprob: TokenLogprob | None
    is_forced: bool = False


class SequenceOutput:
    """Converter of progress into events, at most one for each output part in a step. A resumed sequence holds
    nothing back, because its first `num_released` tokens were released."""

    def __init__(
        self,
        sequence: Sequence,
        *,
        piece: Callable[[int], bytes],
        name: Callable[[int], bytes],
        end_tokens: frozenset[int],
        num_released: int,
        first_token_ms: Callable[[Sequence], float],
    ) -> None:
        """`name`: like `piece`, with names of control tokens."""
        self._sequence = sequence
        self._first_token_ms = first_token_ms
        self._piece = piece
        self._end_tokens = end_tokens.union(sequence.request.sampling.stop_tokens)
        self._num_tokens = num_released
        """Examined output tokens, without forced ones behind the end."""
        self._num_forced = 0
        thinking = sequence.request.constraint and sequence.request.constraint.thinking
        self._shield = StopStringBuffer(thinking) if thinking else None
        """Search for the text for the user, or None once that has begun."""
        self._text = TextStream(sequence.request.stop if self._shield is None else ())
        marks = sequence.request.marks
        self._parts = OutputParts(marks, name) if marks is not None else None
        """Unset if all output is the answer."""
        self._held: list[_Token] = []
        self._gained = _NOTHING
        self._scores: list[TokenLogprob] = []
        self._progress_sent = sequence.request.num_tokens if num_released else -1
        self._loops = LoopDetector() if sequence.request.ends_loops else None
        self._last_choice = 0
        """Examined tokens up to the last chosen one."""
        self.is_loop = False
        for token in sequence.output[:num_released]:
            self._look_for_loop(token)
        released = [piece(token) for token in sequence.output[:num_released]]
        for one in released:
            self._follow(one)
        if self._parts is not None:
            self._parts.read(sequence.output[:num_released], b"".join(released).decode(errors="replace"))

    def begin(self, beginning: Iterable[int]) -> Events:
        """Take the tokens that are forced before the first sample."""
        reason = self._push([_Token(token, None, is_forced=True) for token in beginning])
        return () if reason is None else self._event(self._finish(reason))

    def advance(self, advance: SequenceAdvance) -> Events:
        progress = tuple(self._progress()) if self._sequence.request.reports_progress else ()
        self._scores.extend(advance.scores)
        if advance.samples:
            return progress + self._sampled(advance)
        if advance.has_failed:
            return progress + self._failed(advance)
        if self._sequence.pending == 0:  # max_tokens is 0: the prompt was only scored
            return progress + self.end(FinishReason.LENGTH)
        return progress

    def _progress(self) -> Iterator[TokenEvent]:
        """The cached part is reported after the first step."""
        sequence, total = self._sequence, self._sequence.request.num_tokens
        cached = sequence.cached_tokens or 0
        for processed in (cached, min(sequence.computed, total)):
            if processed > self._progress_sent:
                self._progress_sent = processed
                left_ms = self._first_token_ms(sequence)
                progress = PromptProgress(total=total, cached=cached, processed=processed, left_ms=left_ms)
                yield TokenEvent(id=sequence.request.id, progress=progress)

    def end(self, reason: FinishReason) -> Events:
        """Held text is sent if the output is a result."""
        self._gained = _NOTHING
        if reason is FinishReason.STOP:
            self._gain(self._text.flush())
        return self._event(self._finish(reason))

    def _sampled(self, advance: SequenceAdvance) -> Events:
        """A failure behind the samples matters only if the output does not end before it."""
        reason = self._push(_tokens(advance.samples))
        if reason is not None:
            return self._event(self._finish(reason))
        if advance.has_failed:
            return self._failed(advance)
        return self._event(None) if self._gained.num_tokens else ()

    def _failed(self, advance: SequenceAdvance) -> Events:
        finish = self._finish(FinishReason.ERROR)
        error, is_own = advance.failure or advance.fault, advance.failure is not None
        return self._event(msgspec.structs.replace(finish, error=error, is_own_fault=is_own))

    def _push(self, tokens: Iterable[_Token]) -> FinishReason | None:
        for token in tokens:
            reason = self._push_one(token)
            if reason is not None:
                return reason
        return None

    def _push_one(self, token: _Token) -> FinishReason | None:
        self._num_tokens += 1
        self._num_forced += token.is_forced
        if token.number in self._end_tokens:
            if self._sequence.request.scores_end:
                self._held.append(token)
                self._gain(self._text.push(b""))
            self._gain(self._text.flush())
            return FinishReason.STOP
        self._held.append(token)
        piece = self._piece(token.number)
        release = self._text.push(piece)
        self._follow(piece)
        self._gain(release)
        if release.stop is not None:
            return FinishReason.STOP
        self._look_for_loop(token.number, is_forced=token.is_forced)
        if self._num_tokens >= self._sequence.request.max_tokens or self.is_loop:
            self._gain(self._text.flush())
            return FinishReason.LENGTH
        return None

    def _look_for_loop(self, token: int, *, is_forced: bool = False) -> None:
        """A passage that the constraint demands is not a loop."""
        if not is_forced:
            self._last_choice = self._num_tokens
        is_chosen = self._num_tokens - self._last_choice < LOOP_TOKENS
        is_free = self._num_tokens > self._sequence.request.sampling.min_tokens
        self.is_loop = self._loops is not None and self._loops.read(token) and is_free and is_chosen

    def _follow(self, piece: bytes) -> None:
        if self._shield is not None and self._shield.ends_with(piece):
            self._shield = None
            self._text.watch(self._sequence.request.stop)

    def _gain(self, release: ReleasedText) -> None:
        gained = self._gained
        num_tokens, text = gained.num_tokens + release.num_tokens, gained.text + release.text
        self._gained = ReleasedText(num_tokens, text, release.stop)

    def _event(self, finish: Finish | None) -> Events:
        gained, self._gained = self._gained, _NOTHING
        released, self._held = self._held[: gained.num_tokens], self._held[gained.num_tokens :]
        scores, self._scores = tuple(self._scores), []
        event = TokenEvent(
            id=self._sequence.request.id,
            tokens=tuple(token.number for token in released),
            text=gained.text,
            logprobs=tuple(token.logprob for token in released if token.logprob is not None),
            prompt_logprobs=scores,
            finish=finish,
        )
        return (event,) if self._parts is None else self._parts.cut(event)

    def _finish(self, reason: FinishReason) -> Finish:
        sequence = self._sequence
        return Finish(
            reason=reason,
            stop_string=self._gained.stop,
            is_loop=self.is_loop,
            output_tokens=self._num_tokens,
            forced_tokens=self._num_forced,
            cached_tokens=sequence.cached_tokens or 0,
            preemptions=sequence.num_preemptions,
            interruptions=sequence.num_interruptions,
            padded_tokens=sequence.num_padded,
            drafted_tokens=sequence.num_drafted,
            accepted_tokens=sequence.num_accepted,
        )


@dataclass(eq=False)
class LiveOutputs:
    """Outputs of sequences, which leave the scheduler with their last event."""

    sequences: LiveSequences
    backend: Backend
    _: KW_ONLY
    emit: Callable[[Iterable[TokenEvent]], None]
    first_token_ms: Callable[[Sequence], float]
    _outputs: dict[str, SequenceOutput] = field(default_factory=dict)
    num_forced: int = 0

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._outputs)

    def beginning(self, request: GenerationRequest, output: tuple[int, ...]) -> tuple[int, ...]:
        """Return the tokens forced before the first sample, none if tokens are scored one by one. Any thread
        may call it."""
        if request.constraint is None:
            return ()
        forced = self.backend.forced(request.constraint, output)
        if request.top_logprobs is not None or request.prompt_logprobs:
            return ()
        return forced[: max(0, request.max_tokens - len(output))]

    def accept(
        self, request: GenerationRequest, output: tuple[int, ...], beginning: tuple[int, ...], *, now_s: float
    ) -> None:
        former = self.sequences.get(request.id)
        if former is not None:
            self.end(request.id, FinishReason.CANCELLED)
            now_s = former.arrived_s  # it keeps its place in the queue
        sequence = self.sequences.submit(request, output, beginning, now_s=now_s)
        if former is not None:
            take_over(sequence, former)
        self._outputs[request.id] = SequenceOutput(
            sequence,
            piece=partial(self.backend.piece, special=request.show_control_tokens),
            name=partial(self.backend.piece, special=True),
            end_tokens=self.backend.info.end_tokens,
            num_released=len(output),
            first_token_ms=self.first_token_ms,
        )
        if output and (len(output) >= request.max_tokens or self._outputs[request.id].is_loop):
            self.end(request.id, FinishReason.LENGTH)  # only its last event was lost in the crash
            return
        events = self._outputs[request.id].begin(beginning)
        self.num_forced += len(beginning)
        self._take(sequence, events)

    def advance(self, advance: SequenceAdvance) -> None:
        """An error ends only this sequence."""
        sequence = advance.sequence
        self.num_forced += sum(len(sample.forced) for sample in advance.samples)
        try:
            with contained():
                events = self._outputs[sequence.request.id].advance(advance)
        except RequestFailed as error:
            self.drop(sequence.request.id)
            self.emit((failure(sequence.request.id, str(error), sequence.num_output),))
            return
        self._take(sequence, events)

    def end(self, request_id: str, reason: FinishReason) -> None:
        sequence = self.sequences.get(request_id)
        if sequence is not None:
            self._take(sequence, self._outputs[request_id].end(reason))

    def drop(self, request_id: str) -> Sequence | None:
        self._outputs.pop(request_id, None)
        sequence = self.sequences.get(request_id)
        if sequence is not None:
            self.sequences.finish(sequence)
        return sequence

    def take_forced(self) -> int:
        forced, self.num_forced = self.num_forced, 0
        return forced

    def _take(self, sequence: Sequence, events: Events) -> None:
        if events and (finish := events[-1].finish) is not None:
            del self._outputs[sequence.request.id]
            (self.sequences.complete if finish.is_good else self.sequences.finish)(sequence)
        self.emit(events)


def _tokens(samples: Iterable[Sample]) -> Iterator[_Token]:
    for sample in samples:
        yield _Token(sample.token, sample.logprob)
        yield from (_Token(token, None, is_forced=True) for token in sample.forced)
