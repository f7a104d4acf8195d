"""Driver of a scheduler over the fake backend. The ledger checks itself after every step.

Every request must end with the output that it has on an idle machine. The driver compares them at each end,
so that the stories need not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from openai_cpu_server.contract.messages import Experiment
from openai_cpu_server.contract.request import GenerationRequest, Priority, Sampling
from openai_cpu_server.contract.step import Step, StepResult
from openai_cpu_server.errors import ConstraintFailed
from openai_cpu_server.scheduler.compose import StepOptions
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.plan import StepSize
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import PriorityPolicy, Sequence, SequenceStatus
from openai_cpu_server.scheduler.speculation.drafts import Drafter, ModelDrafter, SequenceDraft
from openai_cpu_server.scheduler.speculation.speculator import Speculator
from tests.fakes import END_TOKEN, FAKE_INFO, STATEFUL, FakeBackend, adapted, forced_token, next_token

Spans = dict[str, int]  # tokens that each request computed in a step


def request(
    name: str, prompt: int = 4, output: int = 4, priority: Priority = Priority.INTERACTIVE, **more: object
) -> GenerationRequest:
    tokens = tuple((sum(name.encode()) + i) % 200 + 2 for i in range(prompt))
    base = GenerationRequest(
        id=name, tokens=tokens, max_tokens=output, sampling=Sampling(seed=1), priority=priority
    )
    return msgspec.structs.replace(base, **more)


def alone(generation: GenerationRequest) -> list[int]:
    tokens = list(generation.tokens)
    for _ in range(generation.max_tokens):
        tokens.append(_next_alone(generation, tokens))
        if generation.constraint and tokens[-1] == END_TOKEN:
            break
    return tokens[len(generation.tokens) :]


def _next_alone(generation: GenerationRequest, tokens: list[int]) -> int:
    output = tokens[len(generation.tokens) :]
    forced = forced_token(generation.constraint, output) if generation.constraint else None
    return next_token(adapted(generation.adapter, tokens)) if forced is None else forced


FAULTY = 299  # the sequence that computes this token fails


class TokenCost:
    """Cost of a millisecond a token. Sizes in `tiles` are cheaper than those just below."""

    def __init__(self, tiles: tuple[int, ...] = (), step_ms: float = 0.0, chunk: int | None = None) -> None:
        """`step_ms`: fixed cost of a step. `chunk`: tokens from which larger steps are not cheaper."""
        self._step_ms = step_ms
        self._chunk = chunk
        self._tiles = tiles
        self.learned: list[tuple[StepSize, float]] = []

    def predict_ms(self, size: StepSize, attended: int = 0) -> float:
        assert attended >= 0
        if isinstance(size, int):
            return self._step_ms + size
        return sum(self._step_ms + each.tokens for each in size)

    def cheapest_size(self, num_tokens: int, limit: int) -> int:
        return next((t for t in self._tiles if t - 8 < num_tokens <= t <= limit), num_tokens)

    def free_size(self, num_tokens: int, limit: int) -> int:
        return self.cheapest_size(num_tokens, limit)

    def chunk_size(self, limit: int) -> int:
        return min(limit, self._chunk or limit)

    def refine(self, size: StepSize, attended: int, actual_ms: float) -> None:
        self.learned.append((size, actual_ms))


class KnowingDrafter:
    """Drafter that knows up to seven of the next tokens. Each of them is wrong with the chance `errors`."""

    def __init__(self, seed: int = 0, *, errors: float = 0.25) -> None:
        self._random = random.Random(seed)
        self._errors = errors
        self.forgotten: list[str] = []

    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        tokens = list(sequence.tokens)
        while len(tokens) < len(sequence.tokens) + min(limit, self._random.randrange(8)):
            token = self._next(sequence.request, tokens)
            if token == END_TOKEN:
                break
            tokens.append(token)
        draft = tuple(tokens[len(sequence.tokens) :])
        return SequenceDraft(draft, (1.0,) * len(draft))

    def forget(self, sequence: Sequence) -> None:
        self.forgotten.append(sequence.request.id)

    def _next(self, generation: GenerationRequest, tokens: list[int]) -> int:
        if self._random.random() < self._errors:
            return self._random.randrange(2, 250)
        try:
            return _next_alone(generation, tokens)
        except ConstraintFailed:
            return END_TOKEN


class SilentDrafter:
    """Drafter that never has a draft, so that the draft model is used."""

    def draft(self, sequence: Sequence, limit: int) -> SequenceDraft:
        return SequenceDraft()

    def forget(self, sequence: Sequence) -> None:
        pass


@dataclass(kw_only=True)
class Driver:
    """Scheduler and backend, with the outputs of requests. Requests end when they have all their tokens.

    A step takes a millisecond a token: up to `decoding` while an interactive request decodes, else `idle`.
    """

    slots: int = 8
    kv_tokens: int = 1024
    decoding: int = 32
    stall: int | None = None
    idle: int = 64
    rows: int = 64  # outputs of a step
    cache_blocks: int = 0
    policy: PriorityPolicy = field(default_factory=PriorityPolicy)
    tiles: tuple[int, ...] = ()
    reuses: bool = True  # sequences may begin with cells that others have computed
    stateful: bool = False  # sequences have a state, of 100 times the size of a saved block
    snapshots: int = 0  # tokens by which sequences with a state can go back
    cache_bytes: int | None = None  # in place of `cache_blocks`
    floor: float = 0.1
    mixes: bool = True
    continuous: bool = True
    drafter: Drafter | None = None
    """All its drafts, and those of the fake's draft model, are computed as far as there is room."""
    always: bool = True  # drafts are computed even where they do not pay; if False, there is a drafter only
    cost: TokenCost = None  # type: ignore[assignment]
    elapsed_ms: Callable[[Step], float] = lambda step: 1.0  # real time of a step

    def __post_init__(self) -> None:
        self.now_s = 0.0
        self.cost = self.cost or TokenCost(self.tiles)
        self._info = msgspec.structs.replace(
            FAKE_INFO,
            max_seqs=self.slots,
            kv_tokens=self.kv_tokens,
            max_step_tokens=max(self.idle, self.slots + 16),
            **({**STATEFUL, "max_draft": self.snapshots} if self.stateful else {}),
        )
        self._live: dict[str, GenerationRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.num_scores: dict[str, int] = {}
        self.failures: dict[str, str] = {}
        self.finished: list[str] = []
        self.cached: dict[str, int | None] = {}
        self.paddings: list[int] = []
        self.predicted_ms: list[float] = []
        self.interruptible: list[bool] = []
        self._start()

    def _start(self) -> None:
        info = self._info
        cache_bytes = self.cache_blocks if self.cache_bytes is None else self.cache_bytes
        self.backend = FakeBackend(info, fault_on=FAULTY)
        self.ledger = KVLedger(info.kv_tokens // 16, 16)
        self.cache = SavedPrefixes(cache_bytes, state_bytes=info.state_bytes)
        self.scheduler = Scheduler(
            limits=StepLimits(self.slots, info.max_step_tokens, self.rows, info.state_tokens, self.reuses),
            ledger=self.ledger,
            cache=self.cache,
            cost=self.cost,
            options=StepOptions(
                stream_rate=1000 / self.decoding,
                stall_ms=self.stall or min(4 * self.decoding, self.idle),
                batch_stall_ms=self.idle,
                preempt_threshold_ms=self.decoding,
                batch_floor=self.floor,
                experiment=Experiment(mixed_steps=self.mixes, continuous_batching=self.continuous),
            ),
            policy=self.policy,
            speculator=self._speculator(),
        )

    def _speculator(self) -> Speculator | None:
        most = self._info.max_draft
        if self.drafter is None or most == 0:
            return None
        draft_model = ModelDrafter(0.1) if self.always else None
        limit = {} if most is None else {"max_tokens": most}
        return Speculator(self.drafter, draft_model, always=self.always, **limit)

    def crash(self, lost: int = 0) -> None:
        """Submit every live request to a new engine, with its output but for the last `lost` tokens."""
        self._start()
        for one in list(self._live.values()):
            output = self.outputs[one.id]
            self._enter(one, tuple(output[: max(0, len(output) - lost)]))

    def submit(self, *requests: GenerationRequest) -> None:
        for one in requests:
            self._live[one.id] = one
            self._enter(one, ())

    def _enter(self, one: GenerationRequest, output: tuple[int, ...]) -> None:
        if not output:
            self.num_scores[one.id] = 0
        beginning: tuple[int, ...] = ()
        if one.constraint is not None and not one.prompt_logprobs:
            beginning = self.backend.forced(one.constraint, output)[: one.max_tokens - len(output)]
        sequence = self.scheduler.sequences.submit(one, output, beginning, now_s=self.now_s)
        self.outputs[one.id] = list(output)
        self._gain(sequence, beginning)

    def _gain(self, sequence: Sequence, tokens: tuple[int, ...]) -> None:
        """End the request with its last token, or with the end token of its constraint."""
        name = sequence.request.id
        self.outputs[name] += tokens
        ended = sequence.request.constraint is not None and END_TOKEN in tokens
        if ended or (tokens and sequence.remaining == 0):
            self._finish(sequence)

    def _finish(self, sequence: Sequence) -> None:
        one = sequence.request
        assert one.id in self.failures or self.outputs[one.id] == alone(one)
        self.scheduler.sequences.complete(sequence)
        del self._live[one.id]
        self.finished.append(one.id)

    def cancel(self, name: str) -> None:
        sequence = self.scheduler.sequences.get(name)
        if sequence is not None:
            del self._live[name]
            self.scheduler.sequences.finish(sequence)
            self.scheduler.check()

    def step(
        self, *requests: GenerationRequest, interrupt: bool = False, beside_interactive: bool = False
    ) -> Spans:
        self.submit(*requests)
        self.now_s += 0.1
        step = self.scheduler.schedule(
            beside_interactive=beside_interactive, unready=self.backend.unready_slots()
        )
        names = [s.request.id for s in self.scheduler.participants(step)]
        self.predicted_ms.append(self.scheduler.predicted_ms(step))
        self.interruptible.append(step.may_be_interrupted)
        self.paddings.append(step.padding)
        self.scheduler.check()
        if interrupt:
            self.backend.execute(Step(verbs=step.verbs))
            self.scheduler.apply(step, StepResult(interrupted=True))
        else:
            self._apply(step)
        self.scheduler.check()
        for sequence in filter(None, map(self.scheduler.sequences.get, names)):
            if sequence.status is SequenceStatus.RUNNING:  # rejected drafts leave no cells
                assert len(self.backend.cells[sequence.slot]) == sequence.computed
        return {name: span.num_tokens for name, span in zip(names, step.spans, strict=True)}

    def steps(self, count: int) -> list[Spans]:
        return [self.step() for _ in range(count)]

    def run(self, *requests: GenerationRequest, max_steps: int = 10_000) -> list[Spans]:
        self.submit(*requests)
        steps = []
        while self.scheduler.has_work:
            steps.append(self.step())
            assert len(steps) < max_steps, "starved"
        return steps

    def run_until(self, holds: Callable[[], bool], max_steps: int = 10_000) -> None:
        for _ in range(max_steps):
            if holds():
                return
            self.step()
        raise AssertionError("the condition never held")

    def _apply(self, step: Step) -> None:
        result = self.backend.execute(step)
        for advance in self.scheduler.apply(step, result, self.elapsed_ms(step)):
            name = advance.sequence.request.id
            self.cached[name] = advance.sequence.cached_tokens
            self.num_scores[name] += len(advance.scores)
            self._gain(advance.sequence, tuple(t for s in advance.samples for t in (s.token, *s.forced)))
            if advance.sequence.status is SequenceStatus.FINISHED:
                continue
            if (failure := advance.failure or advance.fault) is not None:
                self.failures[name] = failure
                self._finish(advance.sequence)
            elif advance.sequence.pending == 0:
                self._finish(advance.sequence)
