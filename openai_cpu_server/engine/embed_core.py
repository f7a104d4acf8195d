"""The engine's heart where the model embeds: inputs of many requests go through it together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from openai_cpu_server.contract.adapter import Adapter, RefusedAdapter
from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.embedding import EmbedBackend, Embedded, EmbedRequest
from openai_cpu_server.contract.messages import (
    ALONE,
    AdapterNews,
    AdapterRefused,
    Cancel,
    ClearCache,
    HideSteps,
    Place,
    QueueState,
    Recall,
    Sharing,
    ShowSteps,
    StepDone,
    StepFigures,
    StepStarted,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.scheduling import Scheduling
from openai_cpu_server.contract.shown import Shown, ShownPart
from openai_cpu_server.engine.core import (
    NEVER,
    QUEUE_NEWS_S,
    Checked,
    Prepared,
    Refused,
    Work,
    bound_ms,
    failure,
    is_urgent,
    submit_of,
)
from openai_cpu_server.engine.shares import shared_ms
from openai_cpu_server.errors import EmbeddingFailed
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.embed_queue import EmbedQueue, Part, Room

_ENOUGH_TOKENS = 256
"""Steps of more are no faster, and others wait longer for their turn. MiniLM, inputs of 32 tokens, in 1,000
tokens a second for steps of 64, 256, 512, 1,024 and 2,048: with our attention 9.4, 11.5, 11.4, 11.1, 11.0;
with ggml's, which computes every token with every other one of the step, 7.8, 10.2, 9.9, 9.1, 6.5. Steps of
128 made a chat's first token beside endless embedding no earlier."""
_PLACES_TOLD = 100
"""Requests that wait behind so many others are not told their place."""


