"""Engine core for models that generate."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.engine import RequestFailed, contained
from openai_cpu_server.contract.messages import HideSteps, ShowSteps
from openai_cpu_server.contract.model_info import Adapter, CostCurve, LoadedAdapter, ModelInfo
from openai_cpu_server.contract.replica import BLOCK_TOKENS, Forecast, PrefixNews
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import (
    NOTHING_DRAFTED,
    POOL_BLOCK_TOKENS,
    Backend,
    CacheFileLimit,
    Drop,
    Span,
    Step,
    StepResult,
    StepTrace,
    TracePart,
)
from openai_cpu_server.engine.base import (
    CheckedAdapter,
    Core,
    EngineWork,
    PreparedRequest,
    failure,
    scheduling_on,
    shared_ms,
    step_of,
    submit_of,
)
from openai_cpu_server.engine.output import LiveOutputs
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.scheduler.compose import StepOptions
from openai_cpu_server.scheduler.cost_model import CostModel, ThreadCosts
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.plan import StepReason
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal, SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import POLICIES, Sequence, SequenceStatus
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter, ModelDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator

logger = logging.getLogger(__name__)

Measure = Callable[[Callable[[], bool]], CostCurve | None]
"""Times steps, or returns None if its argument reports other work; it can continue later."""


class EngineCore(Core[Step]):
    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        costs: ThreadCosts,
        *,
        preempt_threshold_ms: float,
        measure: Measure | None = None,
        journal: PrefixJournal | None = None,
        cache_file: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`measure`: set while the cost of steps is an estimate. `journal`: set if a router needs it."""
        super().__init__(backend.threads, preempt_threshold_ms=preempt_threshold_ms, clock=clock)
        self._forecasts = ForecastSource(scheduler, journal, clock) if journal is not None else None
        self._measure = measure
        self._is_measuring = False
        """Read by the reader thread."""
        self._scheduler = scheduler
        self._costs = costs
        self._backend = backend
        self._cache_file = cache_file
        self._adapters = LoadedAdapters(scheduler, backend)
        self._slowdown = 1.0
        self._outputs = LiveOutputs(
            scheduler.sequences, backend, emit=self._events.extend, first_token_ms=self._first_token_ms
        )
        self._planned = Step()
        self._opened: list[Sequence] = []
        """Sequences in no step since they got a slot."""
        self._preemptions_reported = 0
        self._drafting: tuple[messages.DraftingState, ...] = ()
        self._tracer = StepTracer(clock)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._events) or self._tracer.is_pending

    @property
    def work(self) -> Priority | None:
        return self._scheduler.sequences.best_priority

    @property
    def is_guessing(self) -> bool:
        return self._measure is not None

    def calibrate(self, is_wanted: Callable[[], bool]) -> None:
        assert not self.has_work
        assert self._measure is not None
        self._is_measuring = True
        self._cores.use_all()
        self._costs.use(self._cores.count)
        curve = self._measure(is_wanted)
        self._is_measuring = False
        if curve is not None:
            self._costs.measured(CostModel(curve))
            self._measure = None

    def prepare(self, submit: messages.Submit) -> PreparedRequest:
        request = submit.request
        if not isinstance(request, GenerationRequest):
            failure = RequestFailed("does not fit a model that generates text")
            return PreparedRequest(submit, failure=failure)
        info = self._backend.info
        if (name := request.wrong_number(vocab_size=info.vocab_size)) is not None:
            failure = RequestFailed(f"has numbers in '{name}' that are out of bounds")
            return PreparedRequest(submit, failure=failure)
        try:
            with contained():
                assert request.total_tokens <= info.context_limit, "the client has checked that"
                return PreparedRequest(submit, self._outputs.beginning(request, submit.output))
        except RequestFailed as error:
            return PreparedRequest(submit, failure=error)

    def check_adapter(self, adapter: Adapter) -> CheckedAdapter:
        return self._adapters.check(adapter)

    def load_adapter(self, checked: CheckedAdapter) -> Iterator[messages.AdapterNews]:
        return self._adapters.load(checked)

    def handle(self, command: EngineWork) -> None:
        super().handle(command)
        self._adapters.free()

    def is_worth_interrupting(self, command: EngineWork | messages.ShortenCpuToken) -> bool:
        return self._is_measuring or super().is_worth_interrupting(command)

    def save_cache(self, path: str, limit: CacheFileLimit | None = None) -> None:
        if not self._scheduler.kv_stats.cache_capacity_bytes:
            return  # what an earlier run has left there stays
        for request_id in self._outputs.ids:
            self._outputs.end(request_id, messages.FinishReason.CANCELLED)
        # A step that was planned when the connection broke has verbs that the books count as done.
        self._backend.execute(Step(verbs=(*self._planned.verbs, *self._scheduler.schedule().verbs)))
        self._backend.export_cache(path, self._scheduler.cache_blocks, limit)

    @property
    def _all_ids(self) -> tuple[str, ...]:
        return self._outputs.ids

    def _first_token_ms(self, sequence: Sequence) -> float:
        slowdown = self._slowdown * self._timer.lateness
        return self._scheduler.eta_estimator.first_token_ms(sequence, slowdown)

    def _plan(self, sharing: messages.Sharing) -> Step:
        self._slowdown = sharing.slowdown
        # After a step that was thrown away for another model's newcomer comes a short one: it is not thrown
        # away too, and the next newcomer waits for no long one.
        is_repeated = self._timer.was_interrupted and self.work is Priority.BATCH
        beside_interactive = sharing.beside_interactive or is_repeated
        self._planned = self._scheduler.schedule(
            beside_interactive=beside_interactive, unready=self._backend.unready_slots()
        )
        return self._planned

    def _members(self, planned: Step) -> messages.StepStarted:
        computed = (*self._scheduler.participants(planned), *self._scheduler.encodes_for(planned))
        opened = dict.fromkeys([*self._opened, *self._scheduler.newcomers(planned)])
        self._opened = [s for s in opened if s.status is SequenceStatus.RUNNING and s not in computed]
        ids = (sequence.request.id for sequence in [*computed, *self._opened])
        return step_of(ids, self._scheduler.predicted_ms(planned))

    def _compute(self, planned: Step) -> messages.StepFigures | None:
        if not planned.verbs and not planned.spans and planned.encode is None:
            # A request whose output is forced as a whole ends without a step.
            return self._figures(planned, StepResult(), 0.0, 0.0, {}) if self._outputs.num_forced else None
        timer, predicted_ms = self._timer, self._scheduler.predicted_ms(planned)
        plan, threads = self._scheduler.plan, self._cores.count
        encoding_ms = planned.encode.ms if planned.encode is not None else 0.0
        alone_ms = (predicted_ms - encoding_ms) / self._costs.slowdown(plan.size, plan.attended)
        if timer.begin(predicted_ms, may_interrupt=planned.may_be_interrupted):
            self._backend.interrupt()
        result = self._backend.execute(planned)
        self._planned = Step()
        timer.end(is_interrupted=result.interrupted)
        participants = self._scheduler.participants(planned)
        encoders = self._scheduler.encodes_for(planned)
        self._note(planned, participants, encoders, result)
        own_ms = timer.elapsed_ms - result.encoding_ms
        teaches = result.interrupted or self._cores.computed(own_ms, alone_ms)
        for advance in self._scheduler.apply(planned, result, timer.elapsed_ms if teaches else None):
            self._outputs.advance(advance)
        self._costs.use(self._cores.count)
        computed = [
            (
                sequence.request.client,
                len(span.tokens) + result.drafted.get(span.slot, NOTHING_DRAFTED).num_computed,
            )
            for sequence, span in zip(participants, planned.spans, strict=True)
        ]
        encoding_share = result.encoding_ms / timer.elapsed_ms if timer.elapsed_ms else 0.0
        cpu_ms = timer.cpu_ms()
        spent_ms = shared_ms(computed, cpu_ms * (1 - encoding_share))
        encoded_kind = ""
        if planned.encode is not None:
            (sequence,) = encoders
            client = sequence.request.client
            encoded_kind = sequence.request.item_of(planned.encode.placeholder).kind
            spent_ms[client] = spent_ms.get(client, 0.0) + cpu_ms * encoding_share
        figures = self._figures(planned, result, predicted_ms, timer.elapsed_ms, spent_ms)
        return msgspec.structs.replace(
            figures, encodes=encoded_kind, threads=threads, is_throttled=self._cores.is_throttled
        )

    def _note(
        self, step: Step, participants: Seq[Sequence], encoders: Seq[Sequence], result: StepResult
    ) -> None:
        """Called before the step is applied."""
        started_s, elapsed_ms = self._timer.started_s, self._timer.elapsed_ms
        reasons = self._scheduler.plan.reasons
        log_step(step, participants, reasons, result, started_s=started_s, elapsed_ms=elapsed_ms)
        if self._tracer.is_on:
            self._tracer.note(step, participants, encoders, self._scheduler.plan.reasons(), result)

    def _done(self, planned: Step | None, figures: messages.StepFigures | None) -> messages.StepDone:
        if planned is not None:
            self._adapters.free()
        events = self._take_events()
        if planned is None:
            return messages.StepDone(events=events, kv=self._scheduler.kv_stats)
        shown = self._tracer.take(self._scheduler) if self._tracer.is_on else None
        forecast, prefixes = self._forecasts.news() if self._forecasts is not None else (None, None)
        drafting = self._scheduler.drafting
        news, self._drafting = None if drafting == self._drafting else drafting, drafting
        return messages.StepDone(
            events=events,
            kv=self._scheduler.kv_stats,
            figures=figures,
            drafting=news,
            forecast=forecast,
            prefixes=prefixes,
            shown=shown,
        )

    def _queue_state(self, slowdown: float) -> messages.QueueState | None:
        if not self._scheduler.sequences.num_waiting:
            return None
        places = tuple(self._scheduler.eta_estimator.queue_places(slowdown))
        preempted = tuple(sequence.request.id for sequence in self._scheduler.sequences.preempted)
        return messages.QueueState(places=places, preempted=preempted)

    def _figures(
        self,
        step: Step,
        result: StepResult,
        predicted_ms: float,
        elapsed_ms: float,
        spent_ms: dict[str, float],
    ) -> messages.StepFigures:
        preemptions = self._scheduler.num_preemptions - self._preemptions_reported
        self._preemptions_reported += preemptions
        return messages.StepFigures(
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
            encoding_ms=result.encoding_ms,
            encoded=int(result.encoded),
            is_interrupted=result.interrupted,
            spent_ms=spent_ms,
        )

    def _handle(self, command: EngineWork) -> None:
        match command:
            case messages.Submit():
                self._handle(self.prepare(command))
            case PreparedRequest(submit=submit, failure=RequestFailed() as error):
                self._outputs.end(submit.request.id, messages.FinishReason.CANCELLED)
                self._events.append(_refusal(submit, str(error), is_own_fault=error.is_own_fault))
            case PreparedRequest(submit=submit) if not self._adapters.has(submit.request.adapter):
                self._outputs.end(submit.request.id, messages.FinishReason.CANCELLED)
                self._events.append(_refusal(submit, "The adapter of this request is not loaded."))
            case PreparedRequest(
                messages.Submit(request=GenerationRequest() as request, output=output), beginning
            ):
                self._outputs.accept(request, output, beginning, now_s=self._clock())
            case messages.CancelRequest(id=request_id, reason=reason):
                self._outputs.end(request_id, reason)
            case messages.ClearCache():
                self._clear_cache()
            case messages.UnloadAdapter(key=key):
                self._adapters.leave(key)
            case messages.ShowSteps() | messages.HideSteps():
                self._tracer.handle(command)
            case CheckedAdapter():
                raise AssertionError("what loading brings is for the caller of `load_adapter`")

    def _clear_cache(self) -> None:
        self._scheduler.clear_cache()
        if self._cache_file is not None:  # else the cache would return at the next start
            with contextlib.suppress(OSError):
                Path(self._cache_file).unlink()

    def _abandon(self, command: EngineWork, error: RequestFailed) -> None:
        submit = submit_of(command)
        request_id = (
            submit.request.id if submit else command.id if isinstance(command, messages.CancelRequest) else ""
        )
        sequence = self._outputs.drop(request_id)
        if submit is not None:
            self._events.append(_refusal(submit, str(error), is_own_fault=error.is_own_fault))
        elif sequence is not None:
            self._events.append(failure(request_id, str(error), sequence.num_output))


