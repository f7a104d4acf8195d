from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.embedding import EmbedBackend, Embedded, EmbedRequest
from openai_cpu_server.contract.engine import RequestFailed
from openai_cpu_server.contract.messages import Scheduling
from openai_cpu_server.contract.model_info import Adapter
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import CacheFileLimit, StepTrace, TracePart
from openai_cpu_server.engine import base
from openai_cpu_server.errors import EmbeddingFailed
from openai_cpu_server.scheduler.cost_model import CostModel, ThreadCosts
from openai_cpu_server.scheduler.embed_queue import EmbedCapacity, EmbedPart, EmbedQueue

_ENOUGH_TOKENS = 256
"""Larger steps are not faster, and delay other work. MiniLM, inputs of 32 tokens, 1,000 tokens/s at 64, 256,
512, 1,024, 2,048: ours 9.4, 11.5, 11.4, 11.1, 11.0; ggml's 7.8, 10.2, 9.9, 9.1, 6.5."""
_MOST_PLACES = 100


class EmbedCore(base.Core[list[EmbedPart]]):
    """Costs are learned while serving, in some dozens of steps."""

    def __init__(
        self,
        queue: EmbedQueue,
        backend: EmbedBackend,
        cost: ThreadCosts,
        options: Scheduling,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        preempt_threshold_ms = options.preempt_threshold_ms
        super().__init__(backend.threads, preempt_threshold_ms=preempt_threshold_ms, clock=clock)
        self._queue = queue
        self._backend = backend
        self._cost = cost
        self._options = options
        self._is_shown = False

    @property
    def has_work(self) -> bool:
        return len(self._queue) > 0 or self._has_events

    @property
    def work(self) -> Priority | None:
        return self._queue.best_priority

    def prepare(self, submit: messages.Submit) -> base.PreparedRequest:
        return base.PreparedRequest(submit, failure=RequestFailed(_WRONG_MODEL))

    def check_adapter(self, adapter: Adapter) -> base.CheckedAdapter:
        return base.CheckedAdapter(adapter, "Adapters are for models that generate text; this one does not.")

    def load_adapter(self, checked: base.CheckedAdapter) -> Iterator[messages.AdapterNews]:
        yield messages.AdapterRefused(checked.adapter.key, checked.why_not or "")

    def save_cache(self, path: str, limit: CacheFileLimit | None = None) -> None: ...

    # -- a step ------------------------------------------------------------------------------------------

    @property
    def _all_ids(self) -> tuple[str, ...]:
        return self._queue.ids

    def _plan(self, sharing: messages.Sharing) -> list[EmbedPart]:
        info, options = self._backend.info, self._options
        # After a step that was thrown away a short one: it is not thrown away too.
        is_short = sharing.beside_interactive or self._timer.was_interrupted
        interactive = is_short or self._queue.best_priority is Priority.INTERACTIVE
        budget_ms = options.batch_beside_ms if interactive else options.batch_stall_ms
        sizes = range(2, min(_ENOUGH_TOKENS, info.max_step_tokens) + 1)
        budget_tokens = 1 + bisect_right(sizes, budget_ms, key=self._cost.predict_ms)
        return self._queue.compose(EmbedCapacity(info.max_seqs, info.max_step_tokens, budget_tokens))

    def _members(self, planned: list[EmbedPart]) -> messages.StepStarted:
        inputs = _inputs(planned)
        expected_ms = self._cost.predict_ms(*_work_of(inputs)) if inputs else 0.0
        return base.step_of((part.pending.request.id for part in planned), expected_ms)

    def _compute(self, planned: list[EmbedPart]) -> messages.StepFigures | None:
        if not planned:
            return None
        inputs = _inputs(planned)
        timer, (tokens, pairs) = self._timer, _work_of(inputs)
        predicted_ms, threads = self._cost.predict_ms(tokens, pairs), self._cores.count
        alone_ms = predicted_ms / self._cost.slowdown(tokens, pairs)
        may_interrupt = all(part.pending.request.priority is Priority.BATCH for part in planned)
        if timer.begin(predicted_ms, may_interrupt=may_interrupt):
            self._backend.interrupt()
        timer.end(is_interrupted=not self._embed(planned))
        if not timer.was_interrupted and self._cores.computed(timer.elapsed_ms, alone_ms):
            self._cost.refine(tokens, pairs, timer.elapsed_ms)
        self._cost.use(self._cores.count)
        clients = ((part.pending.request.client, sum(map(len, part.inputs))) for part in planned)
        return messages.StepFigures(
            sequences=len(inputs),
            tokens=tokens,
            predicted_ms=predicted_ms,
            elapsed_ms=timer.elapsed_ms,
            threads=threads,
            is_interrupted=timer.was_interrupted,
            spent_ms=base.shared_ms(clients, timer.cpu_ms()),
        )

    def _embed(self, parts: list[EmbedPart]) -> bool:
        """Return False if interrupted. Parts that fail together are computed separately, so that only broken
        ones fail."""
        for part in parts:
            part.pending.has_run = True
        try:
            result = self._backend.embed(_inputs(parts))
        except EmbeddingFailed as error:
            if len(parts) == 1:
                request = parts[0].pending.request
                self._queue.remove(request.id)
                self._embedded.append(_failed(request, str(error)))
                return True
            return all(self._embed([part]) for part in parts)
        if result.interrupted:
            return False
        row_bytes, start = 4 * self._backend.info.embedding_size, 0
        for part in parts:
            end = start + part.count * row_bytes
            rows, request_id = result.vectors[start:end], part.pending.request.id
            self._embedded.append(Embedded(id=request_id, first=part.first, count=part.count, vectors=rows))
            start = end
        assert start == len(result.vectors), "there are as many rows as inputs"
        self._queue.computed(parts)
        return True

    def _done(
        self, planned: list[EmbedPart] | None, figures: messages.StepFigures | None
    ) -> messages.StepDone:
        events = self._take_events()
        embedded, self._embedded = tuple(self._embedded), []
        shown = None
        if self._is_shown and planned:
            requests = ((part.pending.request, sum(map(len, part.inputs))) for part in planned)
            shown = StepTrace(
                parts=tuple(TracePart(r.id, r.client, r.priority, "prompt", prompt=n) for r, n in requests)
            )
        return messages.StepDone(events=events, kv=None, figures=figures, embedded=embedded, shown=shown)

    def _queue_state(self, slowdown: float) -> messages.QueueState | None:
        places, tokens = list[messages.QueuePlace](), 0
        for position, pending in enumerate(self._queue.waiting[:_MOST_PLACES], 1):
            # Approximately, the first inputs of earlier requests are computed before each request's first.
            tokens += len(pending.request.inputs[pending.next])
            left_ms = slowdown * self._cost.predict_ms(tokens)
            places.append(messages.QueuePlace(pending.request.id, position, left_ms))
        return messages.QueueState(places=tuple(places)) if places else None

    # -- commands ----------------------------------------------------------------------------------------

    def _handle(self, command: base.EngineWork) -> None:
        match command:
            case messages.Submit(request=EmbedRequest() as request, num_embedded=num_embedded):
                info = self._backend.info
                for tokens in request.inputs:
                    assert 1 <= len(tokens) <= info.max_input_tokens, "the client has checked that"
                    assert 0 <= min(tokens) <= max(tokens) < info.vocab_size, "its tokenizer made them"
                self._queue.add(request, num_embedded)
            case messages.Submit():
                self._refuse(command, _WRONG_MODEL)
            case base.PreparedRequest(submit=submit, failure=RequestFailed() as error):
                self._refuse(submit, str(error))
            case messages.CancelRequest(id=request_id):
                pending = self._queue.remove(request_id)
                if pending is not None:
                    self._embedded.append(_failed(pending.request, "It was cancelled."))
            case messages.ShowSteps() | messages.HideSteps():
                self._is_shown = isinstance(command, messages.ShowSteps)
            case messages.ClearCache():
                pass
            case base.PreparedRequest():
                raise AssertionError("nothing is prepared for this model")

    def _abandon(self, command: base.EngineWork, error: RequestFailed) -> None:
        submit, why = base.submit_of(command), str(error)
        if submit is not None:
            self._queue.remove(submit.request.id)
            self._refuse(submit, why)
        elif (
            isinstance(command, messages.CancelRequest)
            and (pending := self._queue.remove(command.id)) is not None
        ):
            self._embedded.append(_failed(pending.request, why))

    def _refuse(self, submit: messages.Submit, why: str) -> None:
        if isinstance(submit.request, GenerationRequest):
            self._events.append(base.failure(submit.request.id, why, len(submit.output)))
        else:
            self._embedded.append(_failed(submit.request, why))


_WRONG_MODEL = "does not fit a model that embeds"


def _inputs(parts: Iterable[EmbedPart]) -> list[tuple[int, ...]]:
    return [tokens for part in parts for tokens in part.inputs]


def _work_of(inputs: Iterable[tuple[int, ...]]) -> tuple[int, int]:
    """Return tokens, and pairs that attend to each other."""
    lengths = [len(one) for one in inputs]
    return sum(lengths), sum(length**2 for length in lengths)


def _failed(request: EmbedRequest, why: str) -> Embedded:
    return Embedded(id=request.id, first=len(request.inputs), count=0, error=why)


def build_embed_core(options: messages.EngineOptions, backend: EmbedBackend) -> EmbedCore:
    return EmbedCore(
        EmbedQueue(batch_floor=options.scheduling.batch_floor),
        backend,
        ThreadCosts(CostModel.guess(backend.info.num_parameters), threads=backend.threads.most),
        base.scheduling_on(options.scheduling, backend.info),
    )
