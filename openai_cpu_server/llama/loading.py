"""Loading of a model with its context and adapters."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Kernels, ModelInfo, WeightLayout
from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import StartupError
from openai_cpu_server.kernels.proof import kernels_in_use
from openai_cpu_server.llama.bindings import head_library, libggml
from openai_cpu_server.llama.cells.context import (
    AbortSwitch,
    Context,
    ContextOptions,
    SlotContent,
    TokenBatch,
)
from openai_cpu_server.llama.draft_head import DraftHead
from openai_cpu_server.llama.draft_model import DraftModel, SmallModel, require_same_tokens
from openai_cpu_server.llama.gguf.encoders import why_deadly
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.heads import (
    HeadKind,
    PredictionHead,
    head_count,
    relative_cost,
    require_model,
)
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.measure.layout import chosen_layout, use_layout
from openai_cpu_server.llama.model import kv_size
from openai_cpu_server.llama.model.model import HeadUse, Model, cells_fingerprint, native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.offload.choice import Places, chosen_places, of_draft_model
from openai_cpu_server.llama.projector import Projector, RowStore

logger = logging.getLogger(__name__)


def switch_kernels(mode: str, pause: Callable[[], None] = lambda: None) -> Kernels:
    native_log()
    return kernels_in_use(mode, libggml, pause)


class WeightsPlan(NamedTuple):
    header: GgufHeader
    layout: WeightLayout
    places: Places
    head: PredictionHead | None = None

    def open(
        self, options: EngineOptions, on_progress: Callable[[float], None], heads: HeadUse = HeadUse.SKIPPED
    ) -> Model:
        """Load the weights. Raises `StartupError`. `heads`: use of those that do not draft."""
        return Model.open(
            self.header,
            repack=self.layout.repacked,
            reads_weights=options.reads_weights,
            heads=HeadUse.LOADED if self.head is not None else heads,
            on_progress=on_progress,
            places=self.places.native,
        )


class _LoadPlan(NamedTuple):
    weights: WeightsPlan
    draft: WeightsPlan | None
    kernels: Kernels
    host_memory: kv_size.HostMemory


class LoadedParts(NamedTuple):
    """The owner closes the context, then the model."""

    model: Model
    vocabulary: Vocabulary
    context: Context
    abort: AbortSwitch
    info: ModelInfo
    sequences: kv_size.SequencePlan
    fingerprint: str
    draft_model: DraftModel
    row_store: RowStore | None


def load_model(options: EngineOptions, on_progress: Callable[[float], None], machine: Machine) -> LoadedParts:
    """Load the model. Raises `StartupError`; then nothing stays loaded.

    `on_progress`: called with 0 to 1, and may let others compute. After 1 one thread only fills memory.
    """
    _require_usable(options)
    with ExitStack() as undo:
        parts = _Loader(options, on_progress, machine, undo).load()
        undo.pop_all()
    return parts


def _require_usable(options: EngineOptions) -> None:
    kv_type = kv_size.KVType.named(options.kv_type)
    for name, threads in (("threads", options.threads), ("threads-batch", options.threads_batch)):
        if threads is not None and threads < 1:
            raise StartupError(f"--{name} must be at least 1, not {threads}.")
    if not options.flash_attention and kv_type.value.is_quantised:
        raise StartupError(f"KV type {options.kv_type} needs flash attention.")
    if options.prefill_tokens < 1:
        raise StartupError("A step must be allowed at least 1 token.")


class _Loader:
    """`undo` closes each part."""

    def __init__(
        self, options: EngineOptions, on_progress: Callable[[float], None], machine: Machine, undo: ExitStack
    ) -> None:
        self._options = options
        self._on_progress = on_progress
        self._machine = machine
        self._undo = undo
        self._pause = lambda: on_progress(0.0)
        self._abort = AbortSwitch()
        self._threads = options.threads or machine.num_threads()
        self._threads_batch = options.threads_batch or self._threads
        # A change of the number of threads starts new ones, which would not be bound.
        may_bind = self._threads_batch == self._threads
        self._compute_threads = ComputeThreads(max(self._threads, self._threads_batch), may_bind=may_bind)

    def load(self) -> LoadedParts:
        options, plan = self._options, self._plan()
        model, weights = self._open_model(plan.weights)
        plan = plan._replace(weights=weights)
        if not model.generates_text:
            architecture = model.header.architecture
            raise StartupError(f"{model.path} ({architecture}) is not a model that generates text.")
        vocabulary = Vocabulary(model)
        state_bytes, can_go_back = self._probe_state(model) if model.is_recurrent else (0, False)
        sequences = self._plan_sequences(
            model,
            state_bytes,
            plan.host_memory.free_bytes,
            can_go_back=can_go_back,
            drafts=plan.draft is not None or plan.weights.head is not None,
        )
        host_memory = plan.host_memory.beside_states(state_bytes * sequences.num_states)
        projector = projector_path = None
        if options.projector_path is not None:
            projector_path = Path(options.projector_path)
            threads, flash_attention = self._threads_batch, options.flash_attention
            projector = Projector(projector_path, model, threads=threads, flash_attention=flash_attention)
            self._undo.enter_context(projector)
        context = self._make_context(model, plan.weights.places, sequences, host_memory, projector)
        info = self._info(plan, model, vocabulary, context, state_bytes)
        draft_model, info = self._load_drafts(plan, model, vocabulary, context, info)
        if projector is not None:
            info = msgspec.structs.replace(info, sees=projector.sees, sound_rate=projector.sound_rate)
        return LoadedParts(
            model=model,
            vocabulary=vocabulary,
            context=context,
            abort=self._abort,
            info=info,
            sequences=sequences,
            fingerprint=cells_fingerprint(
                model.header, info, projector_path, flash_attention=options.flash_attention
            ),
            draft_model=draft_model,
            row_store=None if projector is None else RowStore(projector),
        )

    def _open_model(self, weights: WeightsPlan) -> tuple[Model, WeightsPlan]:
        """Skip a damaged head. llama.cpp takes a file without the head's tensors only if its metadata have no
        head."""
        try:
            return self._opened(weights, self._on_progress), weights
        except StartupError as error:
            if not head_count(weights.header) or self._options.head == "own":
                raise
            if weights.head is not None:
                logger.warning("no head drafts: %s", error)
            for heads in (HeadUse.SKIPPED, HeadUse.HIDDEN):
                with contextlib.suppress(StartupError):
                    without = weights._replace(head=None)
                    return self._opened(without, self._on_progress, heads), without
            raise

    def _plan(self) -> _LoadPlan:
        options = self._options
        header = GgufHeader(Path(options.model_path))
        require_model(header)
        draft, why = kv_size.planned_drafts(header, options)
        if why is not None:
            logger.warning("no head drafts: %s", why)
        kernels = switch_kernels(options.kernels, self._pause)
        if (path := options.projector_path) is not None:
            if not Path(path).is_file():
                raise StartupError(f"The projector {path} does not exist.")
            if (why := why_deadly(GgufHeader(Path(path)))) is not None:
                raise StartupError(
                    f"The projector {path} cannot be used: llama.cpp crashes with any sound ({why})."
                )
        encoder, free_bytes = kv_size.encoder_memory(options), self._machine.free_memory()
        draft_plan = None
        if draft is not None and not draft.is_own:
            draft_options = of_draft_model(options, draft.header.path)
            layout = chosen_layout(draft_options, draft.header, kernels, self._pause)
            places = chosen_places(draft_options, free_bytes)
            draft_plan = WeightsPlan(draft.header, layout, places, draft.head)
        layout = chosen_layout(options, header, kernels, self._pause)
        places = chosen_places(options, free_bytes)
        own_head = draft.head if draft is not None and draft.is_own else None
        weights = WeightsPlan(header, layout, places, own_head)
        use_layout(layout, kernels)
        kv_type, device_memory = kv_size.KVType.named(options.kv_type), places.device_memory
        host_memory = kv_size.HostMemory.of(
            header, draft, kv_type, free_bytes, encoder=encoder, device_memory=device_memory
        )
        return _LoadPlan(weights, draft_plan, kernels, host_memory)

    def _info(
        self, plan: _LoadPlan, model: Model, vocabulary: Vocabulary, context: Context, state_bytes: int
    ) -> ModelInfo:
        return ModelInfo(
            path=str(model.path),
            description=model.description,
            architecture=model.header.architecture,
            num_parameters=model.num_parameters,
            file_bytes=model.file_bytes,
            vocab_size=vocabulary.vocab_size,
            context_trained=model.context_trained or context.kv_cells,
            kv_tokens=context.kv_cells,
            kv_bytes_per_token=plan.host_memory.cell_bytes,
            kv_type=self._options.kv_type,
            max_seqs=self._options.max_seqs,
            max_step_tokens=context.batch_tokens,
            max_step_outputs=context.max_outputs,
            threads=context.threads,
            end_tokens=vocabulary.end_tokens,
            state_bytes=state_bytes,
            max_draft=context.snapshots if state_bytes else None,
            kernels=plan.kernels,
            weights=plan.weights.layout,
            placement=plan.weights.places.placement,
        )

    def _opened(
        self, plan: WeightsPlan, on_progress: Callable[[float], None], heads: HeadUse = HeadUse.SKIPPED
    ) -> Model:
        return self._undo.enter_context(plan.open(self._options, on_progress, heads))

    def _context(self, model: Model, options: ContextOptions, target: Context | None = None) -> Context:
        context = Context(model, options, self._abort, self._compute_threads, target)
        return self._undo.enter_context(context)

    def _probe_state(self, model: Model) -> tuple[int, bool]:
        """Return a saved state's bytes, and True if llama.cpp can keep snapshots.

        The bytes are known only with a state, so a step is begun and aborted; at position 0 it would not keep
        the state.
        """
        options = ContextOptions(
            kv_cells=kv_size.CELLS_GRANULARITY,
            kv_type=kv_size.KVType.F32,
            copies_whole=model.is_copied_whole,
            snapshots=1,
            num_slots=2,
            batch_tokens=32,
            outputs=2,
            threads=1,
            threads_batch=1,
            flash_attention=True,
        )
        batch = TokenBatch(1)
        batch.fill([Span(slot=0, start=1, tokens=(0,), sample=False)])
        with Context(model, options, self._abort, ComputeThreads(1)) as context:
            with self._abort.armed():
                self._abort.press()
                context.decode(batch)
            context.share_state(0, 1)
            return context.saved_bytes(1, SlotContent.CELLS), context.snapshots > 0

    def _plan_sequences(
        self, model: Model, state_bytes: int, free_bytes: int, *, can_go_back: bool, drafts: bool
    ) -> kv_size.SequencePlan:
        options = self._options
        per_slot = 2 if model.has_window else 1
        most = (kv_size.SLOTS_MAX - kv_size.NUM_COPYING) // per_slot
        if not 1 <= options.max_seqs <= most:
            why = " (its windows need a second sequence for each)" if model.has_window else ""
            raise StartupError(
                f"--max-seqs must be between 1 and {most} for this model{why}, not {options.max_seqs}."
            )
        plan = kv_size.SequencePlan.of(
            options,
            state_bytes,
            free_bytes,
            has_window=model.has_window,
            drafts=drafts,
            can_go_back=can_go_back,
            copies_whole=model.is_copied_whole,
        )
        if state_bytes:
            logger.info(
                "states: %d of %.1f MiB, %d of them for interrupted steps; fewer with a smaller --max-seqs",
                plan.num_states,
                state_bytes / 2**20,
                plan.num_rollback * (1 + plan.snapshots),
            )
        return plan

    def _make_context(
        self,
        model: Model,
        places: Places,
        sequences: kv_size.SequencePlan,
        host_memory: kv_size.HostMemory,
        projector: Projector | None,
    ) -> Context:
        options = self._options
        # Some rows of a picture are computed in one step, beside a token of each other request.
        whole_rows = 0 if projector is None else projector.most_whole_rows
        context_options = ContextOptions(
            kv_cells=places.most_cells(host_memory.pool_cells(options.kv_tokens)),
            kv_type=kv_size.KVType.named(options.kv_type),
            num_slots=sequences.rollback_slots.stop,
            num_guarded=sequences.num_guarded,
            copies_whole=model.is_copied_whole,
            snapshots=sequences.snapshots,
            batch_tokens=kv_size.batch_tokens(options) + whole_rows,
            outputs=sequences.num_outputs,
            threads=self._threads,
            threads_batch=self._threads_batch,
            flash_attention=options.flash_attention,
            cells_beside_layers=places.cells_beside_layers,
        )
        return self._context(model, context_options)

    def _load_drafts(
        self, plan: _LoadPlan, model: Model, vocabulary: Vocabulary, context: Context, info: ModelInfo
    ) -> tuple[DraftModel, ModelInfo]:
        drafts = plan.draft or plan.weights
        if drafts.head is not None:
            try:
                if info.max_draft == 0:
                    raise StartupError(f"{model.path} ({info.architecture}) cannot take back tokens.")
                draft_model = self._load_head(drafts, drafts.head, model, vocabulary, context)
            except StartupError as error:
                if self._options.head != "auto":
                    raise
                logger.warning("no head drafts: %s", error)
                return DraftModel(), info
            cost = relative_cost(drafts.head, model.header)
            return draft_model, msgspec.structs.replace(
                info, draft_cost=cost, draft_head=drafts.head.kind.value, draft_most=drafts.head.most_tokens
            )
        if plan.draft is None:
            return DraftModel(), info
        small, small_model = self._load_small_model(plan.draft, vocabulary, context)
        cost = small.num_parameters / max(1, info.num_parameters)
        placement = plan.draft.places.placement
        return small_model, msgspec.structs.replace(info, draft_cost=cost, draft_placement=placement)

    def _load_head(
        self, plan: WeightsPlan, head: PredictionHead, target: Model, vocabulary: Vocabulary, context: Context
    ) -> DraftModel:
        head_library()
        is_own = plan.header is target.header
        model = target if is_own else self._opened(plan, lambda fraction: None)
        if model.output_width != target.output_width:
            raise StartupError(f"{plan.header.path} has hidden rows of another width than {target.path}.")
        contexts: list[Context] = []
        try:
            for number in range(head.num_heads if head.kind is HeadKind.CHAINED else 1):
                contexts.append(self._context(model, self._draft_options(context), context))
                contexts[-1].use_head(number)
        except StartupError:
            for own in (*contexts, *([] if is_own else [model])):
                own.close()
            raise
        return DraftHead(head, model, context, contexts, vocabulary, owns_model=not is_own)

    def _load_small_model(
        self, plan: WeightsPlan, large: Vocabulary, context: Context
    ) -> tuple[Model, DraftModel]:
        options, path = self._options, plan.header.path
        model = self._opened(plan, lambda fraction: None)
        if not model.generates_text or model.is_recurrent:
            raise StartupError(
                f"{path} ({plan.header.architecture}) cannot draft: its memory of tokens cannot be cut back."
            )
        vocabulary = Vocabulary(model)
        require_same_tokens(large, vocabulary, str(path))
        num_guarded = options.max_seqs if model.has_window else 0
        if options.max_seqs + num_guarded > kv_size.SLOTS_MAX:
            raise StartupError(
                f"--max-seqs must be at most {kv_size.SLOTS_MAX // 2} with the draft model {path}: "
                "its windows need a second sequence for each."
            )
        own_context = self._context(
            model,
            self._draft_options(context, num_guarded, cells_beside_layers=plan.places.cells_beside_layers),
        )
        num_common = min(large.vocab_size, vocabulary.vocab_size)
        return model, SmallModel(model, vocabulary, own_context, num_common=num_common)

    def _draft_options(
        self, target: Context, num_guarded: int = 0, *, cells_beside_layers: bool = False
    ) -> ContextOptions:
        return ContextOptions(
            kv_cells=target.kv_cells,
            kv_type=kv_size.DRAFT_KV_TYPE,
            num_slots=self._options.max_seqs,
            num_guarded=num_guarded,
            batch_tokens=target.batch_tokens,
            outputs=self._options.max_seqs + num_guarded,
            threads=self._threads,
            threads_batch=self._threads_batch,
            flash_attention=self._options.flash_attention,
            cells_beside_layers=cells_beside_layers,
        )
