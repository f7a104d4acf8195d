"""Loads a model, its context and its adapters."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import Adapter, Kernels, LoadedAdapter, ModelInfo, WeightLayout
from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import AdapterFailed, StartupError
from openai_cpu_server.kernels.proof import kernels_in_use
from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.cells.batch import TokenBatch
from openai_cpu_server.llama.cells.context import AbortSwitch, Context, ContextOptions
from openai_cpu_server.llama.draft_model import DraftModel, require_same_tokens
from openai_cpu_server.llama.gguf.encoders import why_deadly
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.gguf.tensors import AdapterFile, file_digest
from openai_cpu_server.llama.host import ComputeThreads, Machine
from openai_cpu_server.llama.measure.layout import chosen_layout, leave_to_ggml
from openai_cpu_server.llama.model.kv_size import (
    CELLS_GRANULARITY,
    DRAFT_KV_TYPE,
    NUM_COPYING,
    SCORED_OUTPUTS,
    SLOTS_MAX,
    KVType,
    MemoryRoom,
    batch_tokens,
    encoder_memory,
    kept_states,
    num_snapshots,
)
from openai_cpu_server.llama.model.model import Model, cells_fingerprint
from openai_cpu_server.llama.model.native import native_log
from openai_cpu_server.llama.model.vocabulary import Vocabulary
from openai_cpu_server.llama.offload.choice import Places, chosen_places, of_draft_model
from openai_cpu_server.llama.projector import Projector, RowStore

logger = logging.getLogger(__name__)

_FileState = tuple[int, int, int]
"""Inode, size and time of modification."""


class _Native(NamedTuple):
    address: int
    scale: float


class NativeAdapters:
    """Owns the adapters of one model, and sets one of them on its context. Not thread-safe except for
    `check`."""

    def __init__(self, model: Model, context: Context) -> None:
        """Both arguments must live until `close`."""
        self._model = model
        self._context = context
        self._loaded: dict[str, _Native] = {}
        self._checked: dict[str, tuple[AdapterFile, _FileState]] = {}
        self._in_use: str | None = None

    def check(self, adapter: Adapter) -> None:
        """Validate the file, because llama.cpp ends the process for some that it should reject. Any thread
        may call this. Raises `AdapterFailed`."""
        path = Path(adapter.path)
        state = _file_state(path)
        if file_digest(path) != adapter.digest:
            raise AdapterFailed(f"{path} is not the file any more that was to be loaded.")
        self._checked[adapter.key] = AdapterFile.open(path, self._model.header), state

    def load(self, adapter: Adapter) -> LoadedAdapter:
        """Load a checked adapter. Raises `AdapterFailed`; then nothing of it stays loaded."""
        assert adapter.key not in self._loaded, f"{adapter.key} is loaded already"
        file, state = self._checked.pop(adapter.key)
        native = _Native(self._open(file.path), adapter.scale)
        if _file_state(file.path) != state:
            _free(native)
            raise AdapterFailed(f"{file.path} has changed while it was loaded.")
        self._loaded[adapter.key] = native
        return LoadedAdapter(
            key=adapter.key, rank=file.rank, num_tensors=file.num_pairs, size_bytes=file.num_bytes
        )

    def use(self, key: str | None) -> None:
        """Compute with this adapter, or none, from the next decode on. A change costs some milliseconds,
        because llama.cpp plans its next graph anew."""
        if key == self._in_use:
            return
        if key is None:
            self._context.set_adapter(None, 1.0)
        else:
            self._context.set_adapter(*self._loaded[key])
        self._in_use = key

    def unload(self, key: str) -> None:
        if key == self._in_use:
            self.use(None)
        _free(self._loaded.pop(key))

    def close(self) -> None:
        while self._loaded:
            _free(self._loaded.popitem()[1])

    def _open(self, path: Path) -> int:
        log = native_log().cleared()
        handle = llama_cpp.llama_adapter_lora_init(self._model.handle, os.fsencode(path))
        address = ctypes.cast(handle, ctypes.c_void_p).value
        if address is None:
            raise AdapterFailed(f"Cannot load {path}: {log.cause() or 'llama.cpp gave no reason'}.")
        return address


def _free(native: _Native) -> None:
    llama_cpp.llama_adapter_lora_free(ctypes.cast(native.address, ctypes.POINTER(ctypes.c_void_p)))


def _file_state(path: Path) -> _FileState:
    try:
        facts = path.stat()
    except OSError as error:
        raise AdapterFailed(f"Cannot read {path}: {error.strerror}.") from None
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


def switch_kernels(asked: str, pause: Callable[[], None] = lambda: None) -> Kernels:
    """Switch on the requested (`auto` or `off`) and proved kernels, for all models of this process."""
    native_log()
    return kernels_in_use(asked, libggml, pause)


class SlotsSetAside(NamedTuple):
    """Slots after those of the requests."""

    scratch: int
    """Holds cells that are being copied."""
    padding: int
    kept: range
    """Hold states to which an interrupted step rolls back."""

    @classmethod
    def behind(cls, num_slots: int, num_kept: int) -> SlotsSetAside:
        kept = num_slots + NUM_COPYING
        return cls(num_slots, num_slots + 1, range(kept, kept + num_kept))


class LoadedParts(NamedTuple):
    """Parts of a loaded model. The owner closes the context, then the model."""

    model: Model
    vocabulary: Vocabulary
    context: Context
    abort: AbortSwitch
    info: ModelInfo
    set_aside: SlotsSetAside
    fingerprint: str
    """Digest of everything that saved cells depend on."""
    draft_model: DraftModel | None
    row_store: RowStore | None


def load(options: EngineOptions, on_progress: Callable[[float], None], machine: Machine) -> LoadedParts:
    """Load the model of the options. Raises `StartupError`; then nothing stays loaded.

    `on_progress`: called with 0 to 1, and may let others compute. After 1 the load only fills memory, with
    one thread.
    """
    kv_type = KVType.named(options.kv_type)
    _require_sane_threads(options)
    with ExitStack() as undo:
        header = GgufHeader(Path(options.model_path))
        draft = None if options.draft_model_path is None else GgufHeader(Path(options.draft_model_path))
        kernels = switch_kernels(options.kernels, pause=lambda: on_progress(0.0))
        projector_path = None if options.projector_path is None else Path(options.projector_path)
        if projector_path is not None:
            _check_projector(projector_path)
        encoder = encoder_memory(options)
        free_bytes = machine.free_memory()
        draft_weights, weights = (
            chosen_layout(options, each, kernels, pause=lambda: on_progress(0.0)) if each else WeightLayout()
            for each in (draft, header)
        )
        leave_to_ggml(weights, kernels)
        places = chosen_places(options, free_bytes)
        draft_places = None if draft is None else chosen_places(of_draft_model(options), free_bytes)
        elsewhere = places.elsewhere
        room = MemoryRoom.of(header, draft, kv_type, free_bytes, encoder=encoder, elsewhere=elsewhere)
        model = Model.open(
            header,
            repack=weights.repacked,
            reads_weights=options.reads_weights,
            on_progress=on_progress,
            places=places.native,
        )
        undo.callback(model.close)
        if not model.generates_text:
            raise StartupError(f"{model.path} ({model.header.architecture}) is no model that generates text.")
        vocabulary = Vocabulary(model)
        abort = AbortSwitch()
        compute_threads = _compute_threads(options, machine)
        state_bytes, can_go_back = _state_facts(model, abort) if model.is_recurrent else (0, False)
        snapshots = num_snapshots(options, state_bytes, has_window=model.has_window) if can_go_back else 0
        set_aside = _slots_set_aside(options, model, state_bytes * (1 + snapshots), room.free_bytes)
        num_states = (1 + snapshots) * (set_aside.kept.stop + options.max_seqs * model.has_window)
        room = room.beside_states(state_bytes * num_states)
        if state_bytes:
            logger.info(
                "states: %d of %.1f MiB, %d of them for interrupted steps; fewer with a smaller --max-seqs",
                num_states,
                state_bytes / 2**20,
                len(set_aside.kept) * (1 + snapshots),
            )
        projector = (
            None if projector_path is None else _projector(projector_path, options, model, machine, undo)
        )
        cells = places.most_cells(room.pool_cells(options.kv_tokens))
        context_options = _context_options(options, model, set_aside, snapshots, cells, kv_type, machine)
        if projector is not None:
            # Some rows of a picture are computed in one step, beside a token of everybody else.
            most = context_options.batch_tokens + projector.most_whole_rows
            context_options = msgspec.structs.replace(context_options, batch_tokens=most)
        if places.cells_beside_layers:
            context_options = msgspec.structs.replace(context_options, cells_beside_layers=True)
        context = Context(model, context_options, abort, compute_threads)
        undo.callback(context.close)
        info = _info(options, model, vocabulary, context, room, kernels, weights, state_bytes)
        info = msgspec.structs.replace(info, placement=places.placement)
        fingerprint = cells_fingerprint(
            model.header, info, projector_path, flash_attention=options.flash_attention
        )
        draft_model = None
        if draft is not None and draft_places is not None:
            draft_model = _load_draft_model(
                draft, draft_weights, draft_places, options, vocabulary, info, abort, compute_threads
            )
            info = msgspec.structs.replace(
                info,
                draft_cost=draft_model.num_parameters / max(1, info.num_parameters),
                draft_placement=draft_places.placement,
            )
        row_store = None
        if projector is not None:
            row_store = RowStore(projector)
            info = msgspec.structs.replace(info, sees=projector.sees, sound_rate=projector.sound_rate)
        undo.pop_all()
    return LoadedParts(
        model, vocabulary, context, abort, info, set_aside, fingerprint, draft_model, row_store
    )


def _check_projector(path: Path) -> None:
    if not path.is_file():
        raise StartupError(f"There is no projector {path}.")
    if (why := why_deadly(GgufHeader(path))) is not None:
        raise StartupError(
            f"The projector {path} cannot be used: llama.cpp dies of any sound with it ({why})."
        )


def _projector(
    path: Path, options: EngineOptions, model: Model, machine: Machine, undo: ExitStack
) -> Projector:
    threads = options.threads_batch or options.threads or machine.num_threads()
    projector = Projector(path, model, threads=threads, flash_attention=options.flash_attention)
    undo.callback(projector.close)
    return projector


def _compute_threads(options: EngineOptions, machine: Machine) -> ComputeThreads:
    """Threads are bound only if all steps have as many, because a change of the number starts new ones."""
    threads = options.threads or machine.num_threads()
    most = max(threads, options.threads_batch or threads)
    return ComputeThreads(most, may_bind=options.threads_batch in (None, threads))


def _state_facts(model: Model, abort: AbortSwitch) -> tuple[int, bool]:
    """Bytes of a saved state, and True if llama.cpp can keep snapshots for this architecture.

    llama.cpp reports the bytes only for a sequence with a state. So a step is begun in a separate context and
    aborted at once. At a position other than the first, llama.cpp keeps the state that it has begun.
    """
    options = ContextOptions(
        kv_cells=CELLS_GRANULARITY,
        kv_type=KVType.F32,
        copies_whole=model.is_copied_whole,
        snapshots=1,
        num_slots=2,
        batch_tokens=32,
        outputs=2,
        threads=1,
        threads_batch=1,
        flash_attention=True,
    )
    context = Context(model, options, abort, ComputeThreads(1))
    try:
        batch = TokenBatch(1)
        batch.fill([Span(slot=0, start=1, tokens=(0,), sample=False)])
        with abort.armed():
            abort.press()
            context.decode(batch)
        context.share_state(0, 1)
        return context.cells_bytes(1), context.snapshots > 0
    finally:
        context.close()


def _slots_set_aside(
    options: EngineOptions, model: Model, state_bytes: int, free_bytes: int
) -> SlotsSetAside:
    per_slot = 2 if model.has_window else 1
    left = SLOTS_MAX - NUM_COPYING - per_slot * options.max_seqs
    if options.max_seqs < 1 or left < 0:
        most = (SLOTS_MAX - NUM_COPYING) // per_slot
        why = " (its windows need a second sequence for each)" if model.has_window else ""
        raise StartupError(
            f"--max-seqs must be between 1 and {most} for this model{why}, not {options.max_seqs}."
        )
    kept = kept_states(options.max_seqs, state_bytes, free_bytes)
    if model.is_copied_whole:  # to keep those would be to copy all that they hold
        kept = 0
    return SlotsSetAside.behind(options.max_seqs, min(left, kept))


def _load_draft_model(
    header: GgufHeader,
    weights: WeightLayout,
    places: Places,
    options: EngineOptions,
    large: Vocabulary,
    info: ModelInfo,
    abort: AbortSwitch,
    compute_threads: ComputeThreads,
) -> DraftModel:
    with ExitStack() as undo:
        model = Model.open(
            header,
            repack=weights.repacked,
            reads_weights=options.reads_weights,
            on_progress=lambda fraction: None,
            places=places.native,
        )
        undo.callback(model.close)
        if not model.generates_text or model.is_recurrent:
            raise StartupError(
                f"{header.path} ({header.architecture}) cannot draft: "
                "its memory of tokens cannot be cut back."
            )
        vocabulary = Vocabulary(model)
        require_same_tokens(large, vocabulary, str(header.path))
        context_options = _draft_context_options(options, info, model, places)
        context = Context(model, context_options, abort, compute_threads)
        undo.pop_all()
    return DraftModel(model, vocabulary, context, num_common=min(large.vocab_size, vocabulary.vocab_size))


def _draft_context_options(
    options: EngineOptions, info: ModelInfo, model: Model, places: Places
) -> ContextOptions:
    num_guarded = info.max_seqs if model.has_window else 0
    if info.max_seqs + num_guarded > SLOTS_MAX:
        raise StartupError(
            f"--max-seqs must be at most {SLOTS_MAX // 2} with the draft model {model.path}: "
            "its windows need a second sequence for each."
        )
    return ContextOptions(
        kv_cells=info.kv_tokens,
        kv_type=DRAFT_KV_TYPE,
        num_slots=info.max_seqs,
        num_guarded=num_guarded,
        batch_tokens=info.max_step_tokens,
        outputs=info.max_seqs + num_guarded,
        threads=info.threads,
        threads_batch=options.threads_batch or info.threads,
        flash_attention=options.flash_attention,
        cells_beside_layers=places.cells_beside_layers,
    )


def _require_sane_threads(options: EngineOptions) -> None:
    for name, threads in (("threads", options.threads), ("threads-batch", options.threads_batch)):
        if threads is not None and threads < 1:
            raise StartupError(f"--{name} must be at least 1, not {threads}.")
    if not options.flash_attention and KVType.named(options.kv_type).is_quantised:
        raise StartupError(f"KV type {options.kv_type} needs flash attention.")
    if options.prefill_tokens < 1:
        raise StartupError("A step must be allowed at least 1 token.")


def _context_options(
    options: EngineOptions,
    model: Model,
    set_aside: SlotsSetAside,
    snapshots: int,
    cells: int,
    kv_type: KVType,
    machine: Machine,
) -> ContextOptions:
    threads = options.threads or machine.num_threads()
    num_guarded = options.max_seqs if model.has_window else 0
    return ContextOptions(
        kv_cells=cells,
        kv_type=kv_type,
        num_slots=set_aside.kept.stop,
        num_guarded=num_guarded,
        copies_whole=model.is_copied_whole,
        snapshots=snapshots,
        batch_tokens=batch_tokens(options),
        outputs=max(options.max_seqs + SCORED_OUTPUTS, set_aside.kept.stop + num_guarded),
        threads=threads,
        threads_batch=options.threads_batch or threads,
        flash_attention=options.flash_attention,
    )


def _info(
    options: EngineOptions,
    model: Model,
    vocabulary: Vocabulary,
    context: Context,
    room: MemoryRoom,
    kernels: Kernels,
    weights: WeightLayout,
    state_bytes: int,
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
        kv_bytes_per_token=room.cell_bytes,
        kv_type=options.kv_type,
        max_seqs=options.max_seqs,
        max_step_tokens=context.batch_tokens,
        max_step_outputs=context.max_outputs,
        threads=context.threads,
        end_tokens=vocabulary.end_tokens,
        state_bytes=state_bytes,
        max_draft=context.snapshots if state_bytes else None,
        kernels=kernels,
        weights=weights,
    )
