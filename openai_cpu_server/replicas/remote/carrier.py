"""Requests on their way to replicas, and what these tell on its way back."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from openai_cpu_server.contract.adapter import AdapterState
from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import EngineState, RequestState
from openai_cpu_server.contract.messages import Cancel, TokenEvent
from openai_cpu_server.contract.prefix import block_hashes
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.dispatch.requests.awaiting import Awaiting
from openai_cpu_server.dispatch.requests.delivery import Delivery
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.errors import GenerationFailed, RequestCancelled, ServerError
from openai_cpu_server.replicas.link import Link
from openai_cpu_server.replicas.remote.attendance import Attendance
from openai_cpu_server.replicas.remote.places import Places
from openai_cpu_server.replicas.report import Choice, ReplicaReport, ReplicaState, Wanted
from openai_cpu_server.replicas.router import Router
from openai_cpu_server.replicas.wire import Ended, News, Order, Report, Why

logger = logging.getLogger(__name__)

Event = TypeVar("Event", TokenEvent, Embedded)

_MAX_LOSSES = 3
"""A request that so many replicas in a row were lost with, while they computed it and before it had gained
anything, is taken to be what they die of."""
_LAST_WORDS_S = 1.0
"""A replica that is gone may have died: whoever attends it is told why about then."""
_MOVES_A_REPORT = 8
_WORTH_MOVING_S = 1.0
"""A request that waits is sent to another replica if that saves so much, and half of what it would wait."""
_STATES = {
    EngineState.READY: ReplicaState.READY,
    EngineState.RESTARTING: ReplicaState.RESTARTING,
    EngineState.LOADING: ReplicaState.LOADING,
    EngineState.ASLEEP: ReplicaState.LOADING,
    EngineState.DRAINING: ReplicaState.DRAINING,
    EngineState.FAILED: ReplicaState.FAILED,
    EngineState.STOPPED: ReplicaState.DRAINING,
}


@dataclass
class Known:
    """A replica that is there, or was told to go."""

    attendance: Attendance
    report: Report | None = None
    """None: it has told nothing yet."""
    is_going: bool = False
    """It is to get nothing new, and what it has moves as soon as another can take it."""
    adapters_asked: set[str] = field(default_factory=set)
    """The keys of those that it was asked to load, beside those that it has had from its start."""

    @property
    def is_ready(self) -> bool:
        is_ready = self.report is not None and self.report.state is EngineState.READY
        return is_ready and not self.is_going


class Carrier:
    """Owns the live requests. What a replica cannot bring to its end is sent to another one, with the output
    so far."""

    def __init__(self, clock: Callable[[], float], router: Router, *, lease_s: float) -> None:
        self.delivery = Delivery(clock, self._has_left)
        self.lost_replicas: set[str] = set()
        """The names of those that have died, or were cut off."""
        self.last_loss: tuple[str, float] | None = None
        """Why the last one was, and when."""
        self.on_report: Callable[[str], None] = lambda replica: None
        self._clock = clock
        self._router = router
        self._lease_s = lease_s
        self._places = Places()
        self._replicas: dict[str, Known] = {}
        self._links: dict[str, Link] = {}
        """Replicas that are to be attended."""
        self._losses: dict[str, int] = {}
        self._avoided: dict[str, frozenset[str]] = {}
        self._sessions = (f"{secrets.token_hex(6)}-{number}" for number in itertools.count())

    # -- replicas ----------------------------------------------------------------------------------------

    @property
    def replicas(self) -> Mapping[str, Known]:
        return self._replicas

    def replicas_are(self, links: Mapping[str, Link]) -> None:
        """Attend those that are new. Those that are gone get nothing more; what they compute moves."""
        self._links = dict(links)
        for name in links:
            if name not in self._replicas:
                self._attend(name)
        for name, known in list(self._replicas.items()):
            if name not in links and not known.is_going:
                self._let_go(name, known)

    def retry(self) -> None:
        """Attend again those that were lost, and are still said to be there."""
        for name in self._links.keys() - self._replicas.keys():
            self._attend(name)

    def send(self, replica: str, *orders: Order) -> None:
        if replica in self._replicas:
            self._replicas[replica].attendance.send(*orders)

    def close(self) -> None:
        """Leave all."""
        for known in self._replicas.values():
            known.attendance.leave()
        self._replicas.clear()

    # -- requests ----------------------------------------------------------------------------------------

    def accept(self, call: Sequence[Live]) -> None:
        """The sequences of one API call, or its inputs."""
        self.delivery.accept(call)
        for live in call:
            self._places.wait(live)
        self._place_waiting()

    def cancel(self, *request_ids: str) -> None:
        """No replica is to compute them any more. Who reads them knows, or is still to be told."""
        for request_id in request_ids:
            live = self.delivery.live.get(request_id)
            if live is not None:
                self._recall(live)
            self.delivery.forget(request_id)

    def end(self, error: Callable[[], ServerError]) -> None:
        """Nobody will serve what lives."""
        self.delivery.fail(list(self.delivery.live), error)

    # -- a `Listener` ------------------------------------------------------------------------------------

    def heard(self, attendance: Attendance, news: News) -> None:
        replica = attendance.replica
        if self._replicas.get(replica) is None or self._replicas[replica].attendance is not attendance:
            return
        self._deliver(replica, news)
        for ended in news.ended:
            self._end(replica, ended)
        if news.report is not None:
            self._reported(replica, news.report)

    def lost(self, attendance: Attendance, why: str, *, is_death: bool) -> None:
        replica = attendance.replica
        known = self._replicas.get(replica)
        if is_death:
            self.lost_replicas.add(replica)
            self.last_loss = (f"the replica {replica} was lost: {why}", self._clock())
        if known is None or known.attendance is not attendance:
            return  # it was empty
        del self._replicas[replica]
        self._router.gone(replica)
        for live in self._places.at(replica):
            self._bereave(live, replica, why)
        self._place_waiting()

    # -- inside: replicas --------------------------------------------------------------------------------

    def _attend(self, name: str) -> None:
        attendance = Attendance(
            name, self._links[name], next(self._sessions), self, lease_s=self._lease_s, clock=self._clock
        )
        self._replicas[name] = Known(attendance)

    def _let_go(self, name: str, known: Known) -> None:
        known.is_going = True
        self._router.gone(name)
        self._empty(name)

    def _empty(self, name: str) -> None:
        """Move what a replica computes that is to go; leave it when it has nothing."""
        if any(known.is_ready for known in self._replicas.values()):
            for live in self._places.at(name):
                self._recall(live)
                self._suspend(live)
            self._place_waiting()
        if not self._places.at(name):
            self._replicas.pop(name).attendance.leave_in(_LAST_WORDS_S)

    def _reported(self, replica: str, report: Report) -> None:
        known = self._replicas[replica]
        known.report = report
        if known.is_going:
            self._empty(replica)
            return
        state, now_s = _STATES[report.state], self._clock()
        told = ReplicaReport(state=state, forecast=report.forecast, held=report.held)
        self._router.reported(replica, told, made_s=known.attendance.counted_s(report.counted), now_s=now_s)
        self.on_report(replica)
        self._place_waiting()
        if known.is_ready:
            self._take_over(replica)
            for name in [name for name, other in self._replicas.items() if other.is_going]:
                self._empty(name)

    def _take_over(self, replica: str) -> None:
        """Requests that wait elsewhere come here, where that is much sooner."""
        now_s, num_moved = self._clock(), 0
        for live in list(self.delivery.live):
            place = self._places.place(live)
            if live.state is not RequestState.WAITING or place is None or place.replica == replica:
                continue
            if live.expected is None or live.expected.first_token_s - now_s < _WORTH_MOVING_S:
                continue
            choice = self._router.choose(self._wanted([live]), now_s=now_s, among=[replica])
            left_s = live.expected.first_token_s - now_s
            if choice is None or choice.expected_ms / 1000 > min(left_s / 2, left_s - _WORTH_MOVING_S):
                continue
            self._recall(live)
            self._suspend(live)
            self._send([live], choice)
            num_moved += 1
            if num_moved >= _MOVES_A_REPORT:
                return

    # -- inside: requests --------------------------------------------------------------------------------

    def _place_waiting(self) -> None:
        """Interactive calls first, then in the order of their arrival."""
        calls: dict[Awaiting, list[Live]] = {}
        for live in sorted(self._places.waiting, key=lambda live: live.request.priority):
            calls.setdefault(live.answer, []).append(live)
        for call in calls.values():
            choice = self._choose(call)
            if choice is not None:
                self._send(call, choice)

    def _choose(self, call: Sequence[Live]) -> Choice | None:
        """None: no replica is ready for it."""
        among = self._with_adapter(call[0].adapter)
        return self._router.choose(self._wanted(call), now_s=self._clock(), among=among)

    def _with_adapter(self, key: str | None) -> Collection[str] | None:
        """The replicas that have it; None: all, for it needs none."""
        return None if key is None else [name for name, known in self._replicas.items() if _has(known, key)]

    def _wanted(self, call: Sequence[Live]) -> Wanted:
        request, output = call[0].request, call[0].output
        if isinstance(request, GenerationRequest):
            tokens = (*request.tokens, *output)
            blocks, num_tokens = block_hashes(tokens, request.cells_namespace), len(tokens)
        else:
            blocks, num_tokens = (), request.num_tokens
        avoids = self._avoided.get(request.id, frozenset())
        return Wanted(request.id, request.priority, num_tokens, blocks, avoids=avoids)

    def _send(self, call: Sequence[Live], choice: Choice) -> None:
        """The sequences of a call share their prompt: it is read once, and booked for the first of them."""
        orders: list[Order] = []
        for live in call:
            place = self._places.put(live, choice.replica)
            live.has_advanced = False
            submit = live.submit()
            request = msgspec.structs.replace(submit.request, id=place.wire_id)
            orders.append(msgspec.structs.replace(submit, request=request))
        self._router.sent(self._wanted(call), choice, self._clock())
        self._replicas[choice.replica].attendance.send(*orders)

    def _deliver(self, replica: str, news: News) -> None:
        live_requests = self.delivery.live
        here = [live for wire in news.started if (live := self._places.live(replica, wire)) is not None]
        for live in live_requests.computing(tuple(live.request.id for live in here)):
            live.answer.start()
        for wire_event in news.events:
            live_there = self._places.live(replica, wire_event.id)
            if live_there is not None:
                self._advance(live_there)
                self.delivery.deliver(_renamed(wire_event, live_there))
        for vectors in news.embedded:
            live_there = self._places.live(replica, vectors.id)
            if live_there is not None:
                self._advance(live_there)
                self.delivery.deliver_vectors(_renamed(vectors, live_there))
        self._tell_places(replica, news)

    def _tell_places(self, replica: str, news: News) -> None:
        places = [
            msgspec.structs.replace(place, id=live.request.id)
            for place in news.places
            if (live := self._places.live(replica, place.id)) is not None
        ]
        if places:
            told = self.delivery.live.waiting(places, self._clock(), among=self._places.at(replica))
            for answer, place in told.items():
                answer.wait_at(place)

    def _advance(self, live: Live) -> None:
        if not live.has_advanced:
            live.has_advanced = True
            self._losses.pop(live.request.id, None)
            self._router.began(live.request.id)

    def _end(self, replica: str, ended: Ended) -> None:
        live = self._places.live(replica, ended.id)
        if live is None:
            return
        if ended.why is Why.RETURNED:
            self._avoid(live, replica)
            self._suspend(live)
            return  # the next report of any replica finds it a place
        error = RequestCancelled if ended.why is Why.CANCELLED else GenerationFailed
        self.delivery.fail([live], lambda: error(ended.message))

    def _bereave(self, live: Live, replica: str, why: str) -> None:
        """Its replica was lost."""
        name = live.request.id
        if live.state is RequestState.RUNNING and not live.has_advanced:
            self._losses[name] = self._losses.get(name, 0) + 1
        if self._losses.get(name, 0) >= _MAX_LOSSES:
            lost = f"{_MAX_LOSSES} replicas in a row were lost while they computed this request"
            message = f"{lost}; the last: {why}."
            self.delivery.fail([live], lambda: GenerationFailed(message))
            return
        self._avoid(live, replica)
        self._suspend(live)

    def _avoid(self, live: Live, replica: str) -> None:
        name = live.request.id
        self._avoided[name] = self._avoided.get(name, frozenset()) | {replica}

    def _suspend(self, live: Live) -> None:
        """It waits for a place."""
        live.wait()
        self._router.ended(live.request.id)
        self._places.wait(live)

    def _recall(self, live: Live) -> None:
        """The replica that has it, if one has, need not compute it any more."""
        place = self._places.place(live)
        if place is not None:
            self.send(place.replica, Cancel(id=place.wire_id))

    def _has_left(self, live: Live) -> None:
        name = live.request.id
        self._places.remove(live)
        self._router.ended(name)
        self._losses.pop(name, None)
        self._avoided.pop(name, None)


def _renamed(event: Event, live: Live) -> Event:
    """As the request is called here."""
    return event if event.id == live.request.id else msgspec.structs.replace(event, id=live.request.id)


def _has(known: Known, key: str) -> bool:
    report = known.report
    return report is not None and any(
        status.adapter.key == key and status.state is AdapterState.READY for status in report.adapters
    )
