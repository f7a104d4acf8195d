"""Runs a trace on many replicas in virtual time: the real scheduler, router and autoscaler, with one queue of
events and step times from a cost curve."""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from time import thread_time

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.replica import HeldUpdate, block_hashes
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Drafted, Sample, Step, StepResult, num_right
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.replicas.autoscaling import AutoscaleOptions, Autoscaler, FleetMonitor
from openai_cpu_server.replicas.router import ReplicaChoice, ReplicaReport, ReplicaRouter, RoutedRequest
from openai_cpu_server.scheduler.cost_model import CopyPrice, CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal, SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy
from openai_cpu_server.scheduler.sequence import Sequence as RunningSequence
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator
from simulation.turns import Texts, Turn, prompts, sessions

_STEP_TOKENS = 256
_sample = functools.cache(Sample)


@dataclass(frozen=True)
class Machine:
    """Machine and model of a replica. The scheduler gets the curve."""

    curve: CostCurve
    step_ms: Callable[[Step, int], float] | None = None
    """Time of a step by the cells in the pool, or None for the curve's and copies of cells."""
    has_drafts: bool = False
    num_slots: int = 64
    kv_tokens: int = 16_384
    cache_blocks: int = 4_000
    """Blocks of 64 tokens."""
    noise: float = 0.1
    """Standard deviation of the logarithm of step times."""
    load_s: float = 20.0
    stride: int = 16
    """Most steps simulated as one, while all sequences decode and no request waits. An arriving request ends
    it with its step."""


@dataclass(eq=False)
class Live:
    request: GenerationRequest
    answer: tuple[int, ...]
    arrived_s: float
    session: str
    output: list[int] = field(default_factory=list)
    first_s: float | None = None
    ended_s: float | None = None
    cached_tokens: int = 0
    num_moves: int = 0
    longest_pause_s: float = 0.0
    last_token_s: float = 0.0


