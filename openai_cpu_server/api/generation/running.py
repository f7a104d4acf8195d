from __future__ import annotations

import asyncio
import hashlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain
from typing import Any, NamedTuple, Protocol, Union

import msgspec

from openai_cpu_server import errors
from openai_cpu_server.api.generation.call import ResolvedRequest
from openai_cpu_server.api.generation.renderer import ENDED_BY, REPETITION, Chunk, GatheredAnswer, Renderer
from openai_cpu_server.contract.engine import Embedding, Generation
from openai_cpu_server.contract.figures import Figures
from openai_cpu_server.contract.media import Picture, Sound
from openai_cpu_server.contract.messages import Finish, ModelLoading, PromptProgress, QueuePlace, TokenEvent
from openai_cpu_server.http.context import RequestLog
from openai_cpu_server.http.errors import error_object
from openai_cpu_server.http.keys import Client, Identity
from openai_cpu_server.http.limits import Reservation
from openai_cpu_server.models.grammars import LruCache
from openai_cpu_server.models.served import ServedModel
from openai_cpu_server.observe.ended import Distribution, EndedCall


def limit_time(work: Generation | Embedding, request_log: RequestLog, *limits_s: float | None) -> None:
    """Apply the shortest limit, counted from arrival."""
    timeout_s = min((limit_s for limit_s in limits_s if limit_s is not None), default=None)
    if timeout_s is not None:
        elapsed_s = time.monotonic() - request_log.started_s
        work.fail_in(timeout_s - elapsed_s, errors.DeadlineExceeded(timeout_s))


_AT_ONCE = 32
"""Events after which other tasks run."""


class TimedEvent(NamedTuple):
    event: TokenEvent
    arrived_s: float


@dataclass
class ReplayedGeneration:
    events: Sequence[TimedEvent]
    figures: Figures
    arrived_s: float = 0.0

    async def __aenter__(self) -> ReplayedGeneration:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def __aiter__(self) -> AsyncIterator[TokenEvent]:
        for number, (event, arrived_s) in enumerate(self.events, 1):
            self.arrived_s = arrived_s
            yield event
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)

    def progress(self) -> AsyncIterator[TokenEvent]:
        return self.__aiter__()

    def fail_in(self, seconds: float, error: errors.ServerError) -> None: ...


_MOST_FACTS = 131_072
"""Events and log-probabilities of the longest recorded answer, some 20 MB."""


@dataclass
class AnswerRecorder:
    num_unfinished: int
    keep: Callable[[Sequence[TokenEvent]], None]
    _events: list[TokenEvent] | None = field(default_factory=list)
    _num_facts: int = 0

    def note(self, event: TokenEvent) -> None:
        if self._events is None:
            return
        self._events.append(event)
        self.num_unfinished -= event.finish is not None
        self._num_facts += 1 + sum(1 + len(one.top) for one in chain(event.logprobs, event.prompt_logprobs))
        if self._num_facts > _MOST_FACTS:
            self._events = None
        elif self.num_unfinished == 0:
            self.keep(self._events)
            self._events = None


class CachedAnswer(NamedTuple):
    """Earlier answer in `held`, or else the way to store the new one."""

    call: ResolvedRequest
    held: ReplayedGeneration | None = None
    keep: Callable[[Sequence[TokenEvent]], None] | None = None

    @property
    def recorder(self) -> AnswerRecorder | None:
        return None if self.keep is None else AnswerRecorder(len(self.call.requests), self.keep)


NEWS_INTERVAL_S = 1.0
SETTLING_S = 0.25
"""Wait for a step, even on an idle server."""
_UNFINISHED = "unfinished"

StreamItem = Union[QueuePlace, ModelLoading, Sequence[Chunk]]


def chunks_of(item: StreamItem, renderer: Renderer) -> Sequence[Chunk]:
    return renderer.waiting(item) if isinstance(item, (QueuePlace, ModelLoading)) else item


@dataclass
class AnswerStream:
    """Items, the last of which is the done marker or the error."""

    items: AsyncIterator[StreamItem]
    renderer: Renderer
    request_log: RequestLog
    has_ended: bool = False
    error: Exception | None = None

    async def __aiter__(self) -> AsyncIterator[StreamItem]:
        try:
            async for item in self.items:
                yield item
            self.has_ended = True
            if self.renderer.done_marker is not None:
                yield [Chunk(self.renderer.done_marker)]
        except Exception as error:
            # The status is out already, so the last event says what went wrong.
            self.has_ended, self.error = True, error
            self.request_log.failed(error)
            yield self.renderer.error(error_object(error, request_id=self.request_log.id))


