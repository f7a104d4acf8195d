"""The contract's `Backend` on llama.cpp."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

import msgspec
import numpy as np

from openai_cpu_server.contract.adapter import Adapter, LoadedAdapter
from openai_cpu_server.contract.containment import RequestFailed, contained
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import (
    Close,
    Drafted,
    Drop,
    Open,
    Restore,
    Save,
    SavedBlock,
    Share,
    Span,
    Step,
    StepResult,
    TokenLogprob,
    Verb,
)
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.adapters import Adapters
from openai_cpu_server.llama.cells.batch import Batch, Layout
from openai_cpu_server.llama.cells.block_store import BlockStore
from openai_cpu_server.llama.cells.cache_file import BadCacheFile, read_cache_file, write_cache_file
from openai_cpu_server.llama.cells.cell_copies import CellCopies
from openai_cpu_server.llama.cells.context import Decoded, Logits, PoolFull
from openai_cpu_server.llama.draft_model import Draft, DraftRequest
from openai_cpu_server.llama.grammar.constrained import ConstrainedOutput
from openai_cpu_server.llama.grammar.constraints import Constraints
from openai_cpu_server.llama.host.machine import Machine
from openai_cpu_server.llama.loading import Loaded, load
from openai_cpu_server.llama.sampling.logprobs import BadLogits, score
from openai_cpu_server.llama.sampling.sampler import Sampler
from openai_cpu_server.llama.sampling.slot import OpenSlot, Sampled
from openai_cpu_server.llama.sampling.truncation import Candidates

logger = logging.getLogger(__name__)

_NO_DRAFT = Draft((), 0)

Drafts = Mapping[int, Draft]
"""The draft model's drafts, by slot."""


