"""Transport of requests to the present process, and of events back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from openai_cpu_server.contract import messages
from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.request import Constraint, Priority
from openai_cpu_server.engine_client.culprits import AbsentSuspects, CulpritLedger, OutsideRequests
from openai_cpu_server.engine_client.deaths import Death, SearchProgress
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests, Delivery
from openai_cpu_server.errors import GenerationFailed, ServerError

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class RecoveryTimer:
    """Log of the time from a death until all affected requests have advanced."""

    clock: Callable[[], float]
    _missing: set[str] = field(default_factory=set)
    _since_s: float = 0.0
    _num_deaths: int = 0
    _num_suspects: int = 0

    def died(self, concerned: Iterable[str], *, num_suspects: int) -> None:
        if not self._missing:
            self._since_s, self._num_deaths, self._num_suspects = self.clock(), 0, 0
        self._missing.update(concerned)
        self._num_deaths += 1
        self._num_suspects = max(self._num_suspects, num_suspects)

    def is_back(self, request_id: str) -> None:
        if request_id not in self._missing:
            return
        self._missing.remove(request_id)
        if not self._missing:
            logger.info(
                "recovered from the engine's death in %.2f s (deaths: %d, suspects: %d)",
                self.clock() - self._since_s,
                self._num_deaths,
                self._num_suspects,
            )


class RequestReplay:
    """Resubmission of a dead process's requests, with their output so far."""

    def __init__(self, clock: Callable[[], float], left: Callable[[], None], culprits: CulpritLedger) -> None:
        self._left = left
        self._culprits = culprits
        self._absent = AbsentSuspects(culprits)
        self._clock = clock
        self.delivery = Delivery(clock, self._has_left)
        self._outside = OutsideRequests(self.delivery.live)
        self._send: Callable[..., None] | None = None
        """Unset while requests wait for a process."""
        self._is_held_back = False
        self._recovery = RecoveryTimer(clock)

    # -- for the engine's client -------------------------------------------------------------------------

    @property
    def live(self) -> AcceptedRequests:
        return self.delivery.live

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        self.delivery.accept(call)
        for live in call:
            self._outside.add(live)
        self._send_due()

    def cancel(self, *request_ids: str) -> None:
        self._absent.left(live for live in map(self.live.get, request_ids) if live is not None)
        for request_id in request_ids:
            self.delivery.forget(request_id)
        self._absent.conclude(self.live)
        if self._send is not None:
            self._send(*[messages.CancelRequest(id=request_id) for request_id in request_ids])
        self._send_due()

    def stop(self, live: AcceptedRequest) -> None:
        live.is_stopping = True
        if self._send is not None and self._outside.has_sent(live):
            self._send(messages.CancelRequest(id=live.request.id, reason=messages.FinishReason.STOP))

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """Drop later events of the request's previous form."""
        live.end_thinking(ending)
        if self._send is not None and self._outside.has_sent(live):
            live.num_replaced += 1
            self._send(*live.commands())

    def uses_adapter(self, key: str) -> bool:
        return any(live.request.adapter == key for live in self.live)

    def hold_back(self) -> None:
        self._is_held_back = True

    def release(self) -> None:
        self._is_held_back = False
        self._send_due()

    def report_loading(self, fraction: float) -> None:
        for answer in self.live.answers():
            answer.wait_at(messages.ModelLoading(fraction))

    # -- for the supervisor ------------------------------------------------------------------------------

    @property
    def is_pending(self) -> bool:
        return not self._outside.holds_all

    @property
    def num_live(self) -> int:
        return len(self.live)

    @property
    def best_priority(self) -> Priority | None:
        return min((live.request.priority for live in self.live), default=None)

    def ready(self, send: Callable[..., None]) -> None:
        self._send, self._is_held_back = send, False
        self.delivery.used()
        self._send_due()

    def lost(self) -> None:
        self._send = None

    def handle(
        self, event: messages.StepStarted | messages.Handling | messages.StepDone | messages.QueueState
    ) -> None:
        match event:
            case messages.StepStarted(ids=ids):
                self._outside.computing(ids)
                for live in self.live.computing(ids):
                    live.answer.start()
            case messages.Handling(id=request_id):
                self._outside.handling(request_id)
            case messages.StepDone():
                self._deliver(event)
                self._send_due()
            case messages.QueueState(places=places, preempted=preempted):
                self.live.preempted(preempted)
                for answer, place in self.live.waiting(places, self._clock()).items():
                    answer.wait_at(place)

    def has_explained(self) -> bool:
        """Return True, once, if requests that have left caused the deaths. Called before `died`."""
        return self._absent.take_conclusion()

    def died(self, death: Death) -> SearchProgress:
        for live in self.live:
            live.num_replaced = 0
        ran = {live for live in self.live if live.state is RequestState.RUNNING}
        verdict = self._outside.crashed(death.kind)
        concerned = [live.request.id for live in self.live if live in ran or live.suspicion]
        self._recovery.died(concerned, num_suspects=verdict.num_suspects)
        for live in verdict.guilty:
            self._culprits.book(live.request.account, live.call)
        self.delivery.fail(verdict.guilty, lambda: GenerationFailed(death.verdict))
        if verdict.guilty:
            self._absent.forget()
            return SearchProgress.FOUND
        return SearchProgress.CLOSER if verdict.is_closer else SearchProgress.NOTHING

    def end(self, error: Callable[[], ServerError]) -> None:
        self._recovery = RecoveryTimer(self._clock)  # there is none
        self.delivery.fail(list(self.live), error)

    def _send_due(self) -> None:
        if self._send is not None and not self._is_held_back and (due := self._outside.due()):
            self._send(*[command for live in due for command in live.commands()])

    def _deliver(self, step: messages.StepDone) -> None:
        events: list[messages.TokenEvent | Embedded] = [*step.events, *step.embedded]
        for live in [self.delivery.deliver(event) for event in events]:
            if live is not None:
                self._outside.advanced(live)
                self._recovery.is_back(live.request.id)
        self._absent.conclude(self.live)

    def _has_left(self, live: AcceptedRequest) -> None:
        self._outside.remove(live.request.id)
        self._recovery.is_back(live.request.id)
        if live.request.adapter is not None:
            self._left()
