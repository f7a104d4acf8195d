"""Assignment of requests to replicas, and their moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import CancelRequest, FinishReason
from openai_cpu_server.contract.replica import block_hashes
from openai_cpu_server.contract.request import Constraint, GenerationRequest
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests, AnswerSink, Delivery
from openai_cpu_server.errors import GenerationFailed, ServerError
from openai_cpu_server.replicas.remote.attendance import KnownReplica
from openai_cpu_server.replicas.report import ReplicaChoice, RoutedRequest
from openai_cpu_server.replicas.router import ReplicaRouter
from openai_cpu_server.replicas.wire import Order, wire_id


class RequestPlace(NamedTuple):
    replica: str
    wire_id: str


class RequestPlaces:
    """Places of all live requests. Requests without a place wait for one."""

    def __init__(self) -> None:
        self._waiting: dict[str, AcceptedRequest] = {}
        self._places: dict[str, RequestPlace] = {}
        self._by_wire: dict[str, AcceptedRequest] = {}
        self._attempts: Counter[str] = Counter()

    @property
    def waiting(self) -> list[AcceptedRequest]:
        return list(self._waiting.values())

    def place(self, live: AcceptedRequest) -> RequestPlace | None:
        return self._places.get(live.request.id)

    def at(self, replica: str) -> list[AcceptedRequest]:
        return [live for live in self._by_wire.values() if self._places[live.request.id].replica == replica]

    def by_wire(self, replica: str, wire: str) -> AcceptedRequest | None:
        """Return the request with this wire id, or None if the replica no longer runs it."""
        live = self._by_wire.get(wire)
        if live is None or self._places[live.request.id].replica != replica:
            return None
        return live

    def wait(self, live: AcceptedRequest) -> None:
        """Return the request to the waiting set."""
        self._leave(live.request.id)
        self._waiting[live.request.id] = live

    def put(self, live: AcceptedRequest, replica: str) -> RequestPlace:
        name = live.request.id
        self._leave(name)
        self._waiting.pop(name, None)
        place = RequestPlace(replica, wire_id(name, self._attempts[name]))
        self._attempts[name] += 1
        self._places[name], self._by_wire[place.wire_id] = place, live
        return place

    def remove(self, live: AcceptedRequest) -> None:
        self._leave(live.request.id)
        self._waiting.pop(live.request.id, None)
        self._attempts.pop(live.request.id, None)

    def _leave(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            del self._by_wire[place.wire_id]


_SUSPECT = 2
"""Consecutive losses, each before any output, that make a suspect. A single one is mostly the machine's
fault, and all requests there are replayed together."""
_GUILTY = 3
"""Losses that convict a request, if it was on trial at the last."""
_HOPELESS = 6
"""Losses that convict it even if requests of other API processes were always present."""


class Quarantine:
    """Tries suspects one at a time, each at a replica that gets no other new requests. A suspect with
    output is cleared. If the replica is lost, the suspect is to blame, unless another API process had a
    request without output there. Innocent suspects do not fail. `engine_client.culprits` bisects within
    one engine, where a death costs less."""

    def __init__(self) -> None:
        self._losses: dict[str, int] = {}
        self._trials: dict[str, AcceptedRequest] = {}
        """Suspect on trial, by replica."""

    @property
    def replicas(self) -> Collection[str]:
        """Replicas that get no new requests."""
        return self._trials.keys()

    def has_room(self, num_ready: int) -> bool:
        """Return True if another trial may begin. Trials take at most half of the ready replicas, or one."""
        return len(self._trials) < max(1, num_ready // 2)

    def suspects(self, live: AcceptedRequest) -> bool:
        """Return True if the request must be tried before it runs beside others."""
        return self._losses.get(live.request.id, 0) >= _SUSPECT

    def begin(self, live: AcceptedRequest, replica: str) -> None:
        self._trials[replica] = live

    def left(self, live: AcceptedRequest) -> bool:
        """Drop the request from its replica. Return True if that ended a trial."""
        at = [replica for replica, one in self._trials.items() if one is live]
        for replica in at:
            del self._trials[replica]
        return bool(at)

    def cleared(self, live: AcceptedRequest) -> bool:
        """Clear suspicion after output or completion. Return True if that ended a trial."""
        self._losses.pop(live.request.id, None)
        return self.left(live)

    def lost(
        self, replica: str, accused: Iterable[AcceptedRequest], *, is_alone: bool
    ) -> AcceptedRequest | None:
        """Return the guilty request, which explains all losses, or None. `accused`: requests without
        output there. `is_alone`: True if no other API process had such requests there."""
        on_trial = self._trials.pop(replica, None)
        guilty = None
        for live in accused:
            losses = self._losses[live.request.id] = self._losses.get(live.request.id, 0) + 1
            is_convicted = live is on_trial and is_alone and losses >= _GUILTY
            guilty = live if is_convicted or losses >= _HOPELESS else guilty
        if guilty is not None:
            self._losses.clear()
        return guilty


class RoutedRequests:
    """Caches block names, because hashing a long prompt takes as long as the rest of routing."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._avoided: dict[str, frozenset[str]] = {}

    def of(self, live: AcceptedRequest) -> RoutedRequest:
        request = live.request
        avoids = self._avoided.get(request.id, frozenset())
        if not isinstance(request, GenerationRequest):
            return RoutedRequest(request.id, request.priority, request.num_tokens, avoids=avoids)
        num_tokens = request.num_tokens + len(live.output)
        return RoutedRequest(
            request.id, request.priority, num_tokens, self._blocks(request, live), avoids=avoids
        )

    def avoid(self, live: AcceptedRequest, replica: str) -> None:
        name = live.request.id
        self._avoided[name] = self._avoided.get(name, frozenset()) | {replica}

    def forget(self, live: AcceptedRequest) -> None:
        self._names.pop(live.request.id, None)
        self._avoided.pop(live.request.id, None)

    def _blocks(self, request: GenerationRequest, live: AcceptedRequest) -> tuple[int, ...]:
        num_output, names = self._names.get(request.id, (-1, ()))
        if num_output != len(live.output):
            names = block_hashes((*request.tokens, *live.output), request.cells_namespace)
            self._names[request.id] = (len(live.output), names)
        return names