@dataclass(eq=False)
class LoadedAdapters:
    scheduler: Scheduler
    backend: Backend
    _loaded: dict[str, LoadedAdapter] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)

    def check(self, adapter: Adapter) -> CheckedAdapter:
        try:
            self.backend.check_adapter(adapter)
        except AdapterFailed as error:
            return CheckedAdapter(adapter, str(error))
        except Exception as error:
            logger.exception("an adapter's file could not be read")
            return CheckedAdapter(adapter, f"{adapter.path} cannot be read ({type(error).__name__}).")
        return CheckedAdapter(adapter)

    def load(self, checked: CheckedAdapter) -> Iterator[messages.AdapterNews]:
        key = checked.adapter.key
        if checked.why_not is not None:
            yield messages.AdapterRefused(key, checked.why_not)
            return
        if key not in self._loaded:
            yield messages.LoadingAdapter(key)
            try:
                self._loaded[key] = self.backend.load_adapter(checked.adapter)
            except AdapterFailed as error:
                yield messages.AdapterRefused(key, str(error))
                return
        self._leaving.discard(key)
        yield messages.AdapterLoaded(self._loaded[key])

    def has(self, key: str | None) -> bool:
        return key is None or (key in self._loaded and key not in self._leaving)

    def leave(self, key: str) -> None:
        self._leaving.add(key)

    def free(self) -> None:
        for key in [key for key in self._leaving if not self.scheduler.sequences.uses_adapter(key)]:
            self._leaving.remove(key)
            if key in self._loaded:
                del self._loaded[key]
                self.backend.unload_adapter(key)
                self.scheduler.forget_adapter(key)