class LlamaBackend:
    """Owns model, context, saved blocks, compiled grammars and the samplers of the open slots.

    Not thread-safe but for `interrupt` and `forced`.
    """

    def __init__(self, loaded: Loaded) -> None:
        """The backend owns `loaded` from here on, and closes it."""
        self._loaded = loaded
        self._context = loaded.context
        self._batch = Batch(loaded.info.max_step_tokens)
        self._store = BlockStore()
        self._copies = CellCopies(self._context, self._store, scratch_slot=loaded.set_aside.scratch)
        self._candidates = Candidates(loaded.info.vocab_size)
        self._constraints = Constraints(loaded.vocabulary)
        self._draft_model = loaded.draft_model
        self._adapters = Adapters(loaded.model, loaded.context)
        self._slots: dict[int, OpenSlot] = {}
        self._can_interrupt = not loaded.model.is_recurrent

    @classmethod
    def load(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
        """Load a model; the backend is ready for its first step.
        Raises `StartupError` with one line for the terminal."""
        backend = cls.load_cold(options, on_progress, machine)
        try:
            backend.warm_up()
        except BaseException:
            backend.close()
            raise
        return backend

    @classmethod
    def load_cold(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
        """Load a model; `warm_up` follows. Raises `StartupError` with one line for the terminal."""
        backend = cls(load(options, on_progress, machine or Machine()))
        try:
            backend._constraints.wait_until_ready()
        except BaseException:
            backend.close()
            raise
        return backend

    def warm_up(self) -> bool:
        """Compute one token and forget it, so that no request pays for the first use of the weights.

        Returns False if that was interrupted: call it again to go on, for what was used stays in memory.
        """
        vocabulary = self._loaded.vocabulary
        self._batch.fill([Span(slot=0, start=0, tokens=(vocabulary.bos or 0,), sample=True)])
        with self._loaded.abort.armed():
            decoded = self._context.decode(self._batch)
        self._context.clear()
        if decoded is Decoded.INTERRUPTED:
            return False
        if self._draft_model is not None:
            self._draft_model.warm_up()
        return True

    @property
    def info(self) -> ModelInfo:
        return self._loaded.info

    def execute(self, step: Step) -> StepResult:
        """Raises `DecodeFailed` or `BadLogits`; the backend is of no further use then. Logits of one sequence
        that are no numbers are a fault of that one's, as long as the model computes others.

        An interrupted step has done its verbs. Padding for which the pool has no room is left out.
        """
        with self._loaded.abort.armed():
            verbs_ms = self._apply_all(step.verbs)
            if not step.spans:
                assert not step.padding, "padding, and nothing to pad"
                return StepResult(verbs_ms=verbs_ms)
            self._adapters.use(step.adapter)
            drafts, drafting_ms = self._draft(step.spans)
            spans = [self._allowed(_with_draft(span, drafts)) for span in step.spans]
            with self._constraints.foreseeing(self._constrained(spans)):
                layout, decoded, padding = self._compute(spans, step.padding)
        if decoded is Decoded.INTERRUPTED:
            for span in spans:  # llama.cpp keeps what it finished
                self._context.trim(span.slot, span.start)
            return StepResult(interrupted=True, verbs_ms=verbs_ms)
        result = self._result(step.spans, spans, layout, drafts, drafting_ms)
        return msgspec.structs.replace(result, padding=padding, verbs_ms=verbs_ms)

    def interrupt(self) -> None:
        """End the running step early; without a running step this does nothing. Any thread may call it at any
        time.

        A state per sequence cannot be rolled back: models that have one finish their step.
        """
        if self._can_interrupt:
            self._loaded.abort.press()

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._loaded.vocabulary.piece(token, special=special and token not in self.info.end_tokens)

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        return self._constraints.start(constraint, output).take_forced()

    def check_adapter(self, adapter: Adapter) -> None:
        self._adapters.check(adapter)

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Also computes a token with it: who asks for it first does not pay for its first use."""
        loaded = self._adapters.load(adapter)
        try:
            self._try(adapter)
        except AdapterFailed:
            self._adapters.unload(adapter.key)
            raise
        return loaded

    def unload_adapter(self, key: str) -> None:
        self._adapters.unload(key)

    def export_cache(self, path: str, blocks: Sequence[SavedBlock]) -> None:
        """Write these blocks to a file. Raises OSError; then the file is as it was before."""
        saved = [(block, self._store.get(block.number)) for block in blocks]
        write_cache_file(Path(path), self._loaded.fingerprint, saved)

    def import_cache(self, path: str) -> tuple[SavedBlock, ...]:
        """Load saved blocks into an empty cache, under the numbers that they had. Their bytes stay in the
        mapped file.

        Damaged blocks are left out, with what continues them; a file of no use is logged and ignored.
        """
        try:
            file = read_cache_file(Path(path), self._loaded.fingerprint)
        except FileNotFoundError:
            return ()
        except (OSError, BadCacheFile) as error:
            logger.warning("The prefix cache %s is ignored: %s.", path, error)
            return ()
        if file.num_damaged:
            logger.warning(
                "%d blocks of the prefix cache %s are damaged and left out.", file.num_damaged, path
            )
        for block, cells in file.blocks:
            self._store.put(block.number, cells)
        return tuple(block for block, _ in file.blocks)

    def close(self) -> None:
        while self._slots:
            self._slots.popitem()[1].close()
        self._constraints.close()
        self._store.close()
        if self._draft_model is not None:
            self._draft_model.close()
        self._context.close()
        self._adapters.close()
        self._loaded.model.close()

    def _apply_all(self, verbs: Sequence[Verb]) -> float:
        """Do the verbs in order; returns the milliseconds that they took."""
        if not verbs:
            return 0.0
        started = time.perf_counter()
        for verb in verbs:
            self._apply(verb)
        return 1000 * (time.perf_counter() - started)

    def _apply(self, verb: Verb) -> None:
        match verb:
            case Open():
                self._open(verb)
            case Close():
                self._close(verb)
            case Share():
                self._share(verb)
            case Save(slot, start, end, block):
                self._require_held(slot, end)
                self._store.put(block, self._copies.save(slot, start, end))
            case Restore(block, slot, start, end):
                self._require_held(slot, start)
                assert self._context.num_positions(slot) == start, f"slot {slot} holds more than {start}"
                self._copies.restore(self._store.get(block), slot, start, end)
            case Drop(block):
                self._store.drop(block)

    def _open(self, verb: Open) -> None:
        info = self.info
        assert 0 <= verb.slot < info.max_seqs, f"there is no slot {verb.slot}"
        assert verb.slot not in self._slots, f"slot {verb.slot} is open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        sampler = Sampler(verb, self._candidates, vocab_size=info.vocab_size, end_tokens=info.end_tokens)
        constrained = None
        if verb.constraint is not None:
            constrained = self._constraints.start_beside(verb.constraint, verb.output)
        self._slots[verb.slot] = OpenSlot(verb, sampler, constrained)

    def _close(self, verb: Close) -> None:
        self._context.free_slot(verb.slot)
        self._slots.pop(verb.slot).close()
        if self._draft_model is not None:
            self._draft_model.forget(verb.slot)

    def _share(self, verb: Share) -> None:
        self._require_held(verb.source, verb.end)
        assert verb.slot in self._slots, f"slot {verb.slot} is not open"
        assert self._context.num_positions(verb.slot) == 0, f"slot {verb.slot} holds cells"
        self._context.share(verb.source, verb.slot, 0, verb.end)

    def _require_held(self, slot: int, end: int) -> None:
        assert self.info.can_share, "this model's memory cannot share, save and restore"
        assert slot in self._slots, f"slot {slot} is not open"
        held = self._context.num_positions(slot)
        assert held >= end, f"slot {slot} holds {held} tokens, not {end}"

    def _constrained(self, spans: Sequence[Span]) -> list[Future[ConstrainedOutput]]:
        """The constrained outputs that are asked for their allowed tokens once the spans are computed."""
        sampling = (self._slots[span.slot].constrained for span in spans if span.sample)
        return [output for output in sampling if output is not None]

    def _draft(self, spans: Sequence[Span]) -> tuple[Drafts, float]:
        """The draft model's drafts by slot, and the milliseconds that they took."""
        requests = [
            DraftRequest(span.slot, self._slots[span.slot].tokens, span.num_to_draft, span.num_to_read)
            for span in spans
            if span.num_to_draft
        ]
        if not requests:
            return {}, 0.0
        assert self._draft_model is not None, "there is no draft model"
        started = time.perf_counter()
        drafts = self._draft_model.draft(requests)
        return drafts, 1000 * (time.perf_counter() - started)

    def _allowed(self, span: Span) -> Span:
        """The span, with its draft cut off before the first token that the constraint forbids."""
        if not span.draft:
            return span
        assert self.info.can_trim, "this model's memory cannot give up what a draft has computed in vain"
        length = self._slots[span.slot].num_allowed(span.draft)
        return msgspec.structs.replace(span, draft=span.draft[:length])

    def _compute(self, spans: Sequence[Span], padding: int) -> tuple[Layout, Decoded, int]:
        """Compute the spans. The number returned is the padding that was computed:
        all of it, or 0 without room for it."""
        if not padding:
            layout = self._fill(spans)
            return layout, self._context.decode(self._batch), 0
        layout = self._fill([*spans, self._padding(padding)])
        try:
            decoded = self._context.decode(self._batch)
        except PoolFull:
            return self._compute(spans, padding=0)
        self._context.free_slot(self._loaded.set_aside.padding)
        return layout, decoded, padding

    def _padding(self, count: int) -> Span:
        token = self._loaded.vocabulary.bos or 0
        return Span(slot=self._loaded.set_aside.padding, start=0, tokens=(token,) * count, sample=False)

    def _fill(self, spans: Sequence[Span]) -> Layout:
        layout = self._batch.fill(spans)
        most = self.info.max_step_outputs
        assert layout.num_outputs <= most, f"{layout.num_outputs} outputs in a step of at most {most}"
        return layout

    def _result(
        self,
        planned: Sequence[Span],
        spans: Sequence[Span],
        layout: Layout,
        drafts: Drafts,
        drafting_ms: float,
    ) -> StepResult:
        if not layout.num_outputs:
            return StepResult()
        logits = self._context.logits(layout.num_outputs)
        sampled: dict[int, Sampled] = {}
        scores: dict[int, tuple[TokenLogprob, ...]] = {}
        errors: dict[int, RequestFailed] = {}
        for span, rows in zip(spans, layout.rows, strict=False):  # padding has rows too, but none of use
            try:
                if span.targets:
                    scores[span.slot] = self._score(span, logits[rows.targets.start : rows.targets.stop])
            except RequestFailed as error:
                errors[span.slot] = error
                continue
            if rows.samples:
                sampled[span.slot] = self._sample(span, logits[rows.samples.start : rows.samples.stop])
        errors |= {slot: found.error for slot, found in sampled.items() if found.error is not None}
        if any(isinstance(error.__cause__, BadLogits) for error in errors.values()):
            self._require_numbers()
        return StepResult(
            samples={slot: found.samples[0] for slot, found in sampled.items() if found.samples},
            further={slot: found.samples[1:] for slot, found in sampled.items() if found.samples[1:]},
            drafted={
                span.slot: self._drafted(span, sampled[span.slot], drafts.get(span.slot, _NO_DRAFT))
                for plan, span in zip(planned, spans, strict=True)
                if plan.num_drafted
            },
            drafting_ms=drafting_ms,
            scores=scores,
            failures={slot: str(error) for slot, error in errors.items() if error.is_own_fault},
            faults={slot: str(error) for slot, error in errors.items() if not error.is_own_fault},
        )

    def _drafted(self, span: Span, sampled: Sampled, draft: Draft) -> Drafted:
        num_known = self._draft_model.num_known(span.slot) if self._draft_model is not None else 0
        return Drafted(len(span.draft), sampled.num_accepted, num_known, draft.num_tried)

    def _score(self, span: Span, logits: Logits) -> tuple[TokenLogprob, ...]:
        """Raises `RequestFailed`."""
        num_top = self._slots[span.slot].num_top
        with contained():
            return tuple(
                score(row, target, num_top) for row, target in zip(logits, span.targets, strict=True)
            )

    def _sample(self, span: Span, logits: Logits) -> Sampled:
        """Sample from `logits`, (1 + draft, vocabulary).
        What goes wrong with that ends its own request only."""
        opened = self._slots[span.slot]
        sampled = opened.sample_along(span.draft, logits)
        if sampled.num_accepted < len(span.draft):
            self._context.trim(span.slot, span.start + len(span.tokens) + sampled.num_accepted)
        if sampled.error is not None and opened.constraint is not None:
            self._constraints.give_up(opened.constraint)
        return sampled

    def _try(self, adapter: Adapter) -> None:
        """Compute a token with the adapter, if there is a cell for it. Raises `AdapterFailed`."""
        self._adapters.use(adapter.key)
        if not self._computes_numbers():
            raise AdapterFailed(f"{adapter.path} makes the model compute numbers that are not finite.")

    def _require_numbers(self) -> None:
        """One sequence has got none. If nobody gets any, another process does better. Raises `BadLogits`."""
        if not self._computes_numbers():
            raise BadLogits("The model computes numbers that are not finite.")

    def _computes_numbers(self) -> bool:
        """Compute a token apart, as long as there is a cell for it."""
        slot, token = self._loaded.set_aside.padding, self._loaded.vocabulary.bos or 0
        self._batch.fill([Span(slot=slot, start=0, tokens=(token,), sample=True)])
        try:
            self._context.decode(self._batch)
        except PoolFull:
            return True
        is_finite = bool(np.isfinite(self._context.logits(1)).all())
        self._context.free_slot(slot)
        return is_finite


def _with_draft(span: Span, drafts: Drafts) -> Span:
    """The span with the draft model's tokens as its draft, if it asked for some."""
    if not span.num_to_draft:
        return span
    draft = drafts.get(span.slot, _NO_DRAFT)
    return msgspec.structs.replace(span, draft=draft.tokens, num_to_draft=0)