class OpenCall(Protocol):
    """Submitted call of one or several generations."""

    @property
    def names(self) -> tuple[str, str]: ...

    @property
    def client(self) -> Client: ...

    @property
    def call(self) -> ResolvedRequest: ...

    @property
    def model(self) -> ServedModel: ...

    @property
    def figures(self) -> Figures: ...

    def emit(self, renderer: Renderer) -> AsyncGenerator[StreamItem, None]: ...

    async def gather(self) -> dict[str, GatheredAnswer]: ...

    def cancel(self) -> None: ...

    def stop(self) -> None:
        """End with the output so far. Raises RequestEnded."""

    def stop_thinking(self) -> None:
        """End all reasoning that has no answer yet. Raises NotThinking, RequestEnded."""

    async def __aenter__(self) -> OpenCall: ...

    async def __aexit__(self, *error: Any) -> None: ...


_ENDED_BYTES = 512 * 1024
"""Some 1,000 ids."""


class RunningCalls:
    """Live calls by id. Of two with one name the first is found, as it contains the other."""

    def __init__(self) -> None:
        self._running: dict[str, OpenCall] = {}
        self._ended = LruCache[Client](_ENDED_BYTES)

    def begin(self, running: OpenCall) -> None:
        for name in running.names:
            self._running.setdefault(name, running)

    def end(self, running: OpenCall) -> None:
        for name in running.names:
            if self._running.get(name) is running:
                del self._running[name]
                self._ended.put(name, running.client, len(name))

    def find(self, name: str, identity: Identity) -> OpenCall:
        """Return the caller's live call. Raises RequestNotFound, RequestEnded."""
        running = self._running.get(name)
        client = self._ended.get(name) if running is None else running.client
        if client is None or not client.is_owned_by(identity):
            raise errors.RequestNotFound(name)
        if running is None:
            raise errors.RequestEnded(name)
        return running


_DEAR_S = 1.0
_REFUSALS_BYTES = 2**20
"""Some 1,500 grammars."""


class _GrammarRefusal(NamedTuple):
    message: str
    num_tokens: int
    """Output length at the failure. Shorter outputs may succeed."""


class GrammarRefusals:
    """Grammars that took over a second to fail are refused at once from then on."""

    def __init__(self) -> None:
        self._refusals = LruCache[_GrammarRefusal](_REFUSALS_BYTES)

    def check(self, call: ResolvedRequest, model: str) -> None:
        """Refuse a grammar that failed before. Raises ConstraintFailed."""
        if call.grammar_path is None or not len(self._refusals):
            return
        refusal = self._refusals.get(_grammar_digest(call, model))
        if refusal is not None and _most_tokens(call) >= refusal.num_tokens:
            raise errors.ConstraintFailed(refusal.message, param=call.grammar_path)

    def add(
        self, call: ResolvedRequest, model: str, message: str, *, num_tokens: int, elapsed_s: float
    ) -> None:
        if call.grammar_path is not None and elapsed_s > _DEAR_S:
            refusal = _GrammarRefusal(message, min(num_tokens, _most_tokens(call)))
            self._refusals.put(_grammar_digest(call, model), refusal, len(message))


def _most_tokens(call: ResolvedRequest) -> int:
    return max(request.max_tokens for request in call.requests)


def _grammar_digest(call: ResolvedRequest, model: str) -> bytes:
    request = call.requests[0]
    return hashlib.sha256(msgspec.msgpack.encode((request.client, model, request.constraint))).digest()


