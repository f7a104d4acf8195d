"""Assignment of requests to replicas, and their moves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from openai_cpu_server.contract.engine import RequestState
from openai_cpu_server.contract.messages import CancelRequest, FinishReason
from openai_cpu_server.contract.replica import block_hashes
from openai_cpu_server.contract.request import Constraint, GenerationRequest
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.live import AcceptedRequest, AcceptedRequests, AnswerSink, Delivery
from openai_cpu_server.errors import GenerationFailed, ServerError
from openai_cpu_server.replicas.remote.session import ReplicaMember
from openai_cpu_server.replicas.router import ReplicaChoice, ReplicaRouter, RoutedRequest
from openai_cpu_server.replicas.wire import Order, wire_id

_LOSSES_UNTIL_SUSPECT = 2
"""Consecutive losses without output that make a suspect. A single one is mostly the machine's fault."""
_LOSSES_UNTIL_GUILTY = 3
"""Losses that convict a request that was on trial at the last."""
_MOST_LOSSES = 6
"""Losses that convict it even if requests of other API processes were always present."""


@dataclass(eq=False)
class Quarantine:
    """Trials of suspects, one at a time, each at a replica without other new requests. If it is lost, the
    suspect is to blame, unless another process had a request without output there."""

    trials: dict[str, AcceptedRequest] = field(default_factory=dict)

    def has_room(self, num_ready: int) -> bool:
        """Trials take at most half of the ready replicas, or one."""
        return len(self.trials) < max(1, num_ready // 2)

    @staticmethod
    def suspects(live: AcceptedRequest) -> bool:
        return live.suspicion >= _LOSSES_UNTIL_SUSPECT

    def end_trial(self, live: AcceptedRequest) -> bool:
        replicas = [replica for replica, suspect in self.trials.items() if suspect is live]
        for replica in replicas:
            del self.trials[replica]
        return bool(replicas)

    def lost(
        self, replica: str, accused: Iterable[AcceptedRequest], *, is_alone: bool
    ) -> AcceptedRequest | None:
        """Return the guilty request, which explains all losses, or None. `accused`: requests without output
        there; `is_alone`: none of them is another process's."""
        on_trial, guilty = self.trials.pop(replica, None), None
        for live in accused:
            live.suspicion += 1
            is_convicted = live is on_trial and is_alone and live.suspicion >= _LOSSES_UNTIL_GUILTY
            guilty = live if is_convicted or live.suspicion >= _MOST_LOSSES else guilty
        return guilty


@dataclass(eq=False)
class AssignedRequest:
    live: AcceptedRequest
    replica: str | None = None
    wire_id: str = ""
    num_attempts: int = 0
    avoids: frozenset[str] = frozenset()
    """Replicas that were lost with it, or have returned it."""
    _num_output: int = -1
    _blocks: tuple[int, ...] = ()
    """Cached, because hashing a long prompt takes as long as the rest of routing."""

    def routed(self) -> RoutedRequest:
        request, output = self.live.request, self.live.output
        if isinstance(request, GenerationRequest) and self._num_output != len(output):
            self._blocks = block_hashes((*request.tokens, *output), request.cells_namespace)
            self._num_output = len(output)
        num_tokens = request.num_tokens + len(output)
        return RoutedRequest(request.id, request.priority, num_tokens, self._blocks, self.avoids)


_MOVES_A_REPORT = 8
_WORTH_MOVING_S = 1.0
"""Least saving for which a waiting request moves; it must also be half of the remaining wait."""


class RequestAssignment:
    def __init__(
        self, replicas: Mapping[str, ReplicaMember], router: ReplicaRouter, clock: Callable[[], float]
    ) -> None:
        self.culprits = CulpritLedger(clock)
        self.delivery = Delivery(clock, self._has_left)
        self._replicas = replicas
        self._router = router
        self._clock = clock
        self._quarantine = Quarantine()
        self._requests: dict[str, AssignedRequest] = {}
        self._waiting: dict[str, AssignedRequest] = {}
        self._by_wire: dict[str, AssignedRequest] = {}

    @property
    def live(self) -> AcceptedRequests:
        return self.delivery.live

    def assigned_to(self, replica: str) -> list[AcceptedRequest]:
        return [placed.live for placed in self._by_wire.values() if placed.replica == replica]

    def find(self, replica: str, wire: str) -> AcceptedRequest | None:
        placed = self._by_wire.get(wire)
        return placed.live if placed is not None and placed.replica == replica else None

    # -- a `RequestProxy` --------------------------------------------------------------------------------

    def accept(self, call: Sequence[AcceptedRequest]) -> None:
        self.delivery.accept(call)
        for live in call:
            self._requests[live.request.id] = self._waiting[live.request.id] = AssignedRequest(live)
        self.place_waiting()

    def cancel(self, *request_ids: str) -> None:
        for request_id in request_ids:
            self._recall(request_id)
            self.delivery.forget(request_id)

    def stop(self, live: AcceptedRequest) -> None:
        live.is_stopping = True
        self._recall(live.request.id, FinishReason.STOP)

    def end_thinking(self, live: AcceptedRequest, ending: Constraint) -> None:
        live.end_thinking(ending)
        self._withdraw(live)
        self.place_waiting()

    def end(self, error: Callable[[], ServerError]) -> None:
        self.delivery.fail(list(self.live), error)

    # -- events of replicas ------------------------------------------------------------------------------

    def advance(self, live: AcceptedRequest) -> None:
        if live.has_advanced:
            return
        live.has_advanced = True
        self._router.began(live.request.id)
        self._clear(live)

    def displace(
        self, some: Sequence[AcceptedRequest], member: ReplicaMember, why: str, *, accuses: bool = True
    ) -> None:
        """Return requests to the waiting set. `accuses`: one of them may have caused the loss."""
        replica = member.session.replica
        guilty = None
        if accuses:
            accused = [one for one in some if one.state is RequestState.RUNNING and not one.has_advanced]
            guilty = self._quarantine.lost(replica, accused, is_alone=not member.is_shared)
        for live in some:
            if live is not guilty:
                self._requests[live.request.id].avoids |= {replica}
                self._unassign(live)
        if guilty is not None:
            for live in self.live:
                live.suspicion = 0
            message = f"Each replica that computed this request was lost; the last: {why}."
            self.culprits.book(guilty.request.account, guilty.call)
            self.delivery.fail([guilty], lambda: GenerationFailed(message))

    def empty(self, replica: str) -> bool:
        """Move requests off a departing replica if another can take them. Return True if none is left."""
        for live in self.assigned_to(replica):
            key = live.request.adapter
            if any(member.is_ready and member.has(key) for member in self._replicas.values()):
                self._withdraw(live)
        self.place_waiting()
        return not self.assigned_to(replica)

    def place_waiting(self) -> None:
        num_ready = sum(member.is_ready for member in self._replicas.values())
        if not num_ready:
            return  # many may wait for the first replica, and are not looked at whenever another comes
        self._try_suspects(num_ready)
        calls: dict[AnswerSink, list[AcceptedRequest]] = {}
        for live in self._in_order():
            if not self._quarantine.suspects(live):
                calls.setdefault(live.answer, []).append(live)
        for call in calls.values():
            if (choice := self._choose(call)) is not None:
                self._send(call, choice)

    def take_over(self, replica: str) -> None:
        if replica in self._quarantine.trials:
            return
        num_moved = 0
        for live in list(self.live):
            if (choice := self._better(live, replica)) is None:
                continue
            self._withdraw(live)
            self._send([live], choice)
            num_moved += 1
            if num_moved >= _MOVES_A_REPORT:
                return

    # -- inside ------------------------------------------------------------------------------------------

    def _better(self, live: AcceptedRequest, replica: str) -> ReplicaChoice | None:
        placed, now_s = self._requests[live.request.id], self._clock()
        if live.state is not RequestState.WAITING or placed.replica in (None, replica):
            return None
        if live.expected is None or (left_s := live.expected.first_token_s - now_s) < _WORTH_MOVING_S:
            return None
        if self._quarantine.suspects(live) or not self._replicas[replica].has(live.request.adapter):
            return None
        choice = self._router.choose(placed.routed(), now_s=now_s, among=[replica])
        is_better = choice and choice.expected_ms / 1000 <= min(left_s / 2, left_s - _WORTH_MOVING_S)
        return choice if is_better else None

    def _try_suspects(self, num_ready: int) -> None:
        for live in self._in_order():
            if not self._quarantine.suspects(live) or not self._quarantine.has_room(num_ready):
                continue
            if (choice := self._choose([live])) is None:
                continue
            for other in self.assigned_to(choice.replica):
                if not other.has_advanced:  # it must not be blamed for the loss of the replica
                    self._withdraw(other)
            self._quarantine.trials[choice.replica] = live
            self._send([live], choice)

    def _clear(self, live: AcceptedRequest) -> None:
        live.suspicion = 0
        if self._quarantine.end_trial(live):
            self.place_waiting()

    def _in_order(self) -> list[AcceptedRequest]:
        waiting = (placed.live for placed in self._waiting.values())
        return sorted(waiting, key=lambda live: live.request.priority)

    def _choose(self, call: Sequence[AcceptedRequest]) -> ReplicaChoice | None:
        """Return None if no replica is ready. Fail the call if none will ever have its adapter."""
        key, trials, members = call[0].request.adapter, self._quarantine.trials, self._replicas
        among: Collection[str] | None = None
        if key is not None or trials:
            among = [name for name, member in members.items() if member.has(key) and name not in trials]
        routed = self._requests[call[0].request.id].routed()
        choice = self._router.choose(routed, now_s=self._clock(), among=among)
        if choice is None and key is not None and not any(one.may_have(key) for one in members.values()):
            self.delivery.fail(call, lambda: GenerationFailed("Its adapter is no longer loaded."))
        return choice

    def _send(self, call: Sequence[AcceptedRequest], choice: ReplicaChoice) -> None:
        """The sequences of a call share their prompt, which is booked for the first one."""
        orders: list[Order] = []
        for live in call:
            name = live.request.id
            placed = self._requests[name]
            placed.replica, placed.wire_id = choice.replica, wire_id(name, placed.num_attempts)
            placed.num_attempts += 1
            self._by_wire[placed.wire_id] = placed
            self._waiting.pop(name, None)
            live.has_advanced = False
            orders += live.commands(placed.wire_id)
        self._router.sent(self._requests[call[0].request.id].routed(), choice, self._clock())
        self._replicas[choice.replica].session.send(*orders)

    def _withdraw(self, live: AcceptedRequest) -> None:
        self._recall(live.request.id)
        self._unassign(live)

    def _recall(self, name: str, reason: FinishReason = FinishReason.CANCELLED) -> None:
        placed = self._requests.get(name)
        member = self._replicas.get(placed.replica or "") if placed is not None else None
        if placed is not None and member is not None:
            member.session.send(CancelRequest(id=placed.wire_id, reason=reason))

    def _unassign(self, live: AcceptedRequest) -> None:
        live.wait()
        self._quarantine.end_trial(live)
        self._router.ended(live.request.id)
        placed = self._waiting[live.request.id] = self._requests[live.request.id]
        placed.replica = None
        self._by_wire.pop(placed.wire_id, None)

    def _has_left(self, live: AcceptedRequest) -> None:
        name = live.request.id
        placed = self._requests.pop(name)
        self._by_wire.pop(placed.wire_id, None)
        self._waiting.pop(name, None)
        self._router.ended(name)
        self._clear(live)
