"""A replica in virtual time: the real scheduler, with step times from a cost curve."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from openai_cpu_server.contract.engine import EngineState
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, attended_pairs
from openai_cpu_server.contract.replica import HeldUpdate
from openai_cpu_server.contract.request import GenerationRequest, Priority
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Drafted, Sample, Step, StepResult, num_right
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.replicas.router import ReplicaReport
from openai_cpu_server.scheduler.cost_model import CopyPrice, CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import PrefixJournal, SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence
from openai_cpu_server.scheduler.speculation.drafts import LookupDrafter
from openai_cpu_server.scheduler.speculation.speculator import Speculator

_STEP_TOKENS = 256
_sample = functools.cache(Sample)


@dataclass(frozen=True)
class Machine:
    """Machine and model of a replica. The scheduler gets the curve."""

    curve: CostCurve
    step_ms: Callable[[Step, int], float] | None = None
    """Time of a step, by the cells in the pool, or None for the curve's, and copies of cells."""
    has_drafts: bool = False
    num_slots: int = 64
    kv_tokens: int = 16_384
    cache_blocks: int = 4_000
    """Blocks of 64 tokens."""
    noise: float = 0.1
    """Standard deviation of the logarithm of step times."""
    load_s: float = 20.0
    stride: int = 16
    """Most steps that are simulated as one, while all sequences only decode and no request waits. It ends
    with the step in which a request arrives."""


@dataclass(eq=False)
class Live:
    request: GenerationRequest
    answer: tuple[int, ...]
    blocks: tuple[int, ...]
    arrived_s: float
    session: str
    turn: int
    replica: str = ""
    output: list[int] = field(default_factory=list)
    first_s: float | None = None
    ended_s: float | None = None
    cached_tokens: int = 0
    num_moves: int = 0
    longest_pause_s: float = 0.0
    told_s: float = 0.0


class SimReplica:
    """The owner asks for the end of each step, and comes back then."""

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
            told=machine.curve,
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
        live.replica = self.name
        self._scheduler.sequences.submit(live.request, tuple(live.output), now_s=now_s)

    def interrupts_for(self, live: Live, now_s: float) -> bool:
        """Return True if the running step is discarded for this request, as the engine's core decides it."""
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
            self._elapsed_ms = self._computing_ms(step) * noise + self._copying.predict_ms(step.verbs)
        else:
            cells = POOL_BLOCK_TOKENS * self._scheduler.kv_stats.pool_blocks_used
            self._elapsed_ms = self._machine.step_ms(step, cells) * noise
        self._step, self._began_s = step, now_s
        self._num_steps = self._stride(step)
        self._ends_s = now_s + self._num_steps * self._elapsed_ms / 1000
        return self._ends_s

    def _computing_ms(self, step: Step) -> float:
        attended = sum(attended_pairs(span.start, span.num_tokens) for span in step.spans)
        size = step.num_tokens + step.padding
        return self._truth.predict_ms(size, attended) if size else 0.0

    def cut(self, now_s: float) -> float:
        """End the stride with the step that runs now, because a request has arrived. Return its end."""
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
        """Number of steps like this one if no request arrives: all sequences decode, and none ends."""
        participants = self._scheduler.participants(step)
        if len(participants) < len(self.live) or not participants or step.padding:
            return 1
        if any(len(span.tokens) > 1 or not span.sample for span in step.spans):
            return 1
        most_cells = self._ledger.num_free // len(participants) * self._ledger.block_size
        return max(1, min(self._machine.stride, most_cells, *(s.remaining - 1 for s in participants)))

    def _decode_on(self, participants: Iterable[Sequence], now_s: float) -> None:
        """Apply the steps after the first, as the scheduler would, without asking it."""
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
        return ReplicaReport(self.state, self._scheduler.expectations.forecast(), held)


def new_scheduler(
    *,
    num_slots: int,
    ledger: KVLedger,
    cache: SavedPrefixes,
    told: CostCurve,
    options: EngineOptions | None = None,
    outputs: int = _STEP_TOKENS,
    speculator: Speculator | None = None,
) -> Scheduler:
    return Scheduler(
        limits=StepLimits(num_slots, _STEP_TOKENS, outputs),
        ledger=ledger,
        cache=cache,
        cost=CostModel(told),
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
        live.longest_pause_s = max(live.longest_pause_s, now_s - live.told_s)
    live.told_s = now_s
