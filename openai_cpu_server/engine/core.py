"""The engine's heart: commands in, one step at a time, events out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from openai_cpu_server.contract.cost import CostCurve
from openai_cpu_server.contract.messages import (
    Cancel,
    ClearCache,
    EngineOptions,
    Finish,
    FinishReason,
    Place,
    QueueState,
    StepDone,
    StepStarted,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Backend, Drop, Step, StepResult
from openai_cpu_server.engine.output import Output
from openai_cpu_server.scheduler.compose import StepOptions
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.policy import POLICIES
from openai_cpu_server.scheduler.prefix_cache import BLOCK_TOKENS, PrefixCache
from openai_cpu_server.scheduler.scheduler import Advance, Limits, Scheduler

_POOL_BLOCK_TOKENS = 16
_QUEUE_NEWS_S = 0.5
_NEVER = float("-inf")

Work = Submit | Cancel | ClearCache
"""Commands that the core handles."""


class EngineCore:
    """Marries the scheduler and the backend. Every submitted request gets exactly one finishing event."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        *,
        preempt_threshold_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._preempt_threshold_s = preempt_threshold_s
        self._clock = clock
        self._outputs: dict[str, Output] = {}
        self._announced: tuple[str, ...] = ()
        self._events: list[TokenEvent] = []
        """Of the step being built."""
        self._interruptible_until = _NEVER
        """Read by the reader thread while a step runs."""
        self._was_interrupted = False
        self._queue_told_at = _NEVER

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._events)

    def handle(self, command: Work) -> None:
        match command:
            case Submit(request=request, output=output):
                self._submit(request, output)
            case Cancel(id=request_id):
                self._end(request_id, FinishReason.CANCELLED)
            case ClearCache():
                self._scheduler.clear_cache()

    def is_worth_interrupting(self, command: Work) -> bool:
        """Whether the running step should be thrown away for this command. Any thread."""
        if not isinstance(command, Submit) or command.request.priority is not Priority.INTERACTIVE:
            return False
        return self._clock() < self._interruptible_until

    def step(self) -> Iterator[StepStarted | StepDone | QueueState]:
        """Compute one step; what happens is yielded when it happens."""
        step = self._scheduler.schedule()
        yield from self._announce(step)
        if step.verbs or step.spans:
            self._compute(step)
        events, self._events = tuple(self._events), []
        yield StepDone(events=events, kv=self._scheduler.kv_stats)
        yield from self._queue_news()

    def save_cache(self, path: str) -> None:
        """End everything and write the prefix cache, if there is one, to a file. Raises OSError."""
        if not self._scheduler.kv_stats.cache_capacity_blocks:
            return  # what an earlier run has left there stays
        for request_id in list(self._outputs):
            self._end(request_id, FinishReason.CANCELLED)
        self._backend.execute(self._scheduler.schedule())
        self._backend.export_cache(path, self._scheduler.cache_blocks)

    def _compute(self, step: Step) -> None:
        started = self._clock()
        self._interruptible_until = self._until(step, started)
        result = self._backend.execute(step)
        self._interruptible_until = _NEVER
        self._was_interrupted = result.interrupted
        self._apply(step, result, 1000 * (self._clock() - started))

    def _until(self, step: Step, started: float) -> float:
        """Never twice in a row: at most half of the work is wasted."""
        if self._was_interrupted or not self._scheduler.may_interrupt(step):
            return _NEVER
        return started + self._scheduler.predicted_ms(step) / 1000 - self._preempt_threshold_s

    def _apply(self, step: Step, result: StepResult, elapsed_ms: float) -> None:
        for advance in self._scheduler.apply(step, result, elapsed_ms):
            self._advance(advance)

    def _announce(self, step: Step) -> Iterator[StepStarted]:
        ids = tuple(sequence.request.id for sequence in self._scheduler.participants(step))
        if ids != self._announced:
            self._announced = ids
            yield StepStarted(ids=ids)

    def _queue_news(self) -> Iterator[QueueState]:
        if self._scheduler.num_waiting and self._clock() - self._queue_told_at >= _QUEUE_NEWS_S:
            self._queue_told_at = self._clock()
            outlooks = self._scheduler.outlook()
            places = tuple(Place(o.sequence.request.id, o.position, o.first_token_ms) for o in outlooks)
            yield QueueState(places=places)

    def _submit(self, request: GenerationRequest, output: tuple[int, ...]) -> None:
        limit = self._backend.info.context_limit
        if request.total_tokens > limit:
            self._events.append(_refusal(request, f"needs {request.total_tokens} tokens of {limit}"))
            return
        sequence = self._scheduler.submit(request, output, now_s=self._clock())
        end_tokens = self._backend.info.end_tokens
        self._outputs[request.id] = Output(sequence, piece=self._backend.piece, end_tokens=end_tokens)
        if output and sequence.remaining <= 0:
            self._end(request.id, FinishReason.LENGTH)  # only its last event was lost in the crash

    def _end(self, request_id: str, reason: FinishReason) -> None:
        """End a request that has not ended by itself already."""
        sequence = self._scheduler.get(request_id)
        if sequence is not None:
            self._scheduler.finish(sequence)
            self._events.append(self._outputs.pop(request_id).end(reason))

    def _advance(self, advance: Advance) -> None:
        request_id = advance.sequence.request.id
        event = self._outputs[request_id].advance(advance)
        if event is None:
            return
        self._events.append(event)
        if event.finish is not None:
            del self._outputs[request_id]
            self._scheduler.finish(advance.sequence)


