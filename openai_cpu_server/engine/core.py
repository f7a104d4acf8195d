"""The engine's heart: it takes commands, computes one step at a time, and tells what came of it."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from openai_cpu_server.contract.adapter import Adapter, LoadedAdapter, RefusedAdapter
from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.messages import (
    ALONE,
    AdapterLoaded,
    AdapterNews,
    AdapterRefused,
    Cancel,
    ClearCache,
    Finish,
    FinishReason,
    HideSteps,
    LoadingAdapter,
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
    UnloadAdapter,
)
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import Backend, Span, Step, StepResult
from openai_cpu_server.engine.output import Output
from openai_cpu_server.engine.outward import Outward, OutwardNews
from openai_cpu_server.engine.shares import shared_ms
from openai_cpu_server.engine.showing import Showing
from openai_cpu_server.engine.step_log import log_step
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.prefix_cache import Journal
from openai_cpu_server.scheduler.scheduler import Scheduler
from openai_cpu_server.scheduler.sequence import Sequence, Status
from openai_cpu_server.scheduler.spans import Advance

logger = logging.getLogger(__name__)

QUEUE_NEWS_S = 0.5
NEVER = float("-inf")
_SHORT_MS = 128.0
"""Steps up to this are not told how long they may take: every engine is given more time than that."""


class Prepared(NamedTuple):
    """A request that can be accepted."""

    submit: Submit
    beginning: tuple[int, ...]
    """Output that its constraint forces before anything is sampled, to be computed with the prompt."""


class Refused(NamedTuple):
    """A request that cannot be accepted."""

    submit: Submit
    why: str
    is_own_fault: bool = False
    """Its grammar is to blame."""


class Checked(NamedTuple):
    """An adapter whose file was looked at."""

    adapter: Adapter
    why_not: str | None = None
    """Why it cannot be loaded."""


Work = Submit | Prepared | Refused | Cancel | ClearCache | Checked | UnloadAdapter | ShowSteps | HideSteps
"""Commands that the core handles."""
Measure = Callable[[Callable[[], bool]], CostCurve | None]
"""Times steps. It returns None if its argument says that something else is wanted; another call goes on."""


class EngineCore:
    """Marries the scheduler and the backend. Every submitted request gets exactly one finishing event."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        *,
        preempt_threshold_s: float,
        measure: Measure | None = None,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        """`measure` is given where the cost of steps is only guessed yet; the prefix cache's `journal` where
        somebody chooses between several engines. `cpu_clock`: CPU seconds of all threads."""
        self._outward = Outward(scheduler, journal, clock) if journal is not None else None
        self._measure = measure
        self._is_measuring = False
        """Read by the reader thread."""
        self._scheduler = scheduler
        self._backend = backend
        self._preempt_threshold_s = preempt_threshold_s
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._outputs: dict[str, Output] = {}
        self._announced = StepStarted(ids=())
        self._opened: list[Sequence] = []
        """They have a slot, and were in no step since they got it."""
        self._events: list[TokenEvent] = []
        """Events of the step that is being built."""
        self._interruptible_until = NEVER
        """Read by the reader thread while a step runs."""
        self._was_interrupted = False
        self._adapters: dict[str, LoadedAdapter] = {}
        """Those that are loaded."""
        self._leaving: set[str] = set()
        """Those of them that go with their last request."""
        self._queue_told_at = NEVER
        self._num_forced = 0
        """Output tokens that no figures have told of yet."""
        self._preemptions_told = 0
        self._showing = Showing(clock)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._events) or self._showing.is_owed

    @property
    def work(self) -> Priority | None:
        """The best priority of those who wait or run; None: there is nothing to compute."""
        return self._scheduler.best_priority

    @property
    def is_guessing(self) -> bool:
        """It guesses what steps cost, and could measure it."""
        return self._measure is not None

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
        """Measure what steps cost, until that is known or something is wanted. Only without work."""
        assert not self.has_work
        assert self._measure is not None
        self._is_measuring = True
        curve = self._measure(is_wanted)
        self._is_measuring = False
        if curve is not None:
            self._scheduler.cost = CostModel(curve)
            self._measure = None

    def prepare(self, submit: Submit) -> Prepared | Refused:
        """Compile a request's constraint, and find what its output begins with. Any thread."""
        request = submit.request
        if not isinstance(request, GenerationRequest):
            return Refused(submit, "does not go with a model that generates text")
        info = self._backend.info
        if (name := request.wrong_number(vocab_size=info.vocab_size)) is not None:
            return Refused(submit, f"has numbers in '{name}' that are out of bounds")
        needed, limit = request.total_tokens, info.context_limit
        if needed > limit:
            return Refused(submit, f"needs {needed} tokens of {limit}")
        try:
            with contained():
                return Prepared(submit, self._beginning(request, submit.output))
        except RequestFailed as error:
            return Refused(submit, str(error), error.is_own_fault)

    def handle(self, command: Work) -> None:
        """Carry out a command. What goes wrong fails the request that it is about, and nothing else."""
        try:
            with contained():
                self._handle(command)
        except RequestFailed as error:
            self._abandon(command, error)
        self._free_adapters()

    def check_adapter(self, adapter: Adapter) -> Checked:
        """Look at an adapter's file. Any thread."""
        try:
            self._backend.check_adapter(adapter)
        except AdapterFailed as error:
            return Checked(adapter, str(error))
        except Exception as error:
            logger.exception("an adapter's file could not be read")
            return Checked(adapter, f"{adapter.path} cannot be read ({type(error).__name__}).")
        return Checked(adapter)

    def load_adapter(self, checked: Checked) -> Iterator[AdapterNews]:
        """Load an adapter; what happens is yielded when it happens. One that is loaded stays as it is."""
        key = checked.adapter.key
        if checked.why_not is not None:
            yield AdapterRefused(RefusedAdapter(key=key, reason=checked.why_not))
            return
        if key not in self._adapters:
            yield LoadingAdapter(key)
            try:
                self._adapters[key] = self._backend.load_adapter(checked.adapter)
            except AdapterFailed as error:
                yield AdapterRefused(RefusedAdapter(key=key, reason=str(error)))
                return
        self._leaving.discard(key)
        yield AdapterLoaded(self._adapters[key])

    def is_worth_interrupting(self, command: Work | Recall) -> bool:
        """Whether the running step should be thrown away for this command. Any thread."""
        if self._is_measuring:
            return True
        return is_urgent(command) and self._clock() < self._interruptible_until

    def tell(self, sharing: Sharing) -> Iterator[StepDone | QueueState]:
        """While another engine computes: what needs no computing."""
        if self._events:
            events, self._events = tuple(self._events), []
            yield StepDone(events=events, kv=self._scheduler.kv_stats)
        yield from self._queue_news(sharing)

    def step(self, sharing: Sharing = ALONE) -> Iterator[StepStarted | StepDone | QueueState]:
        """Compute one step; what happens is yielded when it happens."""
        # After a step that was thrown away for another model's newcomer comes a short one: it is not thrown
        # away too, and the next newcomer waits for no long one.
        is_repeated = self._was_interrupted and self.work is Priority.BATCH
        is_short = sharing.beside_interactive or is_repeated
        try:
            step = self._scheduler.schedule(beside_interactive=is_short)
        except BaseException:  # nobody knows with whom the scheduler could not cope: it may be any of them
            yield StepStarted(ids=tuple(self._outputs))
            raise
        yield from self._announce(step)
        figures = self._compute(step) if step.verbs or step.spans else self._idle_figures(step)
        self._free_adapters()
        events, self._events = tuple(self._events), []
        shown = self._showing.take(self._scheduler) if self._showing.is_on else None
        news = self._outward.news() if self._outward is not None else OutwardNews()
        yield StepDone(
            events=events,
            kv=self._scheduler.kv_stats,
            figures=figures,
            forecast=news.forecast,
            prefixes=news.prefixes,
            shown=shown,
        )
        yield from self._queue_news(sharing)

    def save_cache(self, path: str) -> None:
        """End everything and write the prefix cache, if there is one, to a file. Raises OSError."""
        if not self._scheduler.kv_stats.cache_capacity_blocks:
            return  # what an earlier run has left there stays
        for request_id in list(self._outputs):
            self._end(request_id, FinishReason.CANCELLED)
        self._backend.execute(self._scheduler.schedule())
        self._backend.export_cache(path, self._scheduler.cache_blocks)

    def _compute(self, step: Step) -> StepFigures:
        started, predicted_ms = self._clock(), self._scheduler.predicted_ms(step)
        cpu_started = self._cpu_clock()
        self._interruptible_until = self._until(step, started + predicted_ms / 1000)
        result = self._backend.execute(step)
        self._interruptible_until = NEVER
        self._was_interrupted = result.interrupted
        elapsed_ms = 1000 * (self._clock() - started)
        participants = self._scheduler.participants(step)
        reasons = self._scheduler.reasons
        log_step(step, participants, reasons, result, started_s=started, elapsed_ms=elapsed_ms)
        if self._showing.is_on:
            self._showing.note(step, participants, self._scheduler.all_reasons(), result)
        self._apply(step, result, elapsed_ms)
        parts = zip((one.request.client for one in participants), step.spans, strict=True)
        cpu_ms = 0.0 if result.interrupted else 1000 * (self._cpu_clock() - cpu_started)
        spent_ms = shared_ms(((client, _num_computed(span, result)) for client, span in parts), cpu_ms)
        return self._figures(step, result, predicted_ms, elapsed_ms, spent_ms)

    def _until(self, step: Step, expected_end: float) -> float:
        """The time up to which the step may be interrupted.

        Never are two in a row, so at most half of the work is wasted.
        """
        if self._was_interrupted or not self._scheduler.may_interrupt(step):
            return NEVER
        return expected_end - self._preempt_threshold_s

    def _apply(self, step: Step, result: StepResult, elapsed_ms: float) -> None:
        for advance in self._scheduler.apply(step, result, elapsed_ms):
            self._num_forced += sum(len(sample.forced) for sample in advance.samples)
            self._advance(advance)

    def _idle_figures(self, step: Step) -> StepFigures | None:
        """A request whose output is forced as a whole ends without a step."""
        return self._figures(step, StepResult(), 0.0, 0.0, {}) if self._num_forced else None

    def _figures(
        self,
        step: Step,
        result: StepResult,
        predicted_ms: float,
        elapsed_ms: float,
        spent_ms: dict[str, float],
    ) -> StepFigures:
        forced, self._num_forced = self._num_forced, 0
        preemptions = self._scheduler.num_preemptions - self._preemptions_told
        self._preemptions_told += preemptions
        return StepFigures(
            sequences=len(step.spans),
            tokens=step.num_tokens,
            padding=result.padding,
            sampled=len(result.samples) + sum(map(len, result.further.values())),
            forced=forced,
            drafted=sum(drafted.num_computed for drafted in result.drafted.values()),
            accepted=sum(drafted.num_accepted for drafted in result.drafted.values()),
            preemptions=preemptions,
            predicted_ms=predicted_ms,
            elapsed_ms=elapsed_ms,
            is_interrupted=result.interrupted,
            spent_ms=spent_ms,
        )

    def _announce(self, step: Step) -> Iterator[StepStarted]:
        computed = self._scheduler.participants(step)
        opened = dict.fromkeys([*self._opened, *self._scheduler.newcomers(step)])
        self._opened = [s for s in opened if s.status is Status.RUNNING and s not in computed]
        ids = tuple(sequence.request.id for sequence in [*computed, *self._opened])
        news = StepStarted(ids=ids, expected_ms=bound_ms(self._scheduler.predicted_ms(step)))
        if news != self._announced:
            self._announced = news
            yield news

    def _queue_news(self, sharing: Sharing) -> Iterator[QueueState]:
        if self._scheduler.num_waiting and self._clock() - self._queue_told_at >= QUEUE_NEWS_S:
            self._queue_told_at = self._clock()
            outlooks = self._scheduler.outlook()
            places = tuple(
                Place(o.sequence.request.id, o.position, sharing.slowdown * o.first_token_ms)
                for o in outlooks
            )
            preempted = tuple(sequence.request.id for sequence in self._scheduler.preempted)
            yield QueueState(places=places, preempted=preempted)

    def _handle(self, command: Work) -> None:
        match command:
            case Submit():
                self._handle(self.prepare(command))
            case Prepared(submit=submit) if not self._has(_adapter_of(submit)):
                self._events.append(_refusal(submit, "The adapter of this request is not loaded."))
            case Prepared(Submit(request=GenerationRequest() as request, output=output), beginning):
                self._accept(request, output, beginning)
            case Refused(submit=submit, why=why, is_own_fault=is_own_fault):
                self._events.append(_refusal(submit, why, is_own_fault=is_own_fault))
            case Cancel(id=request_id):
                self._end(request_id, FinishReason.CANCELLED)
            case ClearCache():
                self._scheduler.clear_cache()
            case UnloadAdapter(key=key):
                self._leaving.add(key)
            case ShowSteps() | HideSteps():
                self._showing.heard(command)
            case Checked():
                raise AssertionError("what loading brings is for the caller of `load_adapter`")

    def _abandon(self, command: Work, error: RequestFailed) -> None:
        """Nothing stays of the request, however far the command had come."""
        submit = submit_of(command)
        request_id = submit.request.id if submit else command.id if isinstance(command, Cancel) else ""
        sequence = self._scheduler.get(request_id)
        if sequence is not None:
            self._drop(sequence)
        if submit is not None:
            self._events.append(_refusal(submit, str(error), is_own_fault=error.is_own_fault))
        elif sequence is not None:
            self._events.append(failure(request_id, str(error), sequence.num_output))

    def _drop(self, sequence: Sequence) -> None:
        self._outputs.pop(sequence.request.id, None)
        self._scheduler.finish(sequence)

    def _beginning(self, request: GenerationRequest, output: tuple[int, ...]) -> tuple[int, ...]:
        """What the constraint forces before anything is sampled, to be computed with the prompt.

        Nothing where tokens are scored one by one. Raises `ConstraintFailed`.
        """
        if request.constraint is None:
            return ()
        forced = self._backend.forced(request.constraint, output)
        if request.top_logprobs is not None or request.prompt_logprobs:
            return ()
        return forced[: max(0, request.max_tokens - len(output))]

    def _accept(
        self, request: GenerationRequest, output: tuple[int, ...], beginning: tuple[int, ...]
    ) -> None:
        sequence = self._scheduler.submit(request, output, beginning, now_s=self._clock())
        self._outputs[request.id] = Output(
            sequence,
            piece=partial(self._backend.piece, special=request.show_control_tokens),
            name=partial(self._backend.piece, special=True),
            end_tokens=self._backend.info.end_tokens,
            num_told=len(output),
        )
        if output and len(output) >= request.max_tokens:
            self._end(request.id, FinishReason.LENGTH)  # only its last event was lost in the crash
            return
        events = self._outputs[request.id].begin(beginning)
        self._num_forced += len(beginning)
        self._take(sequence, events)

    def _end(self, request_id: str, reason: FinishReason) -> None:
        """End a request that has not ended by itself already."""
        sequence = self._scheduler.get(request_id)
        if sequence is not None:
            self._take(sequence, self._outputs[request_id].end(reason))

    def _has(self, adapter: str | None) -> bool:
        return adapter is None or (adapter in self._adapters and adapter not in self._leaving)

    def _free_adapters(self) -> None:
        """Free those that are to go and that no request uses any more."""
        for key in [key for key in self._leaving if not self._scheduler.uses_adapter(key)]:
            self._leaving.remove(key)
            if key in self._adapters:
                del self._adapters[key]
                self._backend.unload_adapter(key)
                self._scheduler.forget_adapter(key)

    def _advance(self, advance: Advance) -> None:
        """What goes wrong with one sequence's output is the end of that sequence."""
        sequence = advance.sequence
        try:
            with contained():
                events = self._outputs[sequence.request.id].advance(advance)
        except RequestFailed as error:
            self._drop(sequence)
            self._events.append(failure(sequence.request.id, str(error), sequence.num_output))
            return
        self._take(sequence, events)

    def _take(self, sequence: Sequence, events: tuple[TokenEvent, ...]) -> None:
        """Tell what a sequence has gained; it leaves with its last event."""
        if events and (finish := events[-1].finish) is not None:
            del self._outputs[sequence.request.id]
            self._leave(sequence, finish)
        self._events += events

    def _leave(self, sequence: Sequence, finish: Finish) -> None:
        if finish.is_good:
            self._scheduler.complete(sequence)
        else:
            self._scheduler.finish(sequence)


