"""Which replica computes which request, and when it moves."""

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
    """Where all live requests are; those without a place wait for one."""

    def __init__(self) -> None:
        self._waiting: dict[str, AcceptedRequest] = {}
        self._places: dict[str, RequestPlace] = {}
        self._by_wire: dict[str, AcceptedRequest] = {}
        self._attempts: Counter[str] = Counter()

    @property
    def waiting(self) -> list[AcceptedRequest]:
        """In the order of their arrival here."""
        return list(self._waiting.values())

    def place(self, live: AcceptedRequest) -> RequestPlace | None:
        return self._places.get(live.request.id)

    def at(self, replica: str) -> list[AcceptedRequest]:
        """Those that the replica computes."""
        return [live for live in self._by_wire.values() if self._places[live.request.id].replica == replica]

    def by_wire(self, replica: str, wire: str) -> AcceptedRequest | None:
        """What the replica calls so; None: it does not compute it any more."""
        live = self._by_wire.get(wire)
        if live is None or self._places[live.request.id].replica != replica:
            return None
        return live

    def wait(self, live: AcceptedRequest) -> None:
        """It has no place (any more)."""
        self._leave(live.request.id)
        self._waiting[live.request.id] = live

    def put(self, live: AcceptedRequest, replica: str) -> RequestPlace:
        """The replica computes it from now on."""
        name = live.request.id
        self._leave(name)
        self._waiting.pop(name, None)
        place = RequestPlace(replica, wire_id(name, self._attempts[name]))
        self._attempts[name] += 1
        self._places[name], self._by_wire[place.wire_id] = place, live
        return place

    def remove(self, live: AcceptedRequest) -> None:
        """It lives no more."""
        self._leave(live.request.id)
        self._waiting.pop(live.request.id, None)
        self._attempts.pop(live.request.id, None)

    def _leave(self, name: str) -> None:
        place = self._places.pop(name, None)
        if place is not None:
            del self._by_wire[place.wire_id]


_SUSPECT = 2
"""A request is a suspect when so many replicas in a row were lost while they computed it, and before it had
gained anything. One loss alone is mostly a machine's own: whatever it computed is replayed together."""
_GUILTY = 3
"""So many losses convict a request, if it was on trial at the last."""
_HOPELESS = 6
"""So many convict it even where others, of other API processes, were never away."""


