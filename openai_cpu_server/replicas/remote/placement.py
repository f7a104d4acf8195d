"""Which replica computes which request, and when it moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import Cancel
from openai_cpu_server.dispatch.requests.awaiting import Awaiting
from openai_cpu_server.dispatch.requests.culprits import Culprits
from openai_cpu_server.dispatch.requests.delivery import Delivery
from openai_cpu_server.dispatch.requests.live import Live
from openai_cpu_server.dispatch.requests.live_requests import LiveRequests
from openai_cpu_server.errors import GenerationFailed, ServerError
from openai_cpu_server.replicas.remote.known import Known
from openai_cpu_server.replicas.remote.places import Places
from openai_cpu_server.replicas.remote.quarantine import Quarantine
from openai_cpu_server.replicas.remote.wanting import Wanting
from openai_cpu_server.replicas.report import Choice
from openai_cpu_server.replicas.router import Router
from openai_cpu_server.replicas.wire import Order

_MOVES_A_REPORT = 8
_WORTH_MOVING_S = 1.0
"""A request that waits is sent to another replica if that saves so much, and half of what it would wait."""


class Placement:
    """Owns the live requests. What a replica cannot bring to its end is sent to another one, with the output
    so far."""

    def __init__(self, replicas: Mapping[str, Known], router: Router, clock: Callable[[], float]) -> None:
        self.delivery = Delivery(clock, self._has_left)
        self.culprits = Culprits(clock)
        self._replicas = replicas
        self._router = router
        self._clock = clock
        self._places = Places()
        self._quarantine = Quarantine()
        self._wanting = Wanting()

    @property
    def live(self) -> LiveRequests:
        return self.delivery.live

    def accept(self, call: Sequence[Live]) -> None:
        """The sequences of one API call, or its inputs."""
        self.delivery.accept(call)
        for live in call:
            self._places.wait(live)
        self.place_waiting()

    def cancel(self, *request_ids: str) -> None:
        """No replica is to compute them any more. Who reads them knows, or is still to be told."""
        for request_id in request_ids:
            live = self.live.get(request_id)
            if live is not None:
                self._recall(live)
            self.delivery.forget(request_id)

    def end(self, error: Callable[[], ServerError]) -> None:
        """Nobody will serve what lives."""
        self.delivery.fail(list(self.live), error)

    # -- what replicas tell ------------------------------------------------------------------------------

    def by_wire(self, replica: str, wire: str) -> Live | None:
        """What the replica calls so; None: it does not compute it any more."""
        return self._places.live(replica, wire)

    def at(self, replica: str) -> list[Live]:
        return self._places.at(replica)

    def advance(self, live: Live) -> None:
        """It has gained tokens or vectors."""
        if live.has_advanced:
            return
        live.has_advanced = True
        self._router.began(live.request.id)
        if self._quarantine.cleared(live):
            self.place_waiting()

    def bereave(self, some: Sequence[Live], known: Known, why: str, *, accuses: bool = True) -> None:
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
            self.culprits.book(guilty.request.account, guilty.call)
            self.delivery.fail([guilty], lambda: GenerationFailed(message))

    def empty(self, replica: str) -> bool:
        """Move what a replica computes that is to go, as soon as another can take it. Whether it has nothing
        any more."""
        for live in self._places.at(replica):
            if any(known.is_ready and known.has(live.adapter) for known in self._replicas.values()):
                self._recall(live)
                self._suspend(live)
        self.place_waiting()
        return not self._places.at(replica)

    def place_waiting(self) -> None:
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

    def take_over(self, replica: str) -> None:
        """Requests that wait elsewhere come here, where that is much sooner."""
        if replica in self._quarantine.replicas:
            return
        num_moved = 0
        for live in list(self.live):
            if (choice := self._better(live, replica)) is None:
                continue
            self._recall(live)
            self._suspend(live)
            self._send([live], choice)
            num_moved += 1
            if num_moved >= _MOVES_A_REPORT:
                return

    # -- inside ------------------------------------------------------------------------------------------

    def _better(self, live: Live, replica: str) -> Choice | None:
        """This replica, where the request waits at another one and would begin much sooner here."""
        place, now_s = self._places.place(live), self._clock()
        if live.state is not RequestState.WAITING or place is None or place.replica == replica:
            return None
        if live.expected is None or (left_s := live.expected.first_token_s - now_s) < _WORTH_MOVING_S:
            return None
        if self._quarantine.suspects(live) or not self._replicas[replica].has(live.adapter):
            return None
        choice = self._router.choose(self._wanting.of(live), now_s=now_s, among=[replica])
        is_better = choice and choice.expected_ms / 1000 <= min(left_s / 2, left_s - _WORTH_MOVING_S)
        return choice if is_better else None

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

    def _suspend(self, live: Live) -> None:
        """It waits for a place."""
        live.wait()
        self._quarantine.left(live)
        self._router.ended(live.request.id)
        self._places.wait(live)

    def _recall(self, live: Live) -> None:
        """The replica that has it, if one has, need not compute it any more."""
        place = self._places.place(live)
        if place is not None and place.replica in self._replicas:
            self._replicas[place.replica].attendance.send(Cancel(id=place.wire_id))

    def _has_left(self, live: Live) -> None:
        name = live.request.id
        self._places.remove(live)
        self._router.ended(name)
        self._wanting.forget(live)
        if self._quarantine.cleared(live):
            self.place_waiting()