def _refusal(request: GenerationRequest, why: str) -> TokenEvent:
    finish = Finish(reason=FinishReason.ERROR, output_tokens=0, error=why)
    return TokenEvent(id=request.id, finish=finish)


def build_core(options: EngineOptions, backend: Backend, curve: CostCurve | None) -> EngineCore:
    """A core with its scheduler, its saved prefix cache, and its pinned prompts submitted."""
    info = backend.info
    shares = info.can_share and options.prefix_sharing
    cache = _cache(options, backend) if shares else PrefixCache(0)
    scheduler = Scheduler(
        limits=Limits(info.max_seqs, info.max_step_tokens, info.max_step_outputs, shares),
        ledger=KVLedger(info.kv_tokens // _POOL_BLOCK_TOKENS, _POOL_BLOCK_TOKENS),
        cache=cache,
        cost=CostModel(curve) if curve else CostModel.guess(info.num_parameters),
        options=StepOptions(
            interactive_step_ms=options.interactive_step_ms,
            batch_step_ms=options.batch_step_ms,
            batch_floor=options.batch_floor,
            fills_tiles=options.tile_filling,
            mixes=options.mixed_steps,
        ),
        policy=POLICIES[options.policy](),
    )
    core = EngineCore(scheduler, backend, preempt_threshold_s=options.preempt_threshold_ms / 1000)
    for number, tokens in enumerate(options.pinned_prompts):
        core.handle(Submit(request=_pin(number, tokens, options.pinned_namespace)))
    return core


def _cache(options: EngineOptions, backend: Backend) -> PrefixCache:
    info = backend.info
    block_bytes = BLOCK_TOKENS * info.kv_bytes_per_token
    cache = PrefixCache(options.cache_bytes // block_bytes)
    if options.cache_file is not None and cache.capacity:
        refused = cache.adopt(backend.import_cache(options.cache_file))
        backend.execute(Step(verbs=tuple(Drop(number) for number in refused)))
    return cache


def _pin(number: int, tokens: tuple[int, ...], namespace: str) -> GenerationRequest:
    return GenerationRequest(
        id=f"pinned/{number}",
        tokens=tokens,
        max_tokens=0,
        sampling=Sampling(seed=0),
        cache_namespace=namespace,
        pin=True,
    )
