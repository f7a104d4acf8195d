"""Requests on their way to whichever engine process is ready, and its events on their way back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from openai_cpu_server.contract.embedding import Embedded, EmbedRequest
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import (
    Cancel,
    Command,
    Handling,
    ModelLoading,
    QueueState,
    StepDone,
    StepStarted,
    TokenEvent,
)
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.dispatch.death import Death
from openai_cpu_server.dispatch.embedding import Embedding
from openai_cpu_server.dispatch.generation import Generation
from openai_cpu_server.dispatch.live import Live
from openai_cpu_server.dispatch.live_requests import LiveRequests
from openai_cpu_server.dispatch.recovery import Recovery
from openai_cpu_server.errors import GenerationFailed, ServerError


class Totals(msgspec.Struct):
    """What has been served since the start."""

    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0


class Replay:
    """Owns the live requests. What a dead engine has left is sent to the next one, with the output so far."""

    def __init__(self, clock: Callable[[], float], left: Callable[[], None]) -> None:
        """`left` is told when a request with an adapter does not live any more."""
        self._left = left
        self.live = LiveRequests()
        self.totals = Totals()
        self._clock = clock
        self._send: Callable[..., None] | None = None
        """To the engine process; None: none is ready, and requests wait in `live`."""
        self._is_held_back = False
        self._last_use_s = clock()
        self._recovery = Recovery(clock)

    # -- for the dispatcher ------------------------------------------------------------------------------

    def accept(self, requests: Sequence[GenerationRequest], generation: Generation) -> None:
        """The sequences of one API call."""
        for request in requests:
            self.live.add(Live(request, generation, self._clock()))
        self._last_use_s = self._clock()
        self.totals.requests += 1
        self.totals.prompt_tokens += sum(map(len, {request.tokens for request in requests}))
        self._send_due()

    def accept_inputs(self, request: EmbedRequest, embedding: Embedding) -> None:
        """The inputs of one API call."""
        self.live.add(Live(request, embedding, self._clock()))
        self._last_use_s = self._clock()
        self.totals.requests += 1
        self.totals.prompt_tokens += request.num_tokens
        self._send_due()

    def cancel(self, *request_ids: str) -> None:
        """The engine is not to compute them any more. Who reads them knows, or is still to be told."""
        for request_id in request_ids:
            self._forget(request_id)
        self._tell(*[Cancel(id=request_id) for request_id in request_ids])
        self._send_due()

    def fail(self, requests: Iterable[Live], error: Callable[[], ServerError]) -> None:
        """`error` makes a new one for each, for each is raised somewhere else."""
        for live in requests:
            self._forget(live.request.id)
            live.answer.fail(live.request.id, error())

    def uses_adapter(self, key: str) -> bool:
        return any(live.adapter == key for live in self.live)

    @property
    def last_use_s(self) -> float:
        """When a request last came or ended, on the clock; at first: when this was made."""
        return self._last_use_s

    def hold_back(self) -> None:
        """The engine is sent nothing new until the next one is ready: it is to end what it has."""
        self._is_held_back = True

    def release(self) -> None:
        """What was held back is sent after all."""
        self._is_held_back = False
        self._send_due()

    def tell_of_loading(self, fraction: float) -> None:
        """Tells all who wait for the model."""
        for answer in self.live.answers():
            answer.wait_for_model(ModelLoading(fraction))

    # -- for the supervisor ------------------------------------------------------------------------------

    @property
    def is_owed(self) -> bool:
        """The engine has some of the requests, and something to do."""
        return self.live.are_owed

    @property
    def num_live(self) -> int:
        return len(self.live)

    @property
    def best_priority(self) -> Priority | None:
        """The best priority of the requests that live; None: there are none."""
        return min((live.request.priority for live in self.live), default=None)

    def ready(self, send: Callable[..., None]) -> None:
        """An engine process is ready, and can be sent commands until it dies."""
        self._send, self._is_held_back = send, False
        self._last_use_s = self._clock()
        self._send_due()

    def lost(self) -> None:
        """The engine process hears nothing any more. `died` follows."""
        self._send = None

    def heard(self, event: StepStarted | Handling | StepDone | QueueState) -> None:
        match event:
            case StepStarted(ids=ids):
                for live in self.live.computing(ids):
                    live.answer.start()
            case Handling(id=request_id):
                self.live.handling(request_id)
            case StepDone(events=events, embedded=embedded):
                for token_event in events:
                    self._deliver(token_event)
                for vectors in embedded:
                    self._deliver_vectors(vectors)
                self._send_due()
            case QueueState(places=places, preempted=preempted):
                self.live.preempted(preempted)
                for answer, place in self.live.waiting(places, self._clock()).items():
                    answer.wait_at(place)

    def died(self, death: Death) -> bool:
        """Whether the search for a culprit needed this death, and has come closer to it."""
        ran = {live for live in self.live if live.state is RequestState.RUNNING}
        verdict = self.live.crashed(death.kind)
        concerned = [live.request.id for live in self.live if live in ran or live.suspicion]
        self._recovery.died(concerned, num_suspects=verdict.num_suspects)
        self.fail(verdict.guilty, lambda: GenerationFailed(death.verdict))
        return verdict.is_closer

    def end(self, error: Callable[[], ServerError]) -> None:
        """No engine will serve what lives."""
        self._recovery = Recovery(self._clock)  # there is none
        self.fail(list(self.live), error)

    def _tell(self, *commands: Command) -> None:
        if self._send is not None:
            self._send(*commands)

    def _send_due(self) -> None:
        if self._send is not None and not self._is_held_back and (due := self.live.due()):
            self._send(*[live.submit() for live in due])

    def _deliver(self, event: TokenEvent) -> None:
        live = self.live.get(event.id)
        if live is None:
            return  # cancelled while this was on its way
        if not isinstance(live.answer, Generation):  # its file has become one of another kind
            self.fail([live], lambda: GenerationFailed("The model's file is of another kind now."))
            return
        self.live.advanced(event)
        self._recovery.is_back(event.id)
        live.answer.push(event)
        if event.finish is not None:
            self._last_use_s = self._clock()
            self.totals.output_tokens += event.finish.output_tokens
            self._has_left(live)

    def _deliver_vectors(self, event: Embedded) -> None:
        live = self.live.get(event.id)
        if live is None:
            return  # cancelled while this was on its way
        if not isinstance(live.answer, Embedding):
            self.fail([live], lambda: GenerationFailed("The model's file is of another kind now."))
            return
        self.live.embedded(event)
        self._recovery.is_back(event.id)
        self._last_use_s = self._clock()
        live.answer.push(event)

    def _has_left(self, live: Live) -> None:
        if live.adapter is not None:
            self._left()

    def _forget(self, request_id: str) -> None:
        live = self.live.remove(request_id)
        self._last_use_s = self._clock()
        self._recovery.is_back(request_id)
        if live is not None:
            self._has_left(live)