class EmbedCore:
    """Marries the queue and the backend. Every submitted request gets exactly one event that ends it."""

    is_guessing = False
    """Costs are learned while it serves: a guess is right after some dozens of steps."""

    def __init__(
        self,
        queue: EmbedQueue,
        backend: EmbedBackend,
        cost: CostModel,
        options: Scheduling,
        *,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """`cpu_clock`: CPU seconds of all threads."""
        self._queue = queue
        self._backend = backend
        self._cost = cost
        self._options = options
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._events: list[TokenEvent] = []
        """Refusals of requests that are none of this model's."""
        self._embedded: list[Embedded] = []
        """Events of the step that is being built."""
        self._announced = StepStarted(ids=())
        self._interruptible_until = NEVER
        """Read by the reader thread while a step runs."""
        self._was_interrupted = False
        self._queue_told_at = NEVER
        self._is_shown = False
        """Somebody watches the steps."""

    @property
    def has_work(self) -> bool:
        return bool(len(self._queue) or self._events or self._embedded)

    @property
    def work(self) -> Priority | None:
        """The best priority of those who wait; None: there is nothing to compute."""
        return self._queue.best_priority

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
        raise AssertionError("there is nothing to measure")

    def prepare(self, submit: Submit) -> Prepared | Refused:
        """Nothing has to be prepared for an embedding: this is for requests of another kind of model."""
        return Refused(submit, _WRONG_MODEL)

    def check_adapter(self, adapter: Adapter) -> Checked:
        return Checked(adapter, "Adapters are for models that generate text; this one does not.")

    def load_adapter(self, checked: Checked) -> Iterator[AdapterNews]:
        """There are none for these models."""
        yield AdapterRefused(RefusedAdapter(key=checked.adapter.key, reason=checked.why_not or ""))

    def handle(self, command: Work) -> None:
        """Carry out a command. What goes wrong fails the request that it is about, and nothing else."""
        try:
            with contained():
                self._handle(command)
        except RequestFailed as error:
            self._abandon(command, str(error))

    def is_worth_interrupting(self, command: Work | Recall) -> bool:
        """Whether the running step should be thrown away for this command. Any thread."""
        return is_urgent(command) and self._clock() < self._interruptible_until

    def tell(self, sharing: Sharing) -> Iterator[StepDone | QueueState]:
        """While another engine computes: what needs no computing."""
        if self._events or self._embedded:
            yield self._done(None)
        yield from self._queue_news(sharing)

    def step(self, sharing: Sharing = ALONE) -> Iterator[StepStarted | StepDone | QueueState]:
        """Compute one step; what happens is yielded when it happens."""
        try:
            parts = self._queue.compose(self._room(sharing))
        except BaseException:  # nobody knows with whom the queue could not cope: it may be any of them
            yield StepStarted(ids=self._queue.ids)
            raise
        yield from self._announce(parts)
        figures = self._compute(parts) if parts else None
        yield self._done(figures, parts)
        yield from self._queue_news(sharing)

    def save_cache(self, path: str) -> None:
        """There is none."""

    # -- a step ------------------------------------------------------------------------------------------

    def _room(self, sharing: Sharing) -> Room:
        info, options = self._backend.info, self._options
        # After a step that was thrown away a short one: it is not thrown away too.
        is_short = sharing.beside_interactive or self._was_interrupted
        interactive = is_short or self._queue.best_priority is Priority.INTERACTIVE
        budget_ms = options.batch_beside_ms if interactive else options.batch_stall_ms
        budget_tokens = self._tokens_within(budget_ms)
        return Room(max_inputs=info.max_seqs, max_tokens=info.max_step_tokens, budget_tokens=budget_tokens)

    def _tokens_within(self, budget_ms: float) -> int:
        """How many tokens, of short inputs, take so long."""
        low, high = 1, min(_ENOUGH_TOKENS, self._backend.info.max_step_tokens)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._cost.predict_ms(middle) <= budget_ms else (low, middle - 1)
        return low

    def _compute(self, parts: list[Part]) -> StepFigures:
        inputs = _inputs(parts)
        tokens, pairs = sum(map(len, inputs)), sum(len(one) ** 2 for one in inputs)
        started, predicted_ms = self._clock(), self._cost.predict_ms(tokens, pairs)
        cpu_started = self._cpu_clock()
        self._interruptible_until = self._until(parts, started + predicted_ms / 1000)
        self._was_interrupted = not self._embed(parts)
        self._interruptible_until = NEVER
        elapsed_ms = 1000 * (self._clock() - started)
        if not self._was_interrupted:
            self._cost.refine(tokens, pairs, elapsed_ms)
        cpu_ms = 0.0 if self._was_interrupted else 1000 * (self._cpu_clock() - cpu_started)
        clients = ((part.pending.request.client, sum(map(len, part.inputs))) for part in parts)
        return StepFigures(
            sequences=len(inputs),
            tokens=tokens,
            predicted_ms=predicted_ms,
            elapsed_ms=elapsed_ms,
            is_interrupted=self._was_interrupted,
            spent_ms=shared_ms(clients, cpu_ms),
        )

    def _until(self, parts: list[Part], expected_end: float) -> float:
        """The time up to which the step may be interrupted: one of batch work alone, and never two in a
        row, so at most half of the work is wasted."""
        is_batch = all(part.pending.request.priority is Priority.BATCH for part in parts)
        if self._was_interrupted or not is_batch:
            return NEVER
        return expected_end - self._options.preempt_threshold_ms / 1000

    def _embed(self, parts: list[Part]) -> bool:
        """Compute the parts; False if that was interrupted. If they fail together each is computed alone, and
        whose part fails alone fails."""
        for part in parts:
            part.pending.has_run = True
        try:
            result = self._backend.embed(_inputs(parts))
        except EmbeddingFailed as error:
            if len(parts) == 1:
                self._fail(parts[0].pending.request, str(error))
                return True
            return all(self._embed([part]) for part in parts)
        if result.interrupted:
            return False
        self._tell_vectors(parts, result.vectors)
        self._queue.computed(parts)
        return True

    def _tell_vectors(self, parts: Iterable[Part], vectors: bytes) -> None:
        row_bytes = 4 * self._backend.info.embedding_size
        start = 0
        for part in parts:
            end = start + part.count * row_bytes
            rows = vectors[start:end]
            event = Embedded(id=part.pending.request.id, first=part.first, count=part.count, vectors=rows)
            self._embedded.append(event)
            start = end
        assert start == len(vectors), "there are as many rows as inputs"

    def _announce(self, parts: list[Part]) -> Iterator[StepStarted]:
        inputs = _inputs(parts)
        expected_ms = self._cost.predict_ms(sum(map(len, inputs)), sum(len(one) ** 2 for one in inputs))
        ids = tuple(part.pending.request.id for part in parts)
        news = StepStarted(ids=ids, expected_ms=bound_ms(expected_ms) if parts else 0.0)
        if news != self._announced:
            self._announced = news
            yield news

    def _done(self, figures: StepFigures | None, parts: Iterable[Part] = ()) -> StepDone:
        events, self._events = tuple(self._events), []
        embedded, self._embedded = tuple(self._embedded), []
        shown = Shown(parts=tuple(map(_shown, parts))) if self._is_shown and figures else None
        return StepDone(events=events, kv=None, figures=figures, embedded=embedded, shown=shown)

    def _queue_news(self, sharing: Sharing) -> Iterator[QueueState]:
        if self._queue.num_waiting and self._clock() - self._queue_told_at >= QUEUE_NEWS_S:
            self._queue_told_at = self._clock()
            yield QueueState(places=tuple(self._places(sharing.slowdown)))

    def _places(self, slowdown: float) -> Iterator[Place]:
        """Before each one's first input those of the others before it are computed, about."""
        tokens = 0
        for position, pending in enumerate(self._queue.waiting[:_PLACES_TOLD], 1):
            tokens += len(pending.request.inputs[pending.next])
            yield Place(pending.request.id, position, slowdown * self._cost.predict_ms(tokens))

    # -- commands ----------------------------------------------------------------------------------------

    def _handle(self, command: Work) -> None:
        match command:
            case Submit(request=EmbedRequest() as request, num_embedded=num_embedded):
                self._accept(request, num_embedded)
            case Submit():
                self._refuse(command, _WRONG_MODEL)
            case Refused(submit=submit, why=why):
                self._refuse(submit, why)
            case Cancel(id=request_id):
                pending = self._queue.remove(request_id)
                if pending is not None:
                    self._embedded.append(_failed(pending.request, "It was cancelled."))
            case ShowSteps():
                self._is_shown = True
            case HideSteps():
                self._is_shown = False
            case ClearCache():
                pass
            case Prepared():
                raise AssertionError("nothing is prepared for this model")

    def _accept(self, request: EmbedRequest, num_embedded: int) -> None:
        info = self._backend.info
        for tokens in request.inputs:
            if not 1 <= len(tokens) <= info.max_input_tokens:
                raise RequestFailed(f"An input has {len(tokens)} tokens of {info.max_input_tokens}.")
            if not 0 <= min(tokens) <= max(tokens) < info.vocab_size:
                raise RequestFailed(f"An input has a token that is none of the {info.vocab_size}.")
        self._queue.add(request, num_embedded, self._clock())

    def _abandon(self, command: Work, why: str) -> None:
        """Nothing stays of the request, however far the command had come."""
        submit = submit_of(command)
        if submit is not None:
            self._queue.remove(submit.request.id)
            self._refuse(submit, why)
        elif isinstance(command, Cancel) and (pending := self._queue.remove(command.id)) is not None:
            self._embedded.append(_failed(pending.request, why))

    def _refuse(self, submit: Submit, why: str) -> None:
        if isinstance(submit.request, GenerationRequest):
            self._events.append(failure(submit.request.id, why, len(submit.output)))
        else:
            self._embedded.append(_failed(submit.request, why))

    def _fail(self, request: EmbedRequest, why: str) -> None:
        self._queue.remove(request.id)
        self._embedded.append(_failed(request, why))


_WRONG_MODEL = "does not go with a model that embeds"


def _inputs(parts: Iterable[Part]) -> list[tuple[int, ...]]:
    return [tokens for part in parts for tokens in part.inputs]


def _shown(part: Part) -> ShownPart:
    request = part.pending.request
    tokens = sum(map(len, part.inputs))
    return ShownPart(request.id, request.client, request.priority, "prompt", prompt=tokens)


def _failed(request: EmbedRequest, why: str) -> Embedded:
    return Embedded(id=request.id, first=len(request.inputs), count=0, error=why)