_MOVES_A_REPORT = 8
_WORTH_MOVING_S = 1.0
"""Least saving for which a waiting request moves; it must also be half of the remaining wait."""


class RequestPlacement:
    """Owns the live requests. Requests that a replica cannot finish move on with their output so far."""

    def __init__(
        self, replicas: Mapping[str, KnownReplica], router: ReplicaRouter, clock: Callable[[], float]
    ) -> None:
        self.delivery = Delivery(clock, self._has_left)
        self.culprits = CulpritLedger(clock)
        self._replicas = replicas
        self._router = router
        self._clock = clock
        self.places = RequestPlaces()
        self._quarantine = Quarantine()
        self._routed = RoutedRequests()

    @property
    def live(self) -> AcceptedRequests:
        return self.delivery.live

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        self.delivery.accept(call)
        for live in call:
            self.places.wait(live)
        self.place_waiting()

    def cancel(self, *request_ids: str) -> None:
        """Drop the requests without notifying their readers."""
        for request_id in request_ids:
            live = self.live.get(request_id)
            if live is not None:
                self._recall(live)
            self.delivery.forget(request_id)

    def stop(self, live: AcceptedRequest) -> None:
        live.is_stopping = True
        self._recall(live, FinishReason.STOP)

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """Discard the current attempt and its late output, and start another one."""
        live.end_thinking(ending)
        self._recall(live)
        self._suspend(live)
        self.place_waiting()

    def end(self, error: Callable[[], ServerError]) -> None:
        self.delivery.fail(list(self.live), error)

    # -- what replicas tell ------------------------------------------------------------------------------

    def advance(self, live: AcceptedRequest) -> None:
        if live.has_advanced:
            return
        live.has_advanced = True
        self._router.began(live.request.id)
        if self._quarantine.cleared(live):
            self.place_waiting()

    def displace(
        self, some: Sequence[AcceptedRequest], known: KnownReplica, why: str, *, accuses: bool = True
    ) -> None:
        """Return requests to the waiting set. `accuses`: the loss may be the fault of one of them."""
        replica = known.session.replica
        guilty = None
        if accuses:
            accused = [one for one in some if one.state is RequestState.RUNNING and not one.has_advanced]
            guilty = self._quarantine.lost(replica, accused, is_alone=not known.is_shared)
        for live in some:
            if live is not guilty:
                self._routed.avoid(live, replica)
                self._suspend(live)
        if guilty is not None:
            message = f"Each replica that computed this request was lost; the last: {why}."
            self.culprits.book(guilty.request.account, guilty.call)
            self.delivery.fail([guilty], lambda: GenerationFailed(message))

    def empty(self, replica: str) -> bool:
        """Move requests off a departing replica if another can take them. Return True if none is left."""
        for live in self.places.at(replica):
            if any(known.is_ready and known.has(live.request.adapter) for known in self._replicas.values()):
                self._recall(live)
                self._suspend(live)
        self.place_waiting()
        return not self.places.at(replica)

    def place_waiting(self) -> None:
        """Place interactive calls first, then by arrival."""
        num_ready = sum(known.is_ready for known in self._replicas.values())
        if not num_ready:
            return  # many may wait for the first replica, and are not looked at whenever another comes
        self._try_suspects(num_ready)
        calls: dict[AnswerSink, list[AcceptedRequest]] = {}
        for live in self._waiting():
            if not self._quarantine.suspects(live):
                calls.setdefault(live.answer, []).append(live)
        for call in calls.values():
            if (choice := self._choose(call)) is not None:
                self._send(call, choice)

    def take_over(self, replica: str) -> None:
        """Move waiting requests here from other replicas if they would begin much sooner."""
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

    def _better(self, live: AcceptedRequest, replica: str) -> ReplicaChoice | None:
        place, now_s = self.places.place(live), self._clock()
        if live.state is not RequestState.WAITING or place is None or place.replica == replica:
            return None
        if live.expected is None or (left_s := live.expected.first_token_s - now_s) < _WORTH_MOVING_S:
            return None
        if self._quarantine.suspects(live) or not self._replicas[replica].has(live.request.adapter):
            return None
        choice = self._router.choose(self._routed.of(live), now_s=now_s, among=[replica])
        is_better = choice and choice.expected_ms / 1000 <= min(left_s / 2, left_s - _WORTH_MOVING_S)
        return choice if is_better else None

    def _try_suspects(self, num_ready: int) -> None:
        for live in self._waiting():
            if not self._quarantine.suspects(live) or not self._quarantine.has_room(num_ready):
                continue
            if (choice := self._choose([live])) is not None:
                self._isolate(choice.replica)
                self._quarantine.begin(live, choice.replica)
                self._send([live], choice)

    def _isolate(self, replica: str) -> None:
        """Move requests without output away, because they must not be blamed for the loss of the replica."""
        for live in self.places.at(replica):
            if not live.has_advanced:
                self._recall(live)
                self._suspend(live)

    def _waiting(self) -> list[AcceptedRequest]:
        return sorted(self.places.waiting, key=lambda live: live.request.priority)

    def _choose(self, call: Sequence[AcceptedRequest]) -> ReplicaChoice | None:
        """Return None if no replica is ready. Fail the call if none will ever have its adapter."""
        key = call[0].request.adapter
        choice = self._router.choose(
            self._routed.of(call[0]), now_s=self._clock(), among=self._candidates(key)
        )
        replicas = self._replicas.values()
        if choice is None and key is not None and not any(known.may_have(key) for known in replicas):
            self.delivery.fail(call, lambda: GenerationFailed("Its adapter is not loaded any more."))
        return choice

    def _candidates(self, key: str | None) -> Collection[str] | None:
        if key is None and not self._quarantine.replicas:
            return None
        there = [name for name, known in self._replicas.items() if known.has(key)]
        return [name for name in there if name not in self._quarantine.replicas]

    def _send(self, call: Sequence[AcceptedRequest], choice: ReplicaChoice) -> None:
        """The sequences of a call share their prompt, which is read once and booked for the first one."""
        orders: list[Order] = []
        for live in call:
            place = self.places.put(live, choice.replica)
            live.has_advanced = False
            orders += live.commands(place.wire_id)
        self._router.sent(self._routed.of(call[0]), choice, self._clock())
        self._replicas[choice.replica].session.send(*orders)

    def _suspend(self, live: AcceptedRequest) -> None:
        live.wait()
        self._quarantine.left(live)
        self._router.ended(live.request.id)
        self.places.wait(live)

    def _recall(self, live: AcceptedRequest, reason: FinishReason = FinishReason.CANCELLED) -> None:
        place = self.places.place(live)
        if place is not None and place.replica in self._replicas:
            self._replicas[place.replica].session.send(CancelRequest(id=place.wire_id, reason=reason))

    def _has_left(self, live: AcceptedRequest) -> None:
        name = live.request.id
        self.places.remove(live)
        self._router.ended(name)
        self._routed.forget(live)
        if self._quarantine.cleared(live):
            self.place_waiting()
