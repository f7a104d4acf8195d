"""Three models that share the cores, in simulated time: their real schedulers, a cost curve, and `CoreTurns`.

What the law says of one model must hold beside others: the first token of an interactive request comes no
later beside another model's batch work than beside the same work of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from openai_cpu_server.contract.messages import EngineOptions, GrantTurn, ShortenTurn
from openai_cpu_server.contract.model_info import CostCurve
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.engine_client.turns import CoreTurns, Decision
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy
from tests.fakes import FAKE_INFO, FakeBackend
from tests.scheduler.driver import request

BATCH, INTERACTIVE = Priority.BATCH, Priority.INTERACTIVE
CURVE = CostCurve(step_ms=((1, 20.0), (16, 80.0), (64, 190.0), (256, 600.0)), attended_ms=0.0004)
"""About that of 10^9 parameters on two cores."""
THRESHOLD_S = 0.1
ABORT_S = 0.02
"""How long a step that is interrupted goes on."""
HAND_OVER_S = 0.001


class Model:
    """One engine: its scheduler and backend."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.backend = FakeBackend(FAKE_INFO)
        self.scheduler = Scheduler(
            limits=StepLimits(32, 256, 128),
            ledger=KVLedger(FAKE_INFO.kv_tokens // 16, 16),
            cache=SavedPrefixes(0),
            cost=CostModel(CURVE),
            options=step_options(EngineOptions(model_path="")),
            policy=PriorityPolicy(),
        )
        self.was_interrupted = False
        self.computed = dict.fromkeys(Priority, 0)
        """Tokens, by priority."""


Arrival = tuple[float, str, GenerationRequest]
"""When (s), for which model, and what."""


class Machine:
    """The models of one server, which compute one after the other."""

    def __init__(self, names: Iterable[str], arrivals: Iterable[Arrival], *, floor: float = 0.1) -> None:
        self.now_s = 0.0
        self.models = {name: Model(name) for name in names}
        self.turns = CoreTurns(batch_floor=floor)
        self.first_token_s: dict[str, float] = {}
        """Time from arrival to first token, by request."""
        self._arrived_s: dict[str, float] = {}
        self._arrivals = sorted(arrivals, key=lambda arrival: arrival[0])
        self._until_s: float | None = None
        self._is_beside = False
        self._interrupts = False
        for name in self.models:
            self.turns.join(name, 0.0)

    def run(self, end_s: float) -> None:
        while self.now_s < end_s:
            self._take_arrivals(self.now_s)
            name = self.turns.holder
            if name is not None:
                self._step(self.models[name])
            elif self._arrivals:
                self.now_s = max(self.now_s, self._arrivals[0][0])
            else:
                return

    def _take_arrivals(self, until_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] <= until_s:
            arrived_s, name, one = self._arrivals.pop(0)
            self._arrived_s[one.id] = arrived_s
            self.models[name].scheduler.sequences.submit(one, now_s=arrived_s)
            self.turns.wants(
                name, self.models[name].scheduler.sequences.best_priority, max(arrived_s, self.now_s)
            )
            self._act()

    def _act(self) -> None:
        match self.turns.decide(self.now_s):
            case Decision(command=GrantTurn(limit_ms=limit_ms, beside_interactive=is_beside)):
                self._until_s = None if limit_ms is None else self.now_s + limit_ms / 1000
                self._is_beside, self._interrupts = is_beside, False
            case Decision(command=ShortenTurn(after_ms=after_ms, interrupts=interrupts)):
                self._until_s = self.now_s + after_ms / 1000
                self._interrupts = interrupts

    def _step(self, model: Model) -> None:
        scheduler = model.scheduler
        step = scheduler.schedule(beside_interactive=self._is_beside or model.was_interrupted)
        end_s = self.now_s + scheduler.predicted_ms(step) / 1000
        may_interrupt = step.may_be_interrupted and not model.was_interrupted
        model.was_interrupted = may_interrupt and self._interrupted_at(model, end_s) is not None
        if model.was_interrupted:
            model.backend.execute(Step(verbs=step.verbs))
            scheduler.apply(step, StepResult(interrupted=True))
        else:
            self._arrive_during(end_s)
            for span, sequence in zip(step.spans, scheduler.participants(step), strict=True):
                model.computed[sequence.request.priority] += span.num_tokens
            self._apply(model, scheduler.apply(step, model.backend.execute(step)))
        self._end_turn(model)

    def _interrupted_at(self, model: Model, end_s: float) -> float | None:
        """Let those arrive who come during a step, until one interrupts it."""
        while self._arrivals and self._arrivals[0][0] < end_s:
            at_s, name, one = self._arrivals[0]
            self.now_s = max(self.now_s, at_s)
            self._take_arrivals(self.now_s)
            is_own = name == model.name and one.priority is INTERACTIVE
            if (is_own or self._interrupts) and end_s - self.now_s > THRESHOLD_S:
                self.now_s += ABORT_S
                return at_s
        return None

    def _arrive_during(self, end_s: float) -> None:
        while self._arrivals and self._arrivals[0][0] < end_s:
            self.now_s = max(self.now_s, self._arrivals[0][0])
            self._take_arrivals(self.now_s)
        self.now_s = end_s

    def _apply(self, model: Model, advances: Iterable[object]) -> None:
        for advance in advances:
            sequence = advance.sequence  # type: ignore[attr-defined]
            if advance.samples:  # type: ignore[attr-defined]
                arrived_s = self._arrived_s[sequence.request.id]
                self.first_token_s.setdefault(sequence.request.id, self.now_s - arrived_s)
            if sequence.remaining == 0:
                model.scheduler.sequences.complete(sequence)

    def _end_turn(self, model: Model) -> None:
        work = model.scheduler.sequences.best_priority
        is_over = self._until_s is not None and self.now_s >= self._until_s
        if work is None or is_over:
            self.now_s += HAND_OVER_S
            self.turns.given_back(model.name, work, self.now_s)
        else:
            self.turns.wants(model.name, work, self.now_s)
        self._act()


def batch_of(name: str, count: int = 60, at_s: float = 0.0) -> list[Arrival]:
    return [
        (at_s, name, request(f"{name}-batch{i}", prompt=120, output=40, priority=BATCH)) for i in range(count)
    ]


def people(name: str, every_s: float, count: int, output: int = 10) -> list[Arrival]:
    """Their moments are spread evenly: steps of batch work are met at any phase."""
    return [
        (
            2.0 + every_s * i + every_s * (0.618 * i % 1),
            name,
            request(f"{name}-person{i}", prompt=30, output=output),
        )
        for i in range(count)
    ]


def waits_s(machine: Machine, prefix: str) -> list[float]:
    found = sorted(wait for name, wait in machine.first_token_s.items() if name.startswith(prefix))
    assert found
    return found


def run(arrivals: Iterable[Arrival], end_s: float = 60.0, names: str = "abc") -> Machine:
    machine = Machine(names, arrivals)
    machine.run(end_s)
    return machine


def test_first_tokens_beside_others_batch_work_are_no_later_than_beside_ones_own() -> None:
    """At three rates together: at one alone it is chance which phase of a step people meet."""
    own: list[float] = []
    others: list[float] = []
    for every_s in (0.35, 0.7, 1.5):
        asked, end_s = people("a", every_s, 40), 40 * every_s + 5
        own += waits_s(run([*batch_of("a", 300), *asked], end_s), "a-person")
        others += waits_s(run([*batch_of("b", 150), *batch_of("c", 150), *asked], end_s), "a-person")
    assert len(own) == len(others) == 120
    for share in (0.5, 0.95, 0.999):
        assert sorted(others)[int(share * 120)] <= sorted(own)[int(share * 120)] + ABORT_S


def test_a_stream_waits_no_longer_for_another_models_prompt_than_for_one_of_its_own() -> None:
    """A long prompt is read in steps that are as short as beside a stream of the same model."""
    stream: list[Arrival] = [(0.0, "a", request("a-stream", output=300))]
    long = request("b-long", prompt=1500, output=2)
    own = _longest_pause(stream, (1.0, "a", long))
    other = _longest_pause(stream, (1.0, "b", long))
    assert other <= own + 0.03


def _longest_pause(stream: list[Arrival], long: Arrival) -> float:
    machine = Machine("ab", [*stream, long])
    tokens = _watch(machine, lambda: machine.models["a"].computed[INTERACTIVE])
    return max(after - before for before, after in pairwise(tokens))


def _watch(machine: Machine, count: Callable[[], int]) -> list[float]:
    """When the count grew, from second 1 on."""
    seen: list[float] = []
    known = 0
    while machine.now_s < 6.0:
        machine.run(machine.now_s + 1e-6)
        if count() != known and machine.now_s > 1.0:
            seen.append(machine.now_s)
        known = count()
    return seen