@dataclass(eq=False)
class RunningCall:
    """Leaving it cancels what still runs, and counts the output."""

    call: ResolvedRequest
    generation: Generation
    model: ServedModel
    _: KW_ONLY
    request_log: RequestLog
    calls: RunningCalls
    refusals: GrammarRefusals
    reservation: Reservation | None = None
    recorder: AnswerRecorder | None = None

    def __post_init__(self) -> None:
        self._tally = Tally(self.call)
        is_thinking = self.call.thinking is not None and self.call.thinking.ending is not None
        self._thinking = {request.id for request in self.call.requests} if is_thinking else set[str]()

    async def __aenter__(self) -> RunningCall:
        await self.generation.__aenter__()
        self.calls.begin(self)
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.calls.end(self)
        await self.generation.__aexit__(*error)
        figures = self.figures
        self.request_log.generated(
            self._tally.ended(figures, began_s=self.request_log.started_s, model=self.model.name)
        )
        if self.reservation is not None:
            self.reservation.output_tokens = figures.output_tokens

    @property
    def names(self) -> tuple[str, str]:
        return self.call.id, self.request_log.id

    @property
    def client(self) -> Client:
        return Client.of_label(self.call.requests[0].client)

    @property
    def headers(self) -> Mapping[str, str]:
        more = {ENDED_BY: REPETITION} if self._tally.has_loop else {}
        return {**self.call.headers, **more}

    def cancel(self) -> None:
        """Raise RequestCancelled in the reader."""
        self.model.engine.cancel(self.call.id)

    def stop(self) -> None:
        self.recorder = None  # it is not an answer for others
        if not self.model.engine.stop(self.call.id):
            raise errors.RequestEnded(self.call.id)

    def stop_thinking(self) -> None:
        thinking = self.call.thinking
        if thinking is None or thinking.ending is None or not self._thinking:
            raise errors.NotThinking(self.call.id)
        self.recorder = None
        ended = [self.model.engine.end_thinking(one, thinking.ending) for one in sorted(self._thinking)]
        self._thinking.clear()
        if not any(ended):
            raise errors.RequestEnded(self.call.id)

    @property
    def figures(self) -> Figures:
        """Complete once every request has finished."""
        return self._tally.figures(self.generation.figures)

    @contextmanager
    def _blaming_grammar(self) -> Iterator[None]:
        """Name the field of a grammar that fails, and remember the refusal."""
        try:
            yield
        except errors.ConstraintFailed as error:
            num_tokens, elapsed_s = self.figures.output_tokens, self._tally.elapsed_s
            self.refusals.add(
                self.call, self.model.name, str(error), num_tokens=num_tokens, elapsed_s=elapsed_s
            )
            error.param = self.call.grammar_path
            raise

    async def emit(self, renderer: Renderer) -> AsyncGenerator[StreamItem, None]:
        """Yield items as they come. Raises the call's error."""
        news = QueueNews(time.monotonic, every_time=self.call.details.progress)
        if chunks := renderer.begin():
            yield chunks
        with self._blaming_grammar():
            async for item in self.generation.progress():
                if isinstance(item, TokenEvent):
                    if chunks := self._chunks(item, renderer):
                        news.is_over = True
                        yield chunks
                elif news.is_due(item):
                    yield self._waits(item, renderer)
        if chunks := renderer.end(self.figures):
            yield chunks

    def _chunks(self, event: TokenEvent, renderer: Renderer) -> Sequence[Chunk]:
        progress = event.progress
        if progress is None:
            self._note(event)
        if self.call.details.timings:
            figures = self.figures
            if progress is not None:
                figures = msgspec.structs.replace(
                    figures, prompt_tokens=progress.processed, cached_tokens=progress.cached
                )
            renderer.so_far = figures
        if progress is None:
            return renderer.event(event)
        return renderer.prompt(event.id, progress, self.figures)

    def _waits(self, news: QueuePlace | ModelLoading, renderer: Renderer) -> StreamItem:
        if isinstance(news, ModelLoading) or not self.call.details.progress:
            return news
        total = next(one.num_tokens for one in self.call.requests if one.id == news.id)
        progress = PromptProgress(
            total=total, cached=0, processed=0, left_ms=news.first_token_ms, place=news.position
        )
        return renderer.prompt(news.id, progress, self.figures) or news

    async def hold(self) -> list[TimedEvent]:
        events = []
        with self._blaming_grammar():
            async for event in self.generation:
                if event.progress is None:
                    self._note(event)
                    events.append(TimedEvent(event, self.generation.arrived_s))
        return events

    async def gather(self) -> dict[str, GatheredAnswer]:
        """Return whole answers by request id. Raises the call's error."""
        answers = {request.id: GatheredAnswer() for request in self.call.requests}
        with self._blaming_grammar():
            async for event in self.generation:
                self._note(event)
                answers[event.id].add(event)
        return answers

    def _note(self, event: TokenEvent) -> None:
        if self._thinking and (event.answer_start is not None or event.finish is not None):
            self._thinking.discard(event.id)
        self._tally.note(event, self.generation.arrived_s)
        if self.recorder is not None:
            self.recorder.note(event)


