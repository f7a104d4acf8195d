"""The contract's `Backend` on llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.step import Close, Open, Sample, Span, Step, StepResult, TokenLogprob, Verb
from openai_cpu_server.llama.batch import Batch, Layout
from openai_cpu_server.llama.context import Decoded, Logits
from openai_cpu_server.llama.loading import Loaded, load
from openai_cpu_server.llama.logprobs import score
from openai_cpu_server.llama.machine import Machine
from openai_cpu_server.llama.sampling import Sampler
from openai_cpu_server.llama.truncation import Candidates


class _OpenSlot(NamedTuple):
    sampler: Sampler
    top_logprobs: int | None


class LlamaBackend:
    """Owns model, context and the samplers of the open slots. Not thread-safe but for `interrupt`."""

    def __init__(self, loaded: Loaded) -> None:
        """Takes over what was loaded."""
        self._loaded = loaded
        self._context = loaded.context
        self._batch = Batch(loaded.info.max_step_tokens)
        self._candidates = Candidates(loaded.info.vocab_size)
        self._slots: dict[int, _OpenSlot] = {}

    @classmethod
    def load(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
        """Ready for its first step. Raises `StartupError` with one line for the person at the terminal."""
        backend = cls(load(options, on_progress, machine or Machine()))
        try:
            backend._warm_up()
        except BaseException:
            backend.close()
            raise
        return backend

    @property
    def info(self) -> ModelInfo:
        return self._loaded.info

    def execute(self, step: Step) -> StepResult:
        """Raises `DecodeFailed` or `BadLogits`; the backend is of no further use then."""
        with self._loaded.abort.armed():
            for verb in step.verbs:
                self._apply(verb)
            if not step.spans:
                return StepResult()
            layout = self._fill(step.spans)
            decoded = self._context.decode(self._batch)
        if decoded is Decoded.INTERRUPTED:
            self._roll_back(step.spans)
            return StepResult(interrupted=True)
        return self._result(step.spans, layout)

    def interrupt(self) -> None:
        """From any thread. A state per sequence cannot be rolled back: such models run on."""
        if not self._loaded.model.is_recurrent:
            self._loaded.abort.press()

    def piece(self, token: int) -> bytes:
        return self._loaded.vocabulary.piece(token)

    def close(self) -> None:
        while self._slots:
            self._slots.popitem()[1].sampler.close()
        self._context.close()
        self._loaded.model.close()

    def _apply(self, verb: Verb) -> None:
        if isinstance(verb, Open):
            self._open(verb)
        else:
            self._close(verb)

    def _open(self, verb: Open) -> None:
        info = self.info
        assert 0 <= verb.slot < info.max_seqs, f"there is no slot {verb.slot}"
        assert verb.slot not in self._slots, f"slot {verb.slot} is open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        sampler = Sampler(verb, self._candidates, vocab_size=info.vocab_size, end_tokens=info.end_tokens)
        self._slots[verb.slot] = _OpenSlot(sampler, verb.top_logprobs)

    def _close(self, verb: Close) -> None:
        self._context.free_slot(verb.slot)
        self._slots.pop(verb.slot).sampler.close()

    def _fill(self, spans: Sequence[Span]) -> Layout:
        layout = self._batch.fill(spans)
        most = self.info.max_step_outputs
        assert layout.num_outputs <= most, f"{layout.num_outputs} outputs in a step of at most {most}"
        return layout

    def _roll_back(self, spans: Sequence[Span]) -> None:
        """llama.cpp keeps what it finished of an aborted step."""
        for span in spans:
            self._context.trim(span.slot, span.start)

    def _result(self, spans: Sequence[Span], layout: Layout) -> StepResult:
        if not layout.num_outputs:
            return StepResult()
        logits = self._context.logits(layout.num_outputs)
        samples, scores = {}, {}
        for span, rows in zip(spans, layout.rows, strict=True):
            if span.targets:
                scores[span.slot] = self._score(span, logits[rows.targets.start : rows.targets.stop])
            if rows.sample is not None:
                samples[span.slot] = self._sample(span.slot, logits[rows.sample])
        return StepResult(samples=samples, scores=scores)

    def _score(self, span: Span, logits: Logits) -> tuple[TokenLogprob, ...]:
        num_top = self._slots[span.slot].top_logprobs or 0
        return tuple(score(row, target, num_top) for row, target in zip(logits, span.targets, strict=True))

    def _sample(self, slot: int, logits: Logits) -> Sample:
        sampler, num_top = self._slots[slot]
        token = sampler.sample(logits)
        return Sample(token, None if num_top is None else score(logits, token, num_top))

    def _warm_up(self) -> None:
        """Compute one token and forget it, so that no request pays for the first use of the weights."""
        vocabulary = self._loaded.vocabulary
        self._batch.fill([Span(slot=0, start=0, tokens=(vocabulary.bos or 0,), sample=True)])
        self._context.decode(self._batch)
        self._context.clear()