def _refusal(submit: messages.Submit, why: str, *, is_own_fault: bool = False) -> messages.TokenEvent:
    return failure(submit.request.id, why, len(submit.output), is_own_fault=is_own_fault)


_NO_REASONS: Mapping[StepReason, int] = {}


def log_step(
    step: Step,
    participants: Seq[Sequence],
    reasons: Callable[[], Mapping[Sequence, Mapping[StepReason, int]]],
    result: StepResult,
    *,
    started_s: float,
    elapsed_ms: float,
) -> None:
    """Log a step before it is applied. `participants`: in the order of the spans."""
    if not logger.isEnabledFor(logging.DEBUG) or not step.spans:
        return
    why = reasons()
    spans = [
        {
            "id": sequence.request.id,
            "priority": sequence.request.priority.label,
            "tokens": span.num_tokens,
            "decodes": sequence.is_decoding,
            "why": {reason.value: num for reason, num in why.get(sequence, _NO_REASONS).items()},
        }
        for sequence, span in zip(participants, step.spans, strict=True)
    ]
    fields = {
        "started_s": started_s,
        "elapsed_ms": elapsed_ms,
        "padding": result.padding,
        "interrupted": result.interrupted,
        "adapter": step.adapter,
        "spans": spans,
    }
    logger.debug(
        "step of %.1f ms: %d tokens of %d sequences, %d padding",
        elapsed_ms,
        step.num_tokens,
        len(spans),
        result.padding,
        extra={"fields": fields},
    )