def bound_ms(predicted_ms: float) -> float:
    """Rounded up to a power of two, so that a time that grows a little with every step is seldom news; 0 if
    it is short."""
    return 2.0 ** math.ceil(math.log2(predicted_ms)) if predicted_ms > _SHORT_MS else 0.0


def _num_computed(span: Span, result: StepResult) -> int:
    """The tokens that the span has cost, those of its draft included."""
    drafted = result.drafted.get(span.slot)
    return len(span.tokens) + (drafted.num_computed if drafted is not None else 0)


def _adapter_of(submit: Submit) -> str | None:
    return submit.request.adapter if isinstance(submit.request, GenerationRequest) else None


def submit_of(command: Work) -> Submit | None:
    """The request that a command brings, if it brings one."""
    if isinstance(command, Prepared | Refused):
        return command.submit
    return command if isinstance(command, Submit) else None


def is_urgent(command: Work | Recall) -> bool:
    """Whether an interactive request has come, here or at another engine."""
    if isinstance(command, Recall):
        return command.interrupts
    submit = submit_of(command)
    return submit is not None and submit.request.priority is Priority.INTERACTIVE


def _refusal(submit: Submit, why: str, *, is_own_fault: bool = False) -> TokenEvent:
    return failure(submit.request.id, why, len(submit.output), is_own_fault=is_own_fault)


def failure(request_id: str, why: str, output_tokens: int, *, is_own_fault: bool = False) -> TokenEvent:
    finish = Finish(
        reason=FinishReason.ERROR, output_tokens=output_tokens, error=why, is_own_fault=is_own_fault
    )
    return TokenEvent(id=request_id, finish=finish)
