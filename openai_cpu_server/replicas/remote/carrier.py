"""Requests on their way to replicas, and what these tell on its way back."""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import msgspec

from openai_cpu_server.contract.embedding import Embedded
from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import Cancel, TokenEvent
from openai_cpu_server.dispatch.requests.awaiting import Awaiting
from openai_cpu_server.dispatch.requests.delivery import Delivery
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.errors import GenerationFailed, RequestCancelled, ServerError
from openai_cpu_server.replicas.link import Link
from openai_cpu_server.replicas.remote.attendance import Attendance
from openai_cpu_server.replicas.remote.known import Known, for_router
from openai_cpu_server.replicas.remote.places import Places
from openai_cpu_server.replicas.remote.quarantine import Quarantine
from openai_cpu_server.replicas.remote.wanting import Wanting
from openai_cpu_server.replicas.report import Choice
from openai_cpu_server.replicas.router import Router
from openai_cpu_server.replicas.wire import Ended, News, Order, Report, Why

logger = logging.getLogger(__name__)

Event = TypeVar("Event", TokenEvent, Embedded)

_LAST_WORDS_S = 2.0
"""A replica that is gone may have died: whoever attends it is told why about then. It also has to tell whose
CPU time it has spent at last, which it does every second."""
_MOVES_A_REPORT = 8
_WORTH_MOVING_S = 1.0
"""A request that waits is sent to another replica if that saves so much, and half of what it would wait."""


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
        self.on_spent: Callable[[dict[str, float]], None] = lambda spent_ms: None
        """Told of CPU time, in milliseconds, by the label of the client."""
        self._clock = clock
        self._router = router
        self._lease_s = lease_s
        self._places = Places()
        self._replicas: dict[str, Known] = {}
        self._links: dict[str, Link] = {}
        """Replicas that are to be attended."""
        self._quarantine = Quarantine()
        self._wanting = Wanting()
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
        self.on_spent(news.spent_ms)
        if self._replicas.get(replica) is None or self._replicas[replica].attendance is not attendance:
            return
        self._deliver(replica, news)
        self._end(replica, news.ended)
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
        self._bereave(self._places.at(replica), known, why, accuses=is_death)
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
        for live in self._places.at(name):
            if any(known.is_ready and known.has(live.adapter) for known in self._replicas.values()):
                self._recall(live)
                self._suspend(live)
        self._place_waiting()
        if not self._places.at(name):
            self._replicas.pop(name).attendance.leave_in(_LAST_WORDS_S)

    def _reported(self, replica: str, report: Report) -> None:
        known = self._replicas[replica]
        if report.others is None and known.report is not None:
            report = msgspec.structs.replace(report, others=known.report.others)
        known.report = report
        if known.is_going:
            self._empty(replica)
            return
        made_s = known.attendance.counted_s(report.counted)
        self._router.reported(replica, for_router(report), made_s=made_s, now_s=self._clock())
        self.on_report(replica)
        self._place_waiting()
        if known.is_ready:
            if replica not in self._quarantine.replicas:
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
            if self._quarantine.suspects(live):
                continue
            if live.expected is None or live.expected.first_token_s - now_s < _WORTH_MOVING_S:
                continue
            if not self._replicas[replica].has(live.adapter):
                continue
            choice = self._router.choose(self._wanting.of(live), now_s=now_s, among=[replica])
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
        num_ready = sum(known.is_ready for known in self._replicas.values())
        if not num_ready:
            return  # many may wait for the first replica, and are not looked at whenever another comes
        self._try_suspects(num_ready)
        calls: dict[Awaiting, list[Live]] = {}
        for live in self._waiting():
            if not self._quarantine.suspects(live):
                calls.setdefault(live.answer, []).append(live)
        for call in calls.values():
            if (choice := self._choose(call)) is not None:
                self._send(call, choice)

    def _try_suspects(self, num_ready: int) -> None:
        """Each alone, as far as there is room for it."""
        for live in self._waiting():
            if not self._quarantine.suspects(live) or not self._quarantine.has_room(num_ready):
                continue
            if (choice := self._choose([live])) is not None:
                self._isolate(choice.replica)
                self._quarantine.begin(live, choice.replica)
                self._send([live], choice)

    def _isolate(self, replica: str) -> None:
        """Who has gained nothing there moves away: if the replica is lost, that is not of them."""
        for live in self._places.at(replica):
            if not live.has_advanced:
                self._recall(live)
                self._suspend(live)

    def _waiting(self) -> list[Live]:
        return sorted(self._places.waiting, key=lambda live: live.request.priority)

    def _may_come(self, key: str) -> bool:
        """Some replica has the adapter, or will."""
        return any(known.may_have(key) for known in self._replicas.values())

    def _choose(self, call: Sequence[Live]) -> Choice | None:
        """None: no replica is ready for it, or none will ever be: then it fails."""
        key = call[0].adapter
        choice = self._router.choose(
            self._wanting.of(call[0]), now_s=self._clock(), among=self._candidates(key)
        )
        if choice is None and key is not None and not self._may_come(key):
            self.delivery.fail(call, lambda: GenerationFailed("Its adapter is not loaded any more."))
        return choice

    def _candidates(self, key: str | None) -> Collection[str] | None:
        """The replicas that have the adapter, and take something new; None: all."""
        if key is None and not self._quarantine.replicas:
            return None
        there = [name for name, known in self._replicas.items() if known.has(key)]
        return [name for name in there if name not in self._quarantine.replicas]

    def _send(self, call: Sequence[Live], choice: Choice) -> None:
        """The sequences of a call share their prompt: it is read once, and booked for the first of them."""
        orders: list[Order] = []
        for live in call:
            place = self._places.put(live, choice.replica)
            live.has_advanced = False
            submit = live.submit()
            request = msgspec.structs.replace(submit.request, id=place.wire_id)
            orders.append(msgspec.structs.replace(submit, request=request))
        self._router.sent(self._wanting.of(call[0]), choice, self._clock())
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
        if live.has_advanced:
            return
        live.has_advanced = True
        self._router.began(live.request.id)
        if self._quarantine.cleared(live):
            self._place_waiting()

    def _end(self, replica: str, news: Sequence[Ended]) -> None:
        there = [(live, end) for end in news if (live := self._places.live(replica, end.id)) is not None]
        for live, end in there:
            if end.why is not Why.RETURNED:
                self._fail(live, end)
        returned = [live for live, end in there if end.why is Why.RETURNED]
        if returned:  # the next report of any replica finds them a place
            self._bereave(returned, self._replicas[replica], there[-1][1].message)

    def _fail(self, live: Live, end: Ended) -> None:
        error = RequestCancelled if end.why is Why.CANCELLED else GenerationFailed
        self.delivery.fail([live], lambda: error(end.message))

    def _bereave(self, some: Sequence[Live], known: Known, why: str, *, accuses: bool = True) -> None:
        """Their replica was lost, or cannot compute them any more. `accuses`: that may be of one of them."""
        replica = known.attendance.replica
        guilty = None
        if accuses:
            accused = [one for one in some if one.state is RequestState.RUNNING and not one.has_advanced]
            guilty = self._quarantine.lost(replica, accused, is_alone=not known.is_shared)
        for live in some:
            if live is not guilty:
                self._wanting.avoid(live, replica)
                self._suspend(live)
        if guilty is not None:
            message = f"Each replica that computed this request was lost; the last: {why}."
            self.delivery.fail([guilty], lambda: GenerationFailed(message))

    def _suspend(self, live: Live) -> None:
        """It waits for a place."""
        live.wait()
        self._quarantine.left(live)
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
        self._wanting.forget(live)
        if self._quarantine.cleared(live):
            self._place_waiting()


def _renamed(event: Event, live: Live) -> Event:
    """As the request is called here."""
    return event if event.id == live.request.id else msgspec.structs.replace(event, id=live.request.id)
