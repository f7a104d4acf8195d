"""Runs a trace on many replicas in virtual time, with one queue of events and no real clock."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from time import thread_time

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.replica import block_hashes
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions, Autoscaler, FleetWatch
from openai_cpu_server.replicas.router import ReplicaReport, RoutedRequest
from simulation.replica import Live, Machine, SimReplica
from simulation.routing import Routing, routing
from simulation.turns import Texts, Turn, prompts, sessions

_SCALE_S = 2.0
_BEAT_S = 2.0
"""Interval of questions to a replica without news, because a router takes a silent one for lost."""


@dataclass(frozen=True)
class Fault:
    at_s: float
    replica: int
    is_drain: bool = False


@dataclass(frozen=True)
class Plan:
    machine: Machine
    num_replicas: int
    routing: str = "ours"
    num_routers: int = 1
    news_s: float = 0.25
    """Interval of replicas' reports, at ends of steps and whenever they become idle."""
    news_delay_s: float = 0.01
    """Delay from a replica to a router, and back."""
    lost_s: float = 0.5
    """Time from a replica's death to the replay of its requests elsewhere."""
    faults: tuple[Fault, ...] = ()
    autoscale: AutoscaleOptions | None = None
    options: EngineOptions = field(default_factory=lambda: EngineOptions(model_path=""))
    until_s: float = float("inf")
    seed: int = 1


@dataclass
class Outcome:
    requests: list[Live]
    replicas: list[SimReplica]
    seconds: float
    choosing_s: list[float]
    """Real CPU seconds of each choice: hashing blocks, choosing, and the accounts."""
    sizes: list[tuple[float, int, int]]
    """With an autoscaler: time, serving replicas, and wanted replicas."""
    replica_s: float
    moved: list[Live]