_STATE_S = 0.5
"""Minimum time between reports of the memory, which take a fraction of a millisecond."""
_LONG_AGO = float("-inf")


@dataclass(eq=False)
class StepTracer:
    """`note` and `take` belong between `ShowSteps` and `HideSteps`."""

    clock: Callable[[], float]
    is_on: bool = False
    _state_sent_s: float = _LONG_AGO
    _parts: tuple[TracePart, ...] = ()
    _adapter: str | None = None

    @property
    def is_pending(self) -> bool:
        """True for a new observer."""
        return self.is_on and self._state_sent_s == _LONG_AGO

    def handle(self, command: ShowSteps | HideSteps) -> None:
        self.is_on, self._parts, self._state_sent_s = isinstance(command, ShowSteps), (), _LONG_AGO

    def note(
        self,
        step: Step,
        participants: Seq[Sequence],
        encoders: Seq[Sequence],
        reasons: Mapping[Sequence, Mapping[StepReason, int]],
        result: StepResult,
    ) -> None:
        self._adapter = step.adapter
        parts = [
            _part(sequence, span, reasons.get(sequence, _NO_REASONS), result)
            for sequence, span in zip(participants, step.spans, strict=True)
        ]
        if result.encoding_ms:
            parts += [_encoding(sequence, step, result) for sequence in encoders]
        self._parts = tuple(parts)

    def take(self, scheduler: Scheduler) -> StepTrace | None:
        parts, self._parts = self._parts, ()
        is_due = self.clock() - self._state_sent_s >= _STATE_S or not scheduler.has_work
        if is_due:
            self._state_sent_s = self.clock()
        elif not parts:
            return None
        return StepTrace(
            parts=parts,
            adapter=self._adapter if parts else None,
            state=scheduler.trace_state() if is_due else None,
        )


def _part(sequence: Sequence, span: Span, reasons: Mapping[StepReason, int], result: StepResult) -> TracePart:
    drafted = result.drafted.get(span.slot, NOTHING_DRAFTED)
    forced = reasons.get(StepReason.FORCED, 0)
    others = len(span.tokens) - forced
    request, is_decoding = sequence.request, sequence.is_decoding
    first = result.samples.get(span.slot)
    samples = ((first,) if first is not None else ()) + result.further.get(span.slot, ())
    return TracePart(
        id=request.id,
        client=request.client,
        priority=request.priority,
        why=max(reasons, key=reasons.__getitem__).value if reasons else "",
        prompt=0 if is_decoding else others,
        decode=others if is_decoding else 0,
        forced=forced,
        draft=drafted.num_computed,
        accepted=drafted.num_accepted,
        output=sum(1 + len(sample.forced) for sample in samples),
    )