class SimReplica:
    """Replica whose owner gets the end of each step, and returns at that time."""

    def __init__(self, name: str, machine: Machine, options: EngineOptions, seed: int) -> None:
        self.name = name
        self.state = EngineState.READY
        self.busy_s = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.live: dict[str, Live] = {}
        self._machine = machine
        self._truth = CostModel(machine.curve)
        self._copying = CopyPrice()
        self._noise = Random(seed)
        self._journal = PrefixJournal()
        self._version = 0
        self._ledger = KVLedger(machine.kv_tokens // POOL_BLOCK_TOKENS, POOL_BLOCK_TOKENS)
        self._scheduler = new_scheduler(
            num_slots=machine.num_slots,
            ledger=self._ledger,
            cache=SavedPrefixes(machine.cache_blocks, journal=self._journal),
            curve=machine.curve,
            options=options,
            speculator=Speculator(LookupDrafter(frozenset({0}))) if machine.has_drafts else None,
        )
        self._step: Step | None = None
        self._elapsed_ms = 0.0
        self._num_steps = 1
        self._preempt_ms = options.scheduling.preempt_threshold_ms
        self._began_s = self._ends_s = 0.0
        self._was_interrupted = False

    @property
    def is_computing(self) -> bool:
        return self._step is not None

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def submit(self, live: Live, now_s: float) -> None:
        self.live[live.request.id] = live
        self._scheduler.sequences.submit(live.request, tuple(live.output), now_s=now_s)

    def interrupts_for(self, live: Live, now_s: float) -> bool:
        """Return True if the engine's core would discard the running step for this request."""
        if self._step is None or self._was_interrupted or live.request.priority is not Priority.INTERACTIVE:
            return False
        left_ms = 1000 * (self._ends_s - now_s)
        return left_ms > self._preempt_ms and self._step.may_be_interrupted

    def interrupt(self, now_s: float) -> None:
        assert self._step is not None
        self.busy_s += now_s - self._began_s
        self._scheduler.apply(self._step, StepResult(interrupted=True))
        self._step, self._was_interrupted = None, True

    def begin_step(self, now_s: float) -> float:
        step = self._scheduler.schedule(beside_interactive=self._was_interrupted)
        noise = math.exp(self._noise.gauss(0, self._machine.noise))
        if self._machine.step_ms is None:
            attended = sum(attended_pairs(span.start, span.num_tokens) for span in step.spans)
            size = step.num_tokens + step.padding
            computing_ms = self._truth.predict_ms(size, attended) if size else 0.0
            self._elapsed_ms = computing_ms * noise + self._copying.predict_ms(step.verbs)
        else:
            cells = POOL_BLOCK_TOKENS * self._scheduler.kv_stats.pool_blocks_used
            self._elapsed_ms = self._machine.step_ms(step, cells) * noise
        self._step, self._began_s = step, now_s
        self._num_steps = self._stride(step)
        self._ends_s = now_s + self._num_steps * self._elapsed_ms / 1000
        return self._ends_s

    def cut(self, now_s: float) -> float:
        """End the stride with the running step, because a request has arrived, and return its end."""
        passed = math.ceil(1000 * (now_s - self._began_s) / max(self._elapsed_ms, 1e-9))
        self._num_steps = min(self._num_steps, max(1, passed))
        self._ends_s = self._began_s + self._num_steps * self._elapsed_ms / 1000
        return self._ends_s

    @property
    def is_striding(self) -> bool:
        return self._step is not None and self._num_steps > 1

    def end_step(self, now_s: float) -> list[Live]:
        assert self._step is not None
        step, self._step, self._was_interrupted = self._step, None, False
        self.busy_s += self._num_steps * self._elapsed_ms / 1000
        participants = self._scheduler.participants(step)
        result = _executed(step, {s.slot: self.live[s.request.id] for s in participants})
        ended: list[Live] = []
        first_end_s = now_s - (self._num_steps - 1) * self._elapsed_ms / 1000
        for advance in self._scheduler.apply(step, result, self._elapsed_ms):
            live = self.live[advance.sequence.request.id]
            _deliver(live, [sample.token for sample in advance.samples], first_end_s)
            self.output_tokens += len(advance.samples)
            if advance.sequence.remaining == 0:
                live.cached_tokens = advance.sequence.cached_tokens or 0
                self.prompt_tokens += len(live.request.tokens)
                self.cached_tokens += live.cached_tokens
                self._scheduler.sequences.complete(advance.sequence)
                del self.live[live.request.id]
                live.ended_s = now_s
                ended.append(live)
        if self._num_steps > 1:
            self._decode_on(participants, now_s)
        return ended

    def _stride(self, step: Step) -> int:
        """Count equal steps, in which all sequences decode and none ends, if no request arrives."""
        participants = self._scheduler.participants(step)
        if len(participants) < len(self.live) or not participants or step.padding:
            return 1
        if any(len(span.tokens) > 1 or not span.sample for span in step.spans):
            return 1
        most_cells = self._ledger.num_free // len(participants) * self._ledger.block_size
        return max(1, min(self._machine.stride, most_cells, *(s.remaining - 1 for s in participants)))

    def _decode_on(self, participants: Iterable[RunningSequence], now_s: float) -> None:
        """Apply the steps after the first without calling the scheduler."""
        num = self._num_steps - 1
        for sequence in participants:
            live = self.live.get(sequence.request.id)
            if live is None:
                continue
            coming = live.answer[len(live.output) : len(live.output) + num]
            sequence.computed += num
            sequence.tokens += coming
            self._ledger.grow(sequence.slot, sequence.computed)
            live.longest_pause_s = max(live.longest_pause_s, self._elapsed_ms / 1000)
            _deliver(live, coming, now_s)
            self.output_tokens += num
            assert sequence.remaining > 0

    def report(self, *, with_prefixes: bool) -> ReplicaReport:
        held = None
        if with_prefixes and (news := self._journal.take()) is not None:
            self._version += 1
            held = HeldUpdate(version=self._version, saved=news.saved, dropped=news.dropped)
        return ReplicaReport(self.state, self._scheduler.eta_estimator.forecast(), held)


def new_scheduler(
    *,
    num_slots: int,
    ledger: KVLedger,
    cache: SavedPrefixes,
    curve: CostCurve,
    options: EngineOptions | None = None,
    outputs: int = _STEP_TOKENS,
    speculator: Speculator | None = None,
) -> Scheduler:
    return Scheduler(
        limits=StepLimits(num_slots, _STEP_TOKENS, outputs),
        ledger=ledger,
        cache=cache,
        cost=CostModel(curve),
        options=step_options(options or EngineOptions(model_path="")),
        policy=PriorityPolicy(),
        speculator=speculator,
    )


def _executed(step: Step, served: Mapping[int, Live]) -> StepResult:
    """A known token for each sequence, and one more for each right draft token."""
    sampling = [span for span in step.spans if span.sample]
    outputs = {span.slot: _coming(span.draft, served[span.slot]) for span in sampling}
    return StepResult(
        samples={slot: tokens[0] for slot, tokens in outputs.items()},
        further={slot: tokens[1:] for slot, tokens in outputs.items() if len(tokens) > 1},
        drafted={
            span.slot: Drafted(len(span.draft), len(outputs[span.slot]) - 1)
            for span in sampling
            if span.draft
        },
        padding=step.padding,
    )


def _coming(draft: tuple[int, ...], live: Live) -> tuple[Sample, ...]:
    coming = live.answer[len(live.output) : len(live.output) + len(draft) + 1]
    return tuple(map(_sample, coming[: num_right(draft, coming) + 1]))


def _deliver(live: Live, tokens: Iterable[int], now_s: float) -> None:
    before = len(live.output)
    live.output.extend(tokens)
    if len(live.output) == before:
        return
    if live.first_s is None:
        live.first_s = now_s
    elif len(live.output) == before + 1:
        live.longest_pause_s = max(live.longest_pause_s, now_s - live.last_token_s)
    live.last_token_s = now_s


class PlainRouter:
    """Chooses replicas in turns, or the one with the fewest requests of this router. Offers what
    `ReplicaRouter` does."""

    def __init__(self, begin: float, random: Random | None = None) -> None:
        """`begin`: 0 is the first replica, 1 behind the last, so that routers differ. `random`: chooses among
        equals with the fewest requests."""
        self._ready: list[str] = []
        self._num_live: Counter[str] = Counter()
        self._places: dict[str, str] = {}
        self._begin = begin
        self._random = random
        self._next = 0

    def choose(self, wanted: RoutedRequest, *, now_s: float) -> ReplicaChoice | None:
        if not self._ready:
            return None
        if self._random is not None:
            draw = self._random.random
            return ReplicaChoice(min(self._ready, key=lambda one: (self._num_live[one], draw())), 0, 0.0)
        self._next += 1
        place = self._next + int(self._begin * len(self._ready))
        return ReplicaChoice(self._ready[place % len(self._ready)], 0, 0.0)

    def reported(self, replica: str, report: ReplicaReport, *, made_s: float, now_s: float) -> None:
        is_ready = report.state is EngineState.READY
        if is_ready and replica not in self._num_live:
            self._ready.append(replica)
            self._num_live[replica] = 0
        elif not is_ready:
            self.gone(replica)

    def gone(self, replica: str) -> None:
        if replica in self._num_live:
            self._ready.remove(replica)
            del self._num_live[replica]

    def sent(self, wanted: RoutedRequest, choice: ReplicaChoice, now_s: float) -> None:
        self._places[wanted.id] = choice.replica
        self._num_live[choice.replica] += 1

    def began(self, name: str) -> None: ...

    def ended(self, name: str) -> None:
        replica = self._places.pop(name, None)
        if replica is not None and replica in self._num_live:
            self._num_live[replica] -= 1


ROUTINGS = ("round robin", "least loaded", "ours")
Routing = ReplicaRouter | PlainRouter


def routing(name: str, seed: int, number: int, num_routers: int) -> Routing:
    """Return the router of this number."""
    if name == "round robin":
        return PlainRouter(number / num_routers)
    if name == "least loaded":
        return PlainRouter(0.0, Random(seed + number))
    return ReplicaRouter(Random(seed + number), num_routers=num_routers)


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
    """Time, serving replicas and wanted replicas, with an autoscaler."""
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
        self._routers = [
            routing(plan.routing, 100 * plan.seed, number, plan.num_routers)
            for number in range(plan.num_routers)
        ]
        self._replicas: dict[str, SimReplica] = {}
        self._all: list[SimReplica] = []
        self._epochs: dict[str, int] = {}
        """Step number by replica. The end of an interrupted step is ignored."""
        self._reported_s: dict[str, float] = {}
        self._reports: dict[str, ReplicaReport] = {}
        self._born_s: dict[str, float] = {}
        self._unplaced: list[tuple[Live, Routing]] = []
        self._routing_of: dict[str, Routing] = {}
        self._watch = FleetMonitor()
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
        live = Live(request, answer, self._now_s, turn.session, last_token_s=self._now_s)
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
            self._end_at(replica, replica.begin_step(self._now_s))
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
        is_due = self._now_s - self._reported_s.get(replica.name, -1.0) >= self._plan.news_s
        if replica.has_work:
            self._end_at(replica, replica.begin_step(self._now_s))
        if is_due or not replica.has_work:
            self._report(replica)
        if replica.state is EngineState.DRAINING and not replica.live:
            self._vanish(replica.name)

    def _report(self, replica: SimReplica) -> None:
        report, made_s = replica.report(with_prefixes=self._plan.routing == "ours"), self._now_s
        self._reported_s[replica.name] = made_s
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
        if self._now_s - self._reported_s.get(replica.name, -_BEAT_S) >= _BEAT_S:
            self._report(replica)
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
        self._report(replica)

        def vanish() -> None:
            if not replica.live and replica.name in self._replicas:
                self._vanish(replica.name)

        if not replica.live:
            self._at(self._now_s + 1.0, vanish)

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