class QueueNews:
    def __init__(self, clock: Callable[[], float], *, every_time: bool = False) -> None:
        """`every_time`: also send an unchanged place, whose expected time changes."""
        self._clock = clock
        self._every_time = every_time
        self._sent_s = clock() + SETTLING_S - NEWS_INTERVAL_S
        self._position: int | None = None
        self.is_over = False

    def is_due(self, news: QueuePlace | ModelLoading) -> bool:
        """Count news as sent if due."""
        if self.is_over or isinstance(news, ModelLoading):
            return not self.is_over
        now_s = self._clock()
        is_unchanged = news.position == self._position and not self._every_time
        if is_unchanged or now_s - self._sent_s < NEWS_INTERVAL_S:
            return False
        self._sent_s, self._position = now_s, news.position
        return True


class Tally:
    """Counter whose creation marks the submission."""

    def __init__(self, call: ResolvedRequest) -> None:
        self._call = call
        self._finishes: dict[str, Finish] = {}
        self._released: Counter[str] = Counter()
        self._submitted_s = time.monotonic()
        self._first_event_s: float | None = None
        self._last_s: dict[str, float] = {}
        self._gaps = Distribution()

    @property
    def elapsed_s(self) -> float:
        """Count from the first event, or the submission before it."""
        return time.monotonic() - (self._first_event_s or self._submitted_s)

    def note(self, event: TokenEvent, arrived_s: float) -> None:
        """`arrived_s`: arrival from the engine, which a slow reader does not delay."""
        if self._first_event_s is None:
            self._first_event_s = arrived_s
        num_tokens = len(event.tokens)
        if num_tokens:
            last_s = self._last_s.get(event.id)
            if last_s is not None and arrived_s > last_s:  # else all come at once, from a cache
                self._gaps.add((arrived_s - last_s) / num_tokens, num_tokens)
            self._last_s[event.id] = arrived_s
            self._released[event.id] += num_tokens
        if event.finish is not None:
            self._finishes[event.id] = event.finish

    @property
    def has_loop(self) -> bool:
        return any(finish.is_loop for finish in self._finishes.values())

    def figures(self, engine_figures: Figures) -> Figures:
        return msgspec.structs.replace(
            engine_figures,
            prompt_tokens=self._call.prompt_tokens,
            image_tokens=sum(prompt.num_rows(Picture) for prompt in self._call.prompts),
            audio_tokens=sum(prompt.num_rows(Sound) for prompt in self._call.prompts),
            audio_s=sum(prompt.sound_s for prompt in self._call.prompts),
            cached_tokens=self._cached_tokens(),
            output_tokens=sum(self._output_tokens(request.id) for request in self._call.requests),
        )

    def ended(self, figures: Figures, *, began_s: float, model: str) -> EndedCall:
        """`began_s`: arrival of its request."""
        first_s, adapter = self._first_event_s, self._call.requests[0].adapter
        return EndedCall(
            figures=figures,
            model=model,
            finish_reasons=tuple(
                _UNFINISHED if (finish := self._finishes.get(request.id)) is None else finish.reason.value
                for request in self._call.requests
            ),
            submitted_s=min(self._submitted_s, time.monotonic() - figures.latency_ms / 1000),
            ttft_s=None if first_s is None else first_s - began_s,
            gaps=self._gaps,
            adapter=f"{model}:{adapter}" if adapter is not None else None,
        )

    def _output_tokens(self, request_id: str) -> int:
        finish = self._finishes.get(request_id)
        return self._released[request_id] if finish is None else finish.output_tokens

    def _cached_tokens(self) -> int:
        """Count the least of a prompt's choices, because later ones share what the first computed."""
        least: dict[int, int] = {}
        for index, request in enumerate(self._call.requests):
            if (finish := self._finishes.get(request.id)) is not None:
                prompt = index // self._call.best_of
                least[prompt] = min(finish.cached_tokens, least.get(prompt, finish.cached_tokens))
        return sum(least.values())