def _encoding(sequence: Sequence, step: Step, result: StepResult) -> TracePart:
    assert step.encode is not None
    request = sequence.request
    kind = request.item_of(step.encode.placeholder).kind
    return TracePart(request.id, request.client, request.priority, why=kind, encoding_ms=result.encoding_ms)


_FORECAST_S = 0.1
"""Minimum time between forecasts, which take up to a millisecond: at most 1 % of a core."""


@dataclass(eq=False)
class ForecastSource:
    """Forecasts, at most ten a second, and always one at the end of the work."""

    scheduler: Scheduler
    journal: PrefixJournal
    clock: Callable[[], float]
    _sent_s: float = _LONG_AGO

    def news(self) -> tuple[Forecast | None, PrefixNews | None]:
        now_s = self.clock()
        if self.scheduler.has_work and now_s - self._sent_s < _FORECAST_S:
            return None, None
        self._sent_s = now_s
        return self.scheduler.eta_estimator.forecast(), self.journal.take()


def build_core(
    options: messages.EngineOptions,
    backend: Backend,
    curve: CostCurve | None,
    measure: Measure | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> EngineCore:
    """Return a core with its saved and pinned prefixes. `curve`: None to `measure` costs when there is
    time."""
    info = backend.info
    options = msgspec.structs.replace(options, scheduling=scheduling_on(options.scheduling, info))
    reuses = options.experiment.prefix_sharing
    journal = PrefixJournal() if options.reports_forecast else None
    cache = _cache(options, backend, journal) if reuses else SavedPrefixes(0, state_bytes=info.state_bytes)
    full = CostModel(curve) if curve else CostModel.guess(info.num_parameters)
    costs = ThreadCosts(full, threads=backend.threads.most)
    scheduler = Scheduler(
        limits=StepLimits(
            info.max_seqs, info.max_step_tokens, info.max_step_outputs, info.state_tokens, reuses
        ),
        ledger=KVLedger(info.kv_tokens // POOL_BLOCK_TOKENS, POOL_BLOCK_TOKENS),
        cache=cache,
        cost=costs,
        options=step_options(options),
        policy=POLICIES[options.scheduling.policy](),
        speculator=_speculator(options, info),
    )
    core = EngineCore(
        scheduler,
        backend,
        costs,
        preempt_threshold_ms=options.scheduling.preempt_threshold_ms,
        measure=measure if curve is None else None,
        journal=journal,
        cache_file=options.cache_file,
        clock=clock,
    )
    for number, tokens in enumerate(options.pinned_prompts):
        pinned = GenerationRequest(
            id=f"pinned/{number}",
            tokens=tokens,
            max_tokens=0,
            sampling=Sampling(seed=0),
            cache_namespace=options.pinned_namespace,
            pin=True,
        )
        core.handle(messages.Submit(request=pinned))
    return core


def step_options(options: messages.EngineOptions) -> StepOptions:
    return StepOptions(**msgspec.structs.asdict(options.scheduling), experiment=options.experiment)


def _speculator(options: messages.EngineOptions, info: ModelInfo) -> Speculator | None:
    """Wrong drafts need a memory that can take them back."""
    if options.speculation == "off" or info.max_draft == 0:
        return None
    drafter = None
    if info.draft_cost is not None:
        reads_along = info.draft_head is not None
        drafter = ModelDrafter(info.draft_cost, reads_along=reads_along, most=info.draft_most)
    return Speculator(
        LookupDrafter(info.end_tokens),
        drafter,
        max_tokens=options.draft_max if info.max_draft is None else min(options.draft_max, info.max_draft),
        always=options.experiment.always_drafts,
    )


def _cache(options: messages.EngineOptions, backend: Backend, journal: PrefixJournal | None) -> SavedPrefixes:
    info = backend.info
    cache = SavedPrefixes(
        options.cache_bytes,
        block_bytes=BLOCK_TOKENS * info.kv_bytes_per_token,
        state_bytes=info.state_bytes,
        journal=journal,
    )
    if options.cache_file is not None and options.cache_bytes:
        refused = cache.adopt(backend.import_cache(options.cache_file))
        backend.execute(Step(verbs=tuple(Drop(number) for number in refused)))
    return cache
