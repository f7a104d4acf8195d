"""The engine's heart: it takes commands, computes one step at a time, and tells what came of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq

from openai_cpu_server.contract.adapter import Adapter, LoadedAdapter, RefusedAdapter
from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.messages import (
    AdapterLoaded,
    AdapterNews,
    AdapterRefused,
    Cancel,
    ClearCache,
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
    Submit,
    TokenEvent,
    UnloadAdapter,
)
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import Backend, Span, Step, StepResult
from openai_cpu_server.engine.base import (
    Checked,
    Core,
    Members,
    Prepared,
    Refused,
    StepTimer,
    Work,
    failure,
    shared_ms,
    submit_of,
)
from openai_cpu_server.engine.output import LiveOutputs
from openai_cpu_server.engine.outward import Outward, OutwardNews
from openai_cpu_server.engine.showing import Showing
from openai_cpu_server.engine.step_log import log_step
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.prefix_cache import Journal
from openai_cpu_server.scheduler.scheduler import Scheduler
from openai_cpu_server.scheduler.sequence import Sequence, Status

logger = logging.getLogger(__name__)

Measure = Callable[[Callable[[], bool]], CostCurve | None]
"""Times steps. It returns None if its argument says that something else is wanted; another call goes on."""


class EngineCore(Core[Step]):
    """Marries the scheduler and the backend."""

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
        super().__init__(StepTimer(clock, cpu_clock, preempt_threshold_s=preempt_threshold_s), clock)
        self._outward = Outward(scheduler, journal, clock) if journal is not None else None
        self._measure = measure
        self._is_measuring = False
        """Read by the reader thread."""
        self._scheduler = scheduler
        self._backend = backend
        self._adapters = LoadedAdapters(scheduler, backend)
        self._outputs = LiveOutputs(scheduler, backend, tell=self._events.extend)
        self._opened: list[Sequence] = []
        """They have a slot, and were in no step since they got it."""
        self._preemptions_told = 0
        self._showing = Showing(clock)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._events) or self._showing.is_owed

    @property
    def work(self) -> Priority | None:
        return self._scheduler.best_priority

    @property
    def is_guessing(self) -> bool:
        return self._measure is not None

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
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
        try:
            with contained():
                assert request.total_tokens <= info.context_limit, "whoever submits it has checked that"
                return Prepared(submit, self._outputs.beginning(request, submit.output))
        except RequestFailed as error:
            return Refused(submit, str(error), error.is_own_fault)

    def check_adapter(self, adapter: Adapter) -> Checked:
        return self._adapters.check(adapter)

    def load_adapter(self, checked: Checked) -> Iterator[AdapterNews]:
        return self._adapters.load(checked)

    def handle(self, command: Work) -> None:
        super().handle(command)
        self._adapters.free()

    def is_worth_interrupting(self, command: Work | Recall) -> bool:
        return self._is_measuring or super().is_worth_interrupting(command)

    def save_cache(self, path: str) -> None:
        if not self._scheduler.kv_stats.cache_capacity_blocks:
            return  # what an earlier run has left there stays
        for request_id in self._outputs.ids:
            self._outputs.end(request_id, FinishReason.CANCELLED)
        self._backend.execute(self._scheduler.schedule())
        self._backend.export_cache(path, self._scheduler.cache_blocks)

    @property
    def _has_events(self) -> bool:
        return bool(self._events)

    @property
    def _everybody(self) -> tuple[str, ...]:
        return self._outputs.ids

    def _plan(self, sharing: Sharing) -> Step:
        # After a step that was thrown away for another model's newcomer comes a short one: it is not thrown
        # away too, and the next newcomer waits for no long one.
        is_repeated = self._timer.was_interrupted and self.work is Priority.BATCH
        return self._scheduler.schedule(beside_interactive=sharing.beside_interactive or is_repeated)

    def _members(self, planned: Step) -> Members:
        computed = self._scheduler.participants(planned)
        opened = dict.fromkeys([*self._opened, *self._scheduler.newcomers(planned)])
        self._opened = [s for s in opened if s.status is Status.RUNNING and s not in computed]
        ids = tuple(sequence.request.id for sequence in [*computed, *self._opened])
        return Members(ids, self._scheduler.predicted_ms(planned))

    def _compute(self, planned: Step) -> StepFigures | None:
        if not planned.verbs and not planned.spans:
            # A request whose output is forced as a whole ends without a step.
            return self._figures(planned, StepResult(), 0.0, 0.0, {}) if self._outputs.num_forced else None
        timer, predicted_ms = self._timer, self._scheduler.predicted_ms(planned)
        timer.begin(predicted_ms, may_interrupt=self._scheduler.may_interrupt(planned))
        result = self._backend.execute(planned)
        timer.end(is_interrupted=result.interrupted)
        participants = self._scheduler.participants(planned)
        self._note(planned, participants, result)
        for advance in self._scheduler.apply(planned, result, timer.elapsed_ms):
            self._outputs.advance(advance)
        parts = zip((one.request.client for one in participants), planned.spans, strict=True)
        computed = [(client, _num_computed(span, result)) for client, span in parts]
        spent_ms = shared_ms(computed, timer.cpu_ms())
        return self._figures(planned, result, predicted_ms, timer.elapsed_ms, spent_ms)

    def _note(self, step: Step, participants: Seq[Sequence], result: StepResult) -> None:
        """For those who watch. Call it before the step is applied."""
        started_s, elapsed_ms = self._timer.started_s, self._timer.elapsed_ms
        reasons = self._scheduler.reasons
        log_step(step, participants, reasons, result, started_s=started_s, elapsed_ms=elapsed_ms)
        if self._showing.is_on:
            self._showing.note(step, participants, self._scheduler.all_reasons(), result)

    def _done(self, planned: Step | None, figures: StepFigures | None) -> StepDone:
        if planned is not None:
            self._adapters.free()
        events = self._take_events()
        if planned is None:
            return StepDone(events=events, kv=self._scheduler.kv_stats)
        shown = self._showing.take(self._scheduler) if self._showing.is_on else None
        news = self._outward.news() if self._outward is not None else OutwardNews()
        return StepDone(
            events=events,
            kv=self._scheduler.kv_stats,
            figures=figures,
            forecast=news.forecast,
            prefixes=news.prefixes,
            shown=shown,
        )

    def _queue_state(self, slowdown: float) -> QueueState | None:
        if not self._scheduler.num_waiting:
            return None
        places = tuple(
            Place(o.sequence.request.id, o.position, slowdown * o.first_token_ms)
            for o in self._scheduler.outlook()
        )
        preempted = tuple(sequence.request.id for sequence in self._scheduler.preempted)
        return QueueState(places=places, preempted=preempted)

    def _figures(
        self,
        step: Step,
        result: StepResult,
        predicted_ms: float,
        elapsed_ms: float,
        spent_ms: dict[str, float],
    ) -> StepFigures:
        preemptions = self._scheduler.num_preemptions - self._preemptions_told
        self._preemptions_told += preemptions
        return StepFigures(
            sequences=len(step.spans),
            tokens=step.num_tokens,
            padding=result.padding,
            sampled=len(result.samples) + sum(map(len, result.further.values())),
            forced=self._outputs.take_forced(),
            drafted=sum(drafted.num_computed for drafted in result.drafted.values()),
            accepted=sum(drafted.num_accepted for drafted in result.drafted.values()),
            preemptions=preemptions,
            predicted_ms=predicted_ms,
            elapsed_ms=elapsed_ms,
            is_interrupted=result.interrupted,
            spent_ms=spent_ms,
        )

    def _handle(self, command: Work) -> None:
        match command:
            case Submit():
                self._handle(self.prepare(command))
            case Prepared(submit=submit) if not self._adapters.has(_adapter_of(submit)):
                self._events.append(_refusal(submit, "The adapter of this request is not loaded."))
            case Prepared(Submit(request=GenerationRequest() as request, output=output), beginning):
                self._outputs.accept(request, output, beginning, now_s=self._clock())
            case Refused(submit=submit, why=why, is_own_fault=is_own_fault):
                self._events.append(_refusal(submit, why, is_own_fault=is_own_fault))
            case Cancel(id=request_id):
                self._outputs.end(request_id, FinishReason.CANCELLED)
            case ClearCache():
                self._scheduler.clear_cache()
            case UnloadAdapter(key=key):
                self._adapters.leave(key)
            case ShowSteps() | HideSteps():
                self._showing.heard(command)
            case Checked():
                raise AssertionError("what loading brings is for the caller of `load_adapter`")

    def _abandon(self, command: Work, error: RequestFailed) -> None:
        submit = submit_of(command)
        request_id = submit.request.id if submit else command.id if isinstance(command, Cancel) else ""
        sequence = self._outputs.drop(request_id)
        if submit is not None:
            self._events.append(_refusal(submit, str(error), is_own_fault=error.is_own_fault))
        elif sequence is not None:
            self._events.append(failure(request_id, str(error), sequence.num_output))


class LoadedAdapters:
    """The adapters that requests may name, and those of them that go with their last request."""

    def __init__(self, scheduler: Scheduler, backend: Backend) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._loaded: dict[str, LoadedAdapter] = {}
        self._leaving: set[str] = set()

    def check(self, adapter: Adapter) -> Checked:
        """Look at an adapter's file. Any thread."""
        try:
            self._backend.check_adapter(adapter)
        except AdapterFailed as error:
            return Checked(adapter, str(error))
        except Exception as error:
            logger.exception("an adapter's file could not be read")
            return Checked(adapter, f"{adapter.path} cannot be read ({type(error).__name__}).")
        return Checked(adapter)

    def load(self, checked: Checked) -> Iterator[AdapterNews]:
        """Load an adapter; what happens is yielded when it happens. One that is loaded stays as it is."""
        key = checked.adapter.key
        if checked.why_not is not None:
            yield AdapterRefused(RefusedAdapter(key=key, reason=checked.why_not))
            return
        if key not in self._loaded:
            yield LoadingAdapter(key)
            try:
                self._loaded[key] = self._backend.load_adapter(checked.adapter)
            except AdapterFailed as error:
                yield AdapterRefused(RefusedAdapter(key=key, reason=str(error)))
                return
        self._leaving.discard(key)
        yield AdapterLoaded(self._loaded[key])

    def has(self, key: str | None) -> bool:
        """Whether a request may name it; None is the model as it is."""
        return key is None or (key in self._loaded and key not in self._leaving)

    def leave(self, key: str) -> None:
        """It goes as soon as no request uses it any more."""
        self._leaving.add(key)

    def free(self) -> None:
        """Free those that are to go and that no request uses any more."""
        for key in [key for key in self._leaving if not self._scheduler.uses_adapter(key)]:
            self._leaving.remove(key)
            if key in self._loaded:
                del self._loaded[key]
                self._backend.unload_adapter(key)
                self._scheduler.forget_adapter(key)


def _num_computed(span: Span, result: StepResult) -> int:
    """The tokens that the span has cost, those of its draft included."""
    drafted = result.drafted.get(span.slot)
    return len(span.tokens) + (drafted.num_computed if drafted is not None else 0)


def _adapter_of(submit: Submit) -> str | None:
    return submit.request.adapter if isinstance(submit.request, GenerationRequest) else None


def _refusal(submit: Submit, why: str, *, is_own_fault: bool = False) -> TokenEvent:
    return failure(submit.request.id, why, len(submit.output), is_own_fault=is_own_fault)