class _Simulation:
    def __init__(self, plan: Plan, turns: Sequence[Turn]) -> None:
        self._plan = plan
        self._now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ticks = itertools.count()
        self._texts = Texts(plan.seed)
        self._sessions = {
            name: (iter(ones), prompts(ones, self._texts)) for name, ones in sessions(turns).items()
        }
        self._random = Random(plan.seed)
        self._routers = [self._router(number) for number in range(plan.num_routers)]
        self._replicas: dict[str, SimReplica] = {}
        self._all: list[SimReplica] = []
        self._epochs: dict[str, int] = {}
        """By replica: number of its step. The end of an interrupted step is ignored."""
        self._told_s: dict[str, float] = {}
        self._reports: dict[str, ReplicaReport] = {}
        self._born_s: dict[str, float] = {}
        self._unplaced: list[tuple[Live, Routing]] = []
        self._routing_of: dict[str, Routing] = {}
        self._watch = FleetWatch()
        self._scaler = Autoscaler(plan.autoscale) if plan.autoscale else None
        self._num_open = 0
        self.outcome = Outcome([], self._all, 0.0, [], [], 0.0, [])

    def run(self) -> Outcome:
        for _ in range(self._plan.num_replicas):
            self._appear(self._new_replica())
        for name in self._sessions:
            self._num_open += 1
            self._next_turn(name)
        for fault in self._plan.faults:
            self._at(fault.at_s, lambda fault=fault: self._strike(fault))
        if self._scaler:
            self._at(0.0, self._scale)
        while self._events and self._num_open and self._events[0][0] <= self._plan.until_s:
            self._now_s, _, happen = heapq.heappop(self._events)
            happen()
        self.outcome.seconds = self._now_s
        for name in list(self._replicas):
            self._vanish(name)
        return self.outcome

    def _router(self, number: int) -> Routing:
        plan = self._plan
        return routing(plan.routing, seed=100 * plan.seed, number=number, num_routers=plan.num_routers)

    def _at(self, when_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when_s, next(self._ticks), happen))

    # -- requests ----------------------------------------------------------------------------------------

    def _next_turn(self, session: str) -> None:
        turns, texts = self._sessions[session]
        turn = next(turns, None)
        if turn is None:
            self._num_open -= 1
            return
        self._at(self._now_s + turn.at_s, lambda: self._arrive(turn, texts))

    def _arrive(self, turn: Turn, texts: Iterator[tuple[tuple[int, ...], tuple[int, ...]]]) -> None:
        prompt, answer = next(texts)
        number = len(self.outcome.requests)
        request = GenerationRequest(
            id=str(number),
            tokens=prompt,
            max_tokens=len(answer),
            sampling=Sampling(seed=0),
            priority=Priority.BATCH if turn.batch else Priority.INTERACTIVE,
            cache_namespace=turn.key,
        )
        live = Live(request, answer, (), self._now_s, turn.session, number, told_s=self._now_s)
        self.outcome.requests.append(live)
        self._place(live, self._random.choice(self._routers), frozenset())

    def _place(self, live: Live, router: Routing, avoids: frozenset[str]) -> None:
        began = thread_time()
        tokens = live.request.tokens if not live.output else (*live.request.tokens, *live.output)
        blocks = block_hashes(tokens, live.request.cells_namespace)
        wanted = RoutedRequest(live.request.id, live.request.priority, len(tokens), blocks, avoids=avoids)
        choice = router.choose(wanted, now_s=self._now_s)
        if choice is None:
            self._unplaced.append((live, router))
            return
        router.sent(wanted, choice, self._now_s)
        self.outcome.choosing_s.append(thread_time() - began)
        self._routing_of[live.request.id] = router
        self._at(self._now_s + self._plan.news_delay_s, lambda: self._submit(live, choice.replica))

    def _submit(self, live: Live, name: str) -> None:
        replica = self._replicas.get(name)
        if replica is None:  # it has died while this was on its way
            self._move(live, name)
            return
        is_interrupted = replica.interrupts_for(live, self._now_s)
        replica.submit(live, self._now_s)
        if is_interrupted:
            replica.interrupt(self._now_s)
        if not replica.is_computing:
            self._begin_step(replica)
        elif replica.is_striding:
            self._end_at(replica, replica.cut(self._now_s))

    def _move(self, live: Live, lost: str) -> None:
        router = self._routing_of.pop(live.request.id)
        router.ended(live.request.id)
        if not live.num_moves:
            self.outcome.moved.append(live)
        live.num_moves += 1
        self._place(live, router, frozenset({lost}))

    # -- steps -------------------------------------------------------------------------------------------

    def _begin_step(self, replica: SimReplica) -> None:
        self._end_at(replica, replica.begin_step(self._now_s))

    def _end_at(self, replica: SimReplica, when_s: float) -> None:
        epoch = self._epochs[replica.name] = self._epochs.get(replica.name, 0) + 1
        self._at(when_s, lambda: self._end_step(replica, epoch))

    def _end_step(self, replica: SimReplica, epoch: int) -> None:
        if replica.name not in self._replicas or self._epochs[replica.name] != epoch:
            return
        fresh = [live for live in replica.live.values() if live.first_s is None]
        for live in replica.end_step(self._now_s):
            self._routing_of.pop(live.request.id).ended(live.request.id)
            self._next_turn(live.session)
        for live in fresh:
            if live.first_s is not None and (router := self._routing_of.get(live.request.id)):
                router.began(live.request.id)
        is_due = self._now_s - self._told_s.get(replica.name, -1.0) >= self._plan.news_s
        if replica.has_work:
            self._begin_step(replica)
        if is_due or not replica.has_work:
            self._tell(replica)
        if replica.state is EngineState.DRAINING and not replica.live:
            self._vanish(replica.name)

    def _tell(self, replica: SimReplica) -> None:
        report, made_s = replica.report(with_prefixes=self._plan.routing == "ours"), self._now_s
        self._told_s[replica.name] = made_s
        self._reports[replica.name] = report
        self._at(made_s + self._plan.news_delay_s, lambda: self._hear(replica.name, report, made_s))

    def _hear(self, name: str, report: ReplicaReport, made_s: float) -> None:
        if name not in self._replicas:
            return
        for router in self._routers:
            router.reported(name, report, made_s=made_s, now_s=self._now_s)

    # -- replicas ----------------------------------------------------------------------------------------

    def _new_replica(self) -> SimReplica:
        number = len(self._all)
        replica = SimReplica(f"r{number}", self._plan.machine, self._plan.options, self._plan.seed + number)
        self._all.append(replica)
        self._replicas[replica.name] = replica
        self._born_s[replica.name] = self._now_s
        return replica

    def _appear(self, replica: SimReplica) -> None:
        if replica.name not in self._replicas:
            return
        replica.state = EngineState.READY
        self._beat(replica)
        self._at(self._now_s + self._plan.news_delay_s, self._place_all)

    def _beat(self, replica: SimReplica) -> None:
        if replica.name not in self._replicas:
            return
        if self._now_s - self._told_s.get(replica.name, -_BEAT_S) >= _BEAT_S:
            self._tell(replica)
        self._at(self._now_s + _BEAT_S, lambda: self._beat(replica))

    def _place_all(self) -> None:
        waiting, self._unplaced = self._unplaced, []
        for live, router in waiting:
            self._place(live, router, frozenset())

    def _vanish(self, name: str) -> SimReplica:
        replica = self._replicas.pop(name)
        self.outcome.replica_s += self._now_s - self._born_s.pop(name)
        self._reports.pop(name, None)
        for router in self._routers:
            router.gone(name)
        return replica

    def _load(self) -> None:
        replica = self._new_replica()
        replica.state = EngineState.LOADING
        self._reports[replica.name] = ReplicaReport(EngineState.LOADING)
        self._at(self._now_s + self._plan.machine.load_s, lambda: self._appear(replica))

    def _drain(self, replica: SimReplica) -> None:
        replica.state = EngineState.DRAINING
        self._tell(replica)
        if not replica.live:
            self._at(self._now_s + 1.0, lambda: self._end_drained(replica))

    def _end_drained(self, replica: SimReplica) -> None:
        if not replica.live and replica.name in self._replicas:
            self._vanish(replica.name)

    def _strike(self, fault: Fault) -> None:
        replica = list(self._replicas.values())[fault.replica]
        if fault.is_drain:
            self._drain(replica)
            return
        self._vanish(replica.name)
        for live in replica.live.values():
            self._at(self._now_s + self._plan.lost_s, lambda live=live: self._move(live, replica.name))
        if not self._scaler:
            self._load()

    def _scale(self) -> None:
        assert self._scaler is not None
        fleet = self._watch.look(self._reports, self._now_s, num_unplaced=len(self._unplaced))
        wanted = self._scaler.decide(fleet, self._now_s)
        serving = [r for r in self._replicas.values() if r.state is EngineState.READY]
        self.outcome.sizes.append((self._now_s, len(serving), wanted))
        for _ in range(wanted - fleet.num_present):
            self._load()
        leaving = sorted(serving, key=lambda r: len(r.live))[: max(0, fleet.num_present - wanted)]
        for replica in leaving:
            self._drain(replica)
        self._at(self._now_s + _SCALE_S, self._scale)


def simulate(plan: Plan, turns: Sequence[Turn]) -> Outcome:
    return _Simulation(plan, turns).run()
