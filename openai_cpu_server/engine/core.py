"""The engine's heart: commands in, one step at a time, events out."""

from __future__ import annotations

from collections.abc import Iterator

from openai_cpu_server.contract.messages import (
    Cancel,
    EngineOptions,
    Finish,
    FinishReason,
    StepDone,
    StepStarted,
    Submit,
    TokenEvent,
)
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.contract.step import Backend
from openai_cpu_server.engine.output import Output
from openai_cpu_server.scheduler.budget import TokenBudget
from openai_cpu_server.scheduler.kv_ledger import KVLedger
from openai_cpu_server.scheduler.policy import PriorityPolicy
from openai_cpu_server.scheduler.scheduler import Advance, Limits, Scheduler

_BLOCK_TOKENS = 16


class EngineCore:
    """Marries the scheduler and the backend. Every submitted request gets exactly one finishing event."""

    def __init__(self, scheduler: Scheduler, backend: Backend) -> None:
        self._scheduler = scheduler
        self._backend = backend
        self._outputs: dict[str, Output] = {}
        self._announced: tuple[str, ...] = ()
        self._events: list[TokenEvent] = []
        """Of the step being built."""

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._events)

    def handle(self, command: Submit | Cancel) -> None:
        match command:
            case Submit(request=request, output=output):
                self._submit(request, output)
            case Cancel(id=request_id):
                self._end(request_id, FinishReason.CANCELLED)

    def step(self) -> Iterator[StepStarted | StepDone]:
        """Compute one step; what happens is yielded when it happens."""
        step = self._scheduler.schedule()
        yield from self._announce(self._scheduler.participants(step))
        if step.verbs or step.spans:
            result = self._backend.execute(step)
            for advance in self._scheduler.apply(step, result):
                self._advance(advance)
        events, self._events = tuple(self._events), []
        yield StepDone(events=events, kv_tokens_used=self._scheduler.kv_tokens_used)

    def _announce(self, ids: tuple[str, ...]) -> Iterator[StepStarted]:
        if ids != self._announced:
            self._announced = ids
            yield StepStarted(ids=ids)

    def _submit(self, request: GenerationRequest, output: tuple[int, ...]) -> None:
        limit = self._backend.info.context_limit
        if request.total_tokens > limit:
            self._events.append(_refusal(request, f"needs {request.total_tokens} tokens of {limit}"))
            return
        sequence = self._scheduler.submit(request, output)
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


def build_core(options: EngineOptions, backend: Backend) -> EngineCore:
    info = backend.info
    scheduler = Scheduler(
        limits=Limits(info.max_seqs, info.max_step_tokens, info.max_step_outputs),
        ledger=KVLedger(info.kv_tokens // _BLOCK_TOKENS, _BLOCK_TOKENS),
        budget=TokenBudget(decoding=options.step_tokens, idle=options.prefill_tokens),
        policy=PriorityPolicy(),
    )
    return EngineCore(scheduler, backend)
