"""The scheduler without an engine. Only this file of the benchmark knows its constructor."""

from __future__ import annotations

from collections.abc import Sequence

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.request import GenerationRequest
from openai_cpu_server.contract.step import POOL_BLOCK_TOKENS, Close, Open, Sample, Step, StepResult
from openai_cpu_server.engine.generating import step_options
from openai_cpu_server.scheduler.cost_model import CostModel
from openai_cpu_server.scheduler.memory import KVLedger
from openai_cpu_server.scheduler.prefix_cache import SavedPrefixes
from openai_cpu_server.scheduler.scheduler import Scheduler, StepLimits
from openai_cpu_server.scheduler.sequence import POLICIES
from openai_cpu_server.scheduler.spans import SequenceAdvance

_KV_TOKENS = 65_536
_CACHE_BLOCKS = 4_096
_STEP_TOKENS = 256
_SOME_TOKEN = 500


def new_scheduler(num_slots: int) -> Scheduler:
    """A scheduler as the engine builds it, for a model of 10^9 parameters."""
    return Scheduler(
        limits=StepLimits(num_slots=num_slots, step_tokens=_STEP_TOKENS, step_outputs=num_slots),
        ledger=KVLedger(_KV_TOKENS // POOL_BLOCK_TOKENS, POOL_BLOCK_TOKENS),
        cache=SavedPrefixes(_CACHE_BLOCKS),
        cost=CostModel.guess(),
        options=step_options(EngineOptions(model_path="")),
        policy=POLICIES["priority"](),
    )


class PureScheduler:
    """A scheduler whose steps nobody executes."""

    def __init__(self, *, num_slots: int) -> None:
        self._scheduler = new_scheduler(num_slots)
        self.num_running = 0
        """The slots that steps have opened and not closed."""

    def submit(self, request: GenerationRequest) -> None:
        self._scheduler.sequences.submit(request)

    def schedule(self) -> Step:
        return self._scheduler.schedule()

    def count(self, step: Step) -> None:
        """Count a step's slots. Call it once for each step."""
        self.num_running += sum(isinstance(verb, Open) for verb in step.verbs)
        self.num_running -= sum(isinstance(verb, Close) for verb in step.verbs)

    def fake_result(self, step: Step) -> StepResult:
        samples = {span.slot: Sample(_SOME_TOKEN) for span in step.spans if span.sample}
        return StepResult(samples=samples, padding=step.padding)

    def apply(self, step: Step, result: StepResult) -> Sequence[SequenceAdvance]:
        return self._scheduler.apply(step, result)

    def finish_complete(self, advances: Sequence[SequenceAdvance]) -> int:
        """Take out the sequences that have all their tokens; returns how many there were."""
        complete = [advance.sequence for advance in advances if advance.sequence.remaining == 0]
        for sequence in complete:
            self._scheduler.sequences.finish(sequence)
        return len(complete)