class Quarantine:
    """Suspects are tried one at a time at a replica that gets nothing else new meanwhile. Who has gained
    something is cleared. If the replica is lost, that is of the suspect, unless another API process had a
    request there that had gained nothing either.

    So the innocent among them fail for nobody, and wait for as long as it takes to begin those before them.
    `engine_client.culprits` does this within one engine, by halves: there a death costs much less.
    """

    def __init__(self) -> None:
        self._losses: dict[str, int] = {}
        """By request."""
        self._trials: dict[str, AcceptedRequest] = {}
        """By replica: who is on trial there."""

    @property
    def replicas(self) -> Collection[str]:
        """They are to get nothing new."""
        return self._trials.keys()

    def has_room(self, num_ready: int) -> bool:
        """Another may be tried: half of the replicas that are ready, or the only one, may be taken for it."""
        return len(self._trials) < max(1, num_ready // 2)

    def suspects(self, live: AcceptedRequest) -> bool:
        """It is to be tried before it is computed beside others."""
        return self._losses.get(live.request.id, 0) >= _SUSPECT

    def begin(self, live: AcceptedRequest, replica: str) -> None:
        self._trials[replica] = live

    def left(self, live: AcceptedRequest) -> bool:
        """It is not where it was any more; whether that was a trial."""
        at = [replica for replica, one in self._trials.items() if one is live]
        for replica in at:
            del self._trials[replica]
        return bool(at)

    def cleared(self, live: AcceptedRequest) -> bool:
        """It has gained something, or has ended; whether a trial is over by that."""
        self._losses.pop(live.request.id, None)
        return self.left(live)

    def lost(
        self, replica: str, accused: Iterable[AcceptedRequest], *, is_alone: bool
    ) -> AcceptedRequest | None:
        """The replica was lost while it computed the `accused`, which had gained nothing there. `is_alone`:
        no other API process had such requests there. Returns who is guilty; that explains all losses."""
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
    """Remembers the names as long as a request lives: one that waits is looked at again and again, and
    hashing a long prompt takes as long as all else together."""

    def __init__(self) -> None:
        self._names: dict[str, tuple[int, tuple[int, ...]]] = {}
        """By request: the length of its output then, and the names."""
        self._avoided: dict[str, frozenset[str]] = {}

    def of(self, live: AcceptedRequest) -> RoutedRequest:
        """The sequences of a call share their prompt: what the first of them wants is what the call wants."""
        request = live.request
        avoids = self._avoided.get(request.id, frozenset())
        if not isinstance(request, GenerationRequest):
            return RoutedRequest(request.id, request.priority, request.num_tokens, avoids=avoids)
        num_tokens = request.num_tokens + len(live.output)
        return RoutedRequest(
            request.id, request.priority, num_tokens, self._blocks(request, live), avoids=avoids
        )

    def avoid(self, live: AcceptedRequest, replica: str) -> None:
        """It was with this replica when it was lost."""
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
"""A request that waits is sent to another replica if that saves so much, and half of what it would wait."""


class RequestPlacement:
    """Owns the live requests. What a replica cannot bring to its end is sent to another one, with the output
    so far."""

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
        """No replica is to compute them any more. Who reads them knows, or is still to be told."""
        for request_id in request_ids:
            live = self.live.get(request_id)
            if live is not None:
                self._recall(live)
            self.delivery.forget(request_id)

    def stop(self, live: AcceptedRequest) -> None:
        live.is_stopping = True
        self._recall(live, FinishReason.STOP)

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        """What is under way of the request as it was is dropped: it is another attempt from now on."""
        live.end_thinking(ending)
        self._recall(live)
        self._suspend(live)
        self.place_waiting()

    def end(self, error: Callable[[], ServerError]) -> None:
        """Nobody will serve what lives."""
        self.delivery.fail(list(self.live), error)

    # -- what replicas tell ------------------------------------------------------------------------------

    def advance(self, live: AcceptedRequest) -> None:
        """It has gained tokens or vectors."""
        if live.has_advanced:
            return
        live.has_advanced = True
        self._router.began(live.request.id)
        if self._quarantine.cleared(live):
            self.place_waiting()

    def displace(
        self, some: Sequence[AcceptedRequest], known: KnownReplica, why: str, *, accuses: bool = True
    ) -> None:
        """Their replica was lost, or cannot compute them any more. `accuses`: that may be of one of them."""
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
        """Move what a replica computes that is to go, as soon as another can take it. Whether it has nothing
        any more."""
        for live in self.places.at(replica):
            if any(known.is_ready and known.has(live.request.adapter) for known in self._replicas.values()):
                self._recall(live)
                self._suspend(live)
        self.place_waiting()
        return not self.places.at(replica)

    def place_waiting(self) -> None:
        """Interactive calls first, then in the order of their arrival."""
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

    def _better(self, live: AcceptedRequest, replica: str) -> ReplicaChoice | None:
        """This replica, where the request waits at another one and would begin much sooner here."""
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
        for live in self.places.at(replica):
            if not live.has_advanced:
                self._recall(live)
                self._suspend(live)

    def _waiting(self) -> list[AcceptedRequest]:
        return sorted(self.places.waiting, key=lambda live: live.request.priority)

    def _choose(self, call: Sequence[AcceptedRequest]) -> ReplicaChoice | None:
        """None: no replica is ready for it, or none will ever be: then it fails."""
        key = call[0].request.adapter
        choice = self._router.choose(
            self._routed.of(call[0]), now_s=self._clock(), among=self._candidates(key)
        )
        replicas = self._replicas.values()
        if choice is None and key is not None and not any(known.may_have(key) for known in replicas):
            self.delivery.fail(call, lambda: GenerationFailed("Its adapter is not loaded any more."))
        return choice

    def _candidates(self, key: str | None) -> Collection[str] | None:
        """The replicas that have the adapter, and take something new; None: all."""
        if key is None and not self._quarantine.replicas:
            return None
        there = [name for name, known in self._replicas.items() if known.has(key)]
        return [name for name in there if name not in self._quarantine.replicas]

    def _send(self, call: Sequence[AcceptedRequest], choice: ReplicaChoice) -> None:
        """The sequences of a call share their prompt: it is read once, and booked for the first of them."""
        orders: list[Order] = []
        for live in call:
            place = self.places.put(live, choice.replica)
            live.has_advanced = False
            orders += live.commands(place.wire_id)
        self._router.sent(self._routed.of(call[0]), choice, self._clock())
        self._replicas[choice.replica].session.send(*orders)

    def _suspend(self, live: AcceptedRequest) -> None:
        """It waits for a place."""
        live.wait()
        self._quarantine.left(live)
        self._router.ended(live.request.id)
        self.places.wait(live)

    def _recall(self, live: AcceptedRequest, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """The replica that has it, if one has, need not compute it any more."""
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
