"""Implementation of the contract's `Backend`."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from openai_cpu_server.contract.engine import RequestFailed
from openai_cpu_server.contract.media import is_row, not_taken
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Adapter, LoadedAdapter
from openai_cpu_server.contract.request import Constraint
from openai_cpu_server.contract.step import Drafted, Span, Step, StepResult, TokenLogprob
from openai_cpu_server.errors import AdapterFailed
from openai_cpu_server.llama.bindings import llama_cpp
from openai_cpu_server.llama.cells.context import (
    Context,
    Logits,
    OutputRows,
    PlacedRows,
    PoolFull,
    RowBatch,
    TokenBatch,
)
from openai_cpu_server.llama.draft_model import DraftModel, DraftRequest, ModelDraft
from openai_cpu_server.llama.gguf.tensors import AdapterFile, file_digest
from openai_cpu_server.llama.grammar.constraints import Constraints
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.loading import LoadedParts, load_model
from openai_cpu_server.llama.model.model import Model, native_log
from openai_cpu_server.llama.projector import EncodingFailed
from openai_cpu_server.llama.sampler import BadLogits
from openai_cpu_server.llama.slots import SampledSpan, SlotTable

_NO_DRAFT = ModelDraft((), 0)
_NO_ROWS = OutputRows(range(0), range(0))

Drafts = Mapping[int, ModelDraft]


class Computed(NamedTuple):
    rows: list[OutputRows]
    """Entries per span, and one of padding."""
    logits: Logits | None
    """(rows, vocabulary), valid until the next computation."""
    padding: int


class LlamaBackend:
    """Owner of a loaded model's parts. Not thread-safe except for `interrupt` and `forced`."""

    def __init__(self, loaded: LoadedParts) -> None:
        self.info = loaded.info
        self._loaded = loaded
        self._abort = loaded.abort
        self._context = loaded.context
        self._draft_model = loaded.draft_model
        self._sequences = loaded.sequences
        self._any_token = loaded.vocabulary.bos or 0
        self._constraints = Constraints(loaded.vocabulary)
        self._adapters = NativeAdapters(loaded.model, loaded.context, loaded.draft_model)
        self._slots = SlotTable(loaded, self._constraints)
        self._batch = TokenBatch(loaded.info.max_step_tokens, loaded.context.sequences)
        self._row_batch = RowBatch(
            loaded.info.max_step_tokens if loaded.row_store is not None else 0,
            loaded.model.input_width,
            loaded.context.sequences,
        )
        self._rows: dict[int, PlacedRows] = {}
        self._reading_ms = 0.0
        self.threads = loaded.context.compute_threads
        self.interrupt = loaded.abort.press
        self.unready_slots = self._slots.unready
        self.export_cache, self.import_cache = self._slots.save_to, self._slots.load_from
        self.check_adapter, self.unload_adapter = self._adapters.check, self._adapters.unload
        self.measure = not_taken if loaded.row_store is None else loaded.row_store.measure

    @classmethod
    def load(
        cls, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine | None = None
    ) -> LlamaBackend:
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
        backend = cls(load_model(options, on_progress, machine or Machine()))
        backend._constraints.wait_until_ready()
        _ = backend._loaded.vocabulary.pieces  # else the first output would wait where no grammar needs them
        return backend

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return self._loaded.vocabulary.piece(token, special=special and token not in self.info.end_tokens)

    def forced(self, constraint: Constraint, output: tuple[int, ...]) -> tuple[int, ...]:
        return self._constraints.start(constraint, output).take_forced()

    def load_adapter(self, adapter: Adapter) -> LoadedAdapter:
        """Load a checked adapter and use it once. Raises `AdapterFailed`."""
        loaded = self._adapters.load(adapter)
        try:
            self._adapters.use(adapter.key)
            if not self._computes_numbers():
                raise AdapterFailed(f"{adapter.path} makes the model compute numbers that are not finite.")
        except AdapterFailed:
            self._adapters.unload(adapter.key)
            raise
        return loaded

    def close(self) -> None:
        self._slots.close()
        self._constraints.close()
        self._draft_model.close()
        self._context.close()
        self._adapters.close()
        self._loaded.model.close()

    def warm_up(self) -> bool:
        """Compute a token, so that no request pays for the first use of the weights. Return False if
        interrupted."""
        self._batch.fill([Span(slot=0, start=0, tokens=(self._any_token,), sample=True)])
        with self._abort.armed():
            is_done = self._context.decode(self._batch)
        self._context.clear()
        if is_done:
            self._draft_model.warm_up()
        return is_done

    def execute(self, step: Step) -> StepResult:
        """Execute the verbs, compute the spans and sample. Raises `DecodeFailed` or `BadLogits`; then the
        backend is unusable.

        An interrupted step has executed its verbs. Padding that does not fit is dropped.
        """
        rollback = self._rollback(step)
        with self._abort.armed(is_armed=rollback is not None):
            verbs_ms = self._slots.apply(step.verbs)
            if not step.spans:
                assert not step.padding, "padding, and nothing to pad"
                return self._with_encoding(step, StepResult(verbs_ms=verbs_ms))
            self._adapters.use(step.adapter)
            self._reading_ms = 0.0
            self._draft_model.listen(reads_along=step.reads_along)
            drafts, drafting_ms = self._draft(step.spans)
            spans = [self._with_draft(span, drafts) for span in step.spans]
            if self.info.takes_media:
                self._rows = {s.slot: self._slots.rows(s) for s in spans if is_row(s.tokens[0])}
                spans = [self._slots.placed(span) for span in spans]
            sampled = [self._slots[span.slot] for span in spans if span.sample]
            outputs = [slot.constrained for slot in sampled if slot.slow_mask is None]
            constrained = [output for output in outputs if output is not None]
            with self._constraints.foreseeing(constrained), self._keeping(spans, rollback or {}):
                is_apart = bool(rollback) or self._loaded.model.is_computed_apart
                groups = self._apart(spans) if is_apart else self._drafts_last(spans)
                padding = 0 if is_apart else step.padding
                computed = self._compute_groups(spans, groups, padding, is_apart=is_apart)
                if computed is None:
                    self._go_back(spans, rollback or {})
                    return StepResult(interrupted=True, verbs_ms=verbs_ms)
        result = self._result(step.spans, spans, computed, drafts, drafting_ms)
        result = msgspec.structs.replace(
            result, padding=computed.padding, verbs_ms=verbs_ms, reading_ms=self._reading_ms
        )
        return self._with_encoding(step, result)

    def _with_encoding(self, step: Step, result: StepResult) -> StepResult:
        if step.encode is None:
            return result
        started = time.perf_counter()
        faults = result.faults
        try:
            is_done = self._slots.encode(step.encode)
        except EncodingFailed as error:
            is_done, faults = False, {**faults, step.encode.slot: str(error)}
        encoding_ms = 1000 * (time.perf_counter() - started)
        return msgspec.structs.replace(result, encoded=is_done, encoding_ms=encoding_ms, faults=faults)

    def _rollback(self, step: Step) -> dict[int, int] | None:
        """Return None if the step must not stop or the states do not fit."""
        if not step.may_be_interrupted:
            return None
        if not self.info.state_bytes:
            return {}
        slots = [span.slot for span in step.spans]
        keepers = self._sequences.rollback_slots
        can_keep = len(slots) <= len(keepers) and not any(map(self._slots.is_behind, slots))
        return dict(zip(slots, keepers, strict=False)) if can_keep else None

    @contextlib.contextmanager
    def _keeping(self, spans: Sequence[Span], rollback: Mapping[int, int]) -> Iterator[None]:
        """llama.cpp copies a shared state only when it changes."""
        for span in spans if rollback else ():
            self._context.share(span.slot, rollback[span.slot], 0, span.start)
        try:
            yield
        finally:
            for slot in rollback.values():
                self._context.free_slot(slot)

    def _go_back(self, spans: Sequence[Span], rollback: Mapping[int, int]) -> None:
        """llama.cpp keeps the finished parts of an interrupted step."""
        for span in spans:
            if not rollback:
                self._context.trim(span.slot, span.start)
                continue
            self._context.free_slot(span.slot)
            self._context.share(rollback[span.slot], span.slot, 0, span.start)

    def _computes_numbers(self) -> bool:
        slot, token = self._sequences.padding_slot, self._any_token
        self._batch.fill([Span(slot=slot, start=0, tokens=(token,), sample=True)])
        try:
            self._context.decode(self._batch)
        except PoolFull:
            return True
        is_finite = bool(np.isfinite(self._context.logits(1)).all())
        self._context.free_slot(slot)
        return is_finite

    def _draft(self, spans: Sequence[Span]) -> tuple[Drafts, float]:
        requests = [
            DraftRequest(
                span.slot,
                slot.tokens,
                span.num_to_draft,
                span.num_to_read,
                slot.position(span.start),
                len(span.tokens),
                slot.masked_draft(),
            )
            for span in spans
            if span.num_to_draft and (slot := self._slots[span.slot])
        ]
        if not requests:
            return {}, 0.0
        began = time.perf_counter()
        self._draft_model.catch_up(requests)
        started = time.perf_counter()
        self._reading_ms = 1000 * (started - began)
        try:
            drafts = self._draft_model.draft(requests)
        finally:
            for request in requests:
                if request.masks is not None:
                    request.masks.undo()
        return drafts, 1000 * (time.perf_counter() - started)

    def _with_draft(self, span: Span, drafts: Drafts) -> Span:
        if span.num_to_draft:
            draft = drafts.get(span.slot, _NO_DRAFT)
            span = msgspec.structs.replace(span, draft=draft.tokens, num_to_draft=0)
        if not span.draft:
            return span
        most = self.info.max_draft
        assert most is None or len(span.draft) <= most, "more than this model's memory can take back"
        length = self._slots[span.slot].num_allowed(span.draft)
        return msgspec.structs.replace(span, draft=span.draft[:length])

    def _compute(self, spans: Sequence[Span], padding: int) -> Computed | None:
        if any(span.slot in self._rows for span in spans):
            return self._compute_with_rows(spans, padding)
        if padding:
            tokens = (self._any_token,) * padding
            all_spans = [
                *spans,
                Span(slot=self._sequences.padding_slot, start=0, tokens=tokens, sample=False),
            ]
        layout = self._batch.fill(all_spans if padding else spans)
        most = self.info.max_step_outputs
        assert layout.num_outputs <= most, f"{layout.num_outputs} outputs in a step of at most {most}"
        try:
            is_done = self._context.decode(self._batch)
        except PoolFull:
            if not padding:
                raise
            return self._compute(spans, padding=0)
        if padding:
            self._context.free_slot(self._sequences.padding_slot)
        if not is_done:
            return None
        if self._draft_model.listens:
            started = time.perf_counter()
            with self._abort.held():
                self._draft_model.note(spans)
            self._reading_ms += 1000 * (time.perf_counter() - started)
        num_outputs = layout.num_outputs
        return Computed(layout.rows, self._context.logits(num_outputs) if num_outputs else None, padding)

    def _compute_with_rows(self, spans: Sequence[Span], padding: int) -> Computed | None:
        rows = {span.slot: self._rows.pop(span.slot) for span in spans if span.slot in self._rows}
        whole = [[one] for one in rows.values() if one.is_whole]
        others = [one for one in rows.values() if not one.is_whole]
        for parts in [*whole, *([others] if others else [])]:
            self._row_batch.fill(parts)
            with self._context.seeing_all() if parts[0].is_whole else contextlib.nullcontext():
                if not self._context.decode(self._row_batch):
                    return None
        texts = [span for span in spans if span.slot not in rows]
        computed = self._compute(texts, padding) if texts else Computed([], None, 0)
        if computed is None:
            return None
        found = {span.slot: own for span, own in zip(texts, computed.rows, strict=False)}
        return computed._replace(rows=[found.get(span.slot, _NO_ROWS) for span in spans])

    def _compute_groups(
        self, spans: Sequence[Span], groups: Sequence[Sequence[Span]], padding: int, *, is_apart: bool
    ) -> Computed | None:
        rows: dict[int, OutputRows] = {}
        found: list[Logits] = []
        num_outputs = padded = 0
        for number, group in enumerate(groups):
            with self._abort.held() if is_apart and len(group) > 1 else contextlib.nullcontext():
                computed = self._compute(group, 0 if number else padding)
            if computed is None or len(groups) == 1:
                return computed
            padded += computed.padding
            for span, own in zip(group, computed.rows, strict=False):
                rows[span.slot] = own.behind(num_outputs)
            if computed.logits is not None:
                found.append(computed.logits.copy())
                num_outputs += len(computed.logits)
        logits = np.concatenate(found) if found else None
        return Computed([rows[span.slot] for span in spans], logits, padded)

    def _apart(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Group spans so that only graphs of one sequence are aborted.

        An aborted graph may leave any sequence's state half moved. Steps of unequal lengths pass over the
        weights twice anyway.
        """
        least = 1 if self._loaded.model.is_computed_apart else 2
        single = [span for span in spans if span.num_tokens < least]
        groups = [single] if single else []
        return groups + [[span] for span in spans if span.num_tokens >= least]

    def _drafts_last(self, spans: Sequence[Span]) -> list[list[Span]]:
        """Put spans with drafts last: llama.cpp leaves snapshots behind when it moves a state for other
        sequences."""
        drafting = [span for span in spans if span.draft]
        if not self.info.state_bytes or not drafting:
            return [list(spans)]
        most_frequent, _ = Counter(span.num_tokens for span in drafting).most_common(1)[0]
        others = [span for span in spans if not span.draft]
        together = [span for span in drafting if span.num_tokens == most_frequent]
        alone = [[span] for span in drafting if span.num_tokens != most_frequent]
        return [*([others] if others else []), together, *alone]

    def _result(
        self,
        planned: Sequence[Span],
        spans: Sequence[Span],
        computed: Computed,
        drafts: Drafts,
        drafting_ms: float,
    ) -> StepResult:
        logits = computed.logits
        if logits is None:
            return StepResult()
        sampled: dict[int, SampledSpan] = {}
        scores: dict[int, tuple[TokenLogprob, ...]] = {}
        errors: dict[int, RequestFailed] = {}
        for span, rows in zip(spans, computed.rows, strict=False):  # padding has rows too, but none of use
            try:
                if span.targets:
                    opened = self._slots[span.slot]
                    scores[span.slot] = opened.score(
                        span.targets, logits[rows.targets.start : rows.targets.stop]
                    )
            except RequestFailed as error:
                errors[span.slot] = error
                continue
            if rows.samples:
                sampled[span.slot] = self._sample(span, logits[rows.samples.start : rows.samples.stop])
        errors |= {slot: found.error for slot, found in sampled.items() if found.error is not None}
        is_bad = any(isinstance(error.__cause__, BadLogits) for error in errors.values())
        if is_bad and not self._computes_numbers():  # at all: another process may do better
            raise BadLogits("The model computes numbers that are not finite.")
        return StepResult(
            samples={slot: found.samples[0] for slot, found in sampled.items() if found.samples},
            further={slot: found.samples[1:] for slot, found in sampled.items() if found.samples[1:]},
            drafted={
                span.slot: Drafted(
                    len(span.draft),
                    sampled[span.slot].num_accepted,
                    self._draft_model.num_read(span.slot),
                    drafts.get(span.slot, _NO_DRAFT).num_tried,
                )
                for plan, span in zip(planned, spans, strict=True)
                if plan.num_drafted
            },
            drafting_ms=drafting_ms,
            scores=scores,
            failures={slot: str(error) for slot, error in errors.items() if error.is_own_fault},
            faults={slot: str(error) for slot, error in errors.items() if not error.is_own_fault},
        )

    def _sample(self, span: Span, logits: Logits) -> SampledSpan:
        opened = self._slots[span.slot]
        sampled = opened.sample_along(span.draft, logits)
        if sampled.num_accepted < len(span.draft):
            end = span.start + len(span.tokens) + sampled.num_accepted
            self._context.trim(span.slot, end)
            self._draft_model.trim(span.slot, end)
        opened.is_behind = sampled.num_accepted < len(span.draft)
        if sampled.error is not None and opened.verb.constraint is not None:
            self._constraints.give_up(opened.verb.constraint)
        elif opened.constrained is not None:
            opened.slow_mask = self._constraints.compute_ahead(opened.constrained.result())
        return sampled


class _Native(NamedTuple):
    address: int
    scale: float


@dataclass(eq=False)
class NativeAdapters:
    """Adapters of a model, which must outlive this. Not thread-safe except for `check`."""

    model: Model
    context: Context
    draft_model: DraftModel
    _loaded: dict[str, _Native] = field(default_factory=dict)
    _checked: dict[str, tuple[AdapterFile, tuple[int, int, int]]] = field(default_factory=dict)
    _in_use: str | None = None

    def check(self, adapter: Adapter) -> None:
        """Reject files with which llama.cpp crashes. Raises `AdapterFailed`."""
        path = Path(adapter.path)
        state = _file_state(path)
        if file_digest(path) != adapter.digest:
            raise AdapterFailed(f"{path} has changed and is no longer the file to be loaded.")
        self._checked[adapter.key] = AdapterFile.open(path, self.model.header), state

    def load(self, adapter: Adapter) -> LoadedAdapter:
        """Load a checked adapter. Raises `AdapterFailed`; then nothing of it stays loaded."""
        assert adapter.key not in self._loaded, f"{adapter.key} is loaded already"
        file, state = self._checked.pop(adapter.key)
        log = native_log().cleared()
        handle = llama_cpp.llama_adapter_lora_init(self.model.handle, os.fsencode(file.path))
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            raise AdapterFailed(f"Cannot load {file.path}: {log.cause() or 'llama.cpp gave no reason'}.")
        native = _Native(address, adapter.scale)
        if _file_state(file.path) != state:
            _free(native)
            raise AdapterFailed(f"{file.path} has changed while it was loaded.")
        self._loaded[adapter.key] = native
        return LoadedAdapter(
            key=adapter.key, rank=file.rank, num_tensors=file.num_pairs, size_bytes=file.num_bytes
        )

    def use(self, key: str | None) -> None:
        """Take effect from the next decode on, within some milliseconds. None: no adapter."""
        if key == self._in_use:
            return
        address, scale = (None, 1.0) if key is None else self._loaded[key]
        self.context.set_adapter(address, scale)
        self.draft_model.set_adapter(address, scale)
        self._in_use = key

    def unload(self, key: str) -> None:
        if key == self._in_use:
            self.use(None)
        _free(self._loaded.pop(key))

    def close(self) -> None:
        while self._loaded:
            _free(self._loaded.popitem()[1])


def _free(native: _Native) -> None:
    llama_cpp.llama_adapter_lora_free(ctypes.cast(native.address, ctypes.POINTER(ctypes.c_void_p)))


def _file_state(path: Path) -> tuple[int, int, int]:
    try:
        facts = path.stat()
    except OSError as error:
        raise AdapterFailed(f"Cannot read {path}: {error.strerror}.") from None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns
