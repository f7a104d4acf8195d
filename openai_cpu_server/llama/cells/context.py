"""Batches in llama.cpp's layout, and the context that decodes them."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from openai_cpu_server.contract.step import Span
from openai_cpu_server.errors import ServerError, StartupError
from openai_cpu_server.llama.bindings import head_library, llama_cpp
from openai_cpu_server.llama.cells.block_store import Bytes
from openai_cpu_server.llama.host import ComputeThreads
from openai_cpu_server.llama.model.kv_size import SLOTS_MAX, KVType
from openai_cpu_server.llama.model.model import Model, NativeObject, native_log


class OutputRows(NamedTuple):
    targets: range
    samples: range
    """Rows for the last token and for each draft token, or empty."""

    def behind(self, num_rows: int) -> OutputRows:
        return OutputRows(*(range(own.start + num_rows, own.stop + num_rows) for own in self))


class BatchLayout(NamedTuple):
    rows: list[OutputRows]
    num_outputs: int


class SlotSequences(NamedTuple):
    """llama.cpp's sequence ids of a slot: its number, and that of its guard, a second owner of its cells.

    llama.cpp reuses a cell that a window has passed if exactly one sequence owns it.
    """

    num_guarded: int = 0
    first_guard: int = 0

    def of(self, slot: int) -> tuple[int, ...]:
        return (slot, self.first_guard + slot) if slot < self.num_guarded else (slot,)

    def add_guards(self, slots: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> None:
        """`slots`: (tokens, 2). `counts`: (tokens,)."""
        if self.num_guarded:
            slots[:, 1] = slots[:, 0] + self.first_guard
            counts[:] = np.where(slots[:, 0] < self.num_guarded, 2, 1)


class NativeBatch:
    """`llama_batch` whose arrays belong to numpy."""

    def __init__(
        self,
        capacity: int,
        sequences: SlotSequences,
        **arrays: npt.NDArray[np.float32] | npt.NDArray[np.int32],
    ) -> None:
        self.capacity = capacity
        self._sequences = sequences
        self._slots = np.zeros((capacity, 2), np.int32)
        self._slot_counts = np.ones(capacity, np.int32)
        self._wants_logits = np.zeros(capacity, np.int8)
        row = self._slots.strides[0] * np.arange(capacity, dtype=np.uintp)
        self._slot_pointers = np.uintp(self._slots.ctypes.data) + row
        self.native = llama_cpp.llama_batch()
        kinds = dict(llama_cpp.llama_batch._fields_)
        for name, array in (
            ("n_seq_id", self._slot_counts),
            ("seq_id", self._slot_pointers),
            ("logits", self._wants_logits),
            *arrays.items(),
        ):
            setattr(self.native, name, array.ctypes.data_as(kinds[name]))


class TokenBatch(NativeBatch):
    def __init__(self, capacity: int, sequences: SlotSequences | None = None) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        super().__init__(capacity, sequences or SlotSequences(), token=self._tokens, pos=self._positions)

    def fill(self, spans: Sequence[Span]) -> BatchLayout:
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        wants: list[int] = []
        rows = []
        num_outputs = 0
        for span in spans:
            length, own = span.num_tokens, _wants(span)
            tokens += span.tokens
            tokens += span.draft
            positions += range(span.start, span.start + length)
            slots += repeat(span.slot, length)
            wants += own
            rows.append(_rows(span, num_outputs))
            num_outputs += sum(own)
        count = len(tokens)
        assert 0 < count <= self.capacity, f"{count} tokens in a step of at most {self.capacity}"
        self._tokens[:count] = tokens
        self._positions[:count] = positions
        self._slots[:count, 0] = slots
        self._sequences.add_guards(self._slots[:count], self._slot_counts[:count])
        self._wants_logits[:count] = wants
        self.native.n_tokens = count
        return BatchLayout(rows, num_outputs)


HiddenRow = npt.NDArray[np.float32]
"""(width,)"""


class PlacedRows(NamedTuple):
    slot: int
    values: npt.NDArray[np.float32]
    """(rows, width)"""
    places: npt.NDArray[np.int32]
    """(4, rows): positions in each dimension of the model."""
    is_whole: bool = False


class RowBatch(NativeBatch):
    def __init__(self, capacity: int, width: int, sequences: SlotSequences) -> None:
        self._rows = np.zeros((capacity, width), np.float32)
        self._places = np.zeros(4 * capacity, np.int32)
        super().__init__(capacity, sequences, embd=self._rows, pos=self._places)

    def fill(self, parts: Sequence[PlacedRows]) -> None:
        count = sum(len(part.values) for part in parts)
        assert 0 < count <= self.capacity, f"{count} rows in a step of at most {self.capacity}"
        np.concatenate([part.values for part in parts], out=self._rows[:count])
        self._places[: 4 * count] = np.concatenate([part.places for part in parts], axis=1).ravel()
        self._slots[:count, 0] = np.repeat([part.slot for part in parts], [len(p.values) for p in parts])
        self._sequences.add_guards(self._slots[:count], self._slot_counts[:count])
        self.native.n_tokens = count


class HeadToken(NamedTuple):
    slot: int
    position: int
    token: int
    row: HiddenRow
    wanted: bool = False


class HeadBatch(NativeBatch):
    def __init__(self, capacity: int, width: int) -> None:
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._rows = np.zeros((capacity, width), np.float32)
        super().__init__(capacity, SlotSequences(), token=self._tokens, pos=self._positions, embd=self._rows)

    def fill(self, tokens: Sequence[HeadToken]) -> None:
        count = len(tokens)
        assert 0 < count <= self.capacity, f"{count} tokens for a head that reads at most {self.capacity}"
        slots, positions, numbers, rows, wants = zip(*tokens, strict=True)
        self._slots[:count, 0] = slots
        self._positions[:count] = positions
        self._tokens[:count] = numbers
        np.stack(rows, out=self._rows[:count])
        self._wants_logits[:count] = wants
        self.native.n_tokens = count


def _wants(span: Span) -> list[int]:
    length, scored = len(span.tokens), len(span.targets)
    assert length > 0, "an empty span"
    assert scored <= length, f"{scored} targets for {length} tokens"
    assert not span.draft or (span.sample and not scored), "a draft where it is of no use"
    assert not span.num_to_draft, "a draft that was not made"
    wants = [1] * scored + [0] * (length - scored)
    if span.sample:
        wants[-1] = 1
    return wants + [1] * len(span.draft)


def _rows(span: Span, first: int) -> OutputRows:
    scored = len(span.targets)
    sampled = first + min(scored, len(span.tokens) - 1)
    end = sampled + 1 + len(span.draft) if span.sample else sampled
    return OutputRows(range(first, first + scored), range(sampled, end))


class AbortSwitch:
    """Abort callback of llama.cpp without the GIL: the C library's `strlen` of a text of length 0 or 1.

    A press counts for the running or else the next step, if armed. After the last node it hits the next step,
    which is then computed again.
    """

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(2)
        self._lock = threading.Lock()
        self._states = {"armed": False, "pressed": False, "held": False}

    def connect(self, params: llama_cpp.llama_context_params) -> None:
        """The context must not outlive the switch, whose address it keeps."""
        params.abort_callback = ctypes.cast(ctypes.CDLL(None).strlen, llama_cpp.ggml_abort_callback)
        params.abort_callback_data = ctypes.addressof(self._text)

    @contextlib.contextmanager
    def armed(self, *, is_armed: bool = True) -> Iterator[None]:
        self._set(armed=is_armed)
        try:
            yield
        finally:
            self._set(armed=False, pressed=False)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self._set(held=True)
        try:
            yield
        finally:
            self._set(held=False)

    def press(self) -> None:
        """Interrupt the running step, from any thread at any time."""
        self._set(pressed=True)

    def _set(self, **states: bool) -> None:
        with self._lock:
            self._states |= states
            counts = self._states == {"armed": True, "pressed": True, "held": False}
            self._text[0] = b"\x01" if counts else b"\x00"


Logits = npt.NDArray[np.float32]

_NO_POSITION = 2**31 - 2


class SlotContent(enum.IntEnum):
    CELLS = 0
    STATE = llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY


class DecodeFailed(ServerError):
    """A bug, ours or llama.cpp's, after which the content of the pool is unknown."""


class PoolFull(DecodeFailed):
    """Too few cells are free. The pool is unchanged."""


class ContextOptions(msgspec.Struct, frozen=True, kw_only=True):
    kv_cells: int
    kv_type: KVType
    num_slots: int
    num_guarded: int = 0
    """Leading slots that keep cells which a window has passed."""
    copies_whole: bool = False
    """True if a sequence's memory is a state, which can only be copied whole."""
    snapshots: int = 0
    """States before the last tokens of each sequence, for rollback."""
    batch_tokens: int
    outputs: int
    """Rows of logits; llama.cpp requires one per sequence id."""
    threads: int
    threads_batch: int
    flash_attention: bool
    cells_beside_layers: bool = False
    """True: cells and states lie on their layer's device; else on the CPU."""


class OwnedContext(NativeObject):
    """`llama_context` that `model` must outlive."""

    def __init__(
        self,
        model: Model,
        params: llama_cpp.llama_context_params,
        abort: AbortSwitch,
        compute_threads: ComputeThreads,
    ) -> None:
        log = native_log().cleared()
        abort.connect(params)
        handle = llama_cpp.llama_init_from_model(model.handle, params)
        if handle is None:
            cause = log.cause() or "no reason given"
            raise model.places.failure(f"Cannot make a context for {model.path}: {cause}.")
        super().__init__(handle, llama_cpp.llama_free)
        self._abort = abort
        self.compute_threads = compute_threads
        self._threads = int(params.n_threads), int(params.n_threads_batch)
        """Threads for one token, and for more."""
        self._memory = llama_cpp.llama_get_memory(handle)
        """Handle, or None if the context keeps no cells."""
        self._returns_early = model.places.uses_device
        """A device computes on after llama.cpp's calls return."""

    @property
    def threads(self) -> int:
        return self._threads[0]

    def _run(self, function: Callable[..., int], batch: NativeBatch) -> int:
        one, more = (min(most, self.compute_threads.count) for most in self._threads)
        llama_cpp.llama_set_n_threads(self.handle, one, more)
        with self.compute_threads.computing():
            code = int(function(self.handle, batch.native))
            if self._returns_early:  # else its steps would seem free
                llama_cpp.llama_synchronize(self.handle)
        return code


class Context(OwnedContext):
    """Unified pool of KV cells, shared by all slots (llama.cpp's sequence ids)."""

    def __init__(
        self,
        model: Model,
        options: ContextOptions,
        abort: AbortSwitch,
        compute_threads: ComputeThreads,
        target: Context | None = None,
    ) -> None:
        """`target`: context of the model that a prediction head drafts for; it must outlive this one."""
        params = _params(options)
        if target is not None:
            params.ctx_type, params.ctx_other = llama_cpp.LLAMA_CONTEXT_TYPE_MTP, target.handle
        super().__init__(model, params, abort, compute_threads)
        self._row_width = model.output_width
        self.sequences = SlotSequences(options.num_guarded, options.num_slots)
        self.copies_whole = options.copies_whole
        self.max_outputs = options.outputs
        self._vocab_size = int(llama_cpp.llama_vocab_n_tokens(model.vocab))
        if self._memory is None:
            self.close()
            raise StartupError(f"{model.path} keeps no memory of its tokens: it cannot generate text.")

    @property
    def kv_cells(self) -> int:
        return int(llama_cpp.llama_n_ctx(self.handle))

    @property
    def batch_tokens(self) -> int:
        return int(llama_cpp.llama_n_batch(self.handle))

    def decode(self, batch: NativeBatch) -> bool:
        """Return False if interrupted, which may leave cells that the caller must trim. Raises
        `DecodeFailed`."""
        log = native_log().cleared()
        code = self._run(llama_cpp.llama_decode, batch)
        if code in (0, 2):
            return code == 0
        if code == 1:
            # Cells are taken wherever they are free, so this is a wrong ledger, not fragmentation.
            raise PoolFull(f"No free KV cells for {batch.native.n_tokens} tokens: the ledger is wrong.")
        raise DecodeFailed(f"llama_decode returned {code}: {log.cause() or 'no reason given'}.")

    @contextlib.contextmanager
    def seeing_all(self) -> Iterator[None]:
        """Decode without a causal mask."""
        llama_cpp.llama_set_causal_attn(self.handle, False)
        try:
            yield
        finally:
            llama_cpp.llama_set_causal_attn(self.handle, True)

    def logits(self, rows: int) -> Logits:
        """View (rows, vocabulary) that the next decode overwrites."""
        assert 0 < rows <= self.max_outputs
        return _view(llama_cpp.llama_get_logits(self.handle), rows, self._vocab_size)

    def give_hidden_rows(self, *, of_outputs: bool, is_on: bool = True) -> None:
        """Take effect from the next decode on."""
        head_library().llama_set_embeddings_nextn(self.handle, is_on, of_outputs)

    def use_head(self, number: int) -> None:
        head_library().llama_set_nextn_layer_offset(self.handle, number)

    def hidden_rows(self, count: int) -> npt.NDArray[np.float32]:
        """View (count, width) that the next decode overwrites."""
        return _view(head_library().llama_get_embeddings_nextn(self.handle), count, self._row_width)

    def set_adapter(self, address: int | None, scale: float) -> None:
        """`address`: `llama_adapter_lora`, or None."""
        count = 0 if address is None else 1
        handles, scales = (ctypes.c_void_p * count)(), (ctypes.c_float * count)()
        if address is not None:
            handles[0], scales[0] = address, scale
        pointer = ctypes.cast(handles, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))
        code = llama_cpp.llama_set_adapters_lora(self.handle, pointer, count, scales)
        if code != 0:
            raise DecodeFailed(f"llama.cpp does not take an adapter (code {code}).")

    def free_slot(self, slot: int) -> None:
        for sequence in self.sequences.of(slot):
            llama_cpp.llama_memory_seq_rm(self._live_memory, sequence, -1, -1)

    @property
    def snapshots(self) -> int:
        return int(llama_cpp.llama_n_rs_seq(self.handle))

    def trim(self, slot: int, start: int) -> None:
        """Remove cells from `start` on. A state must stand there or be able to roll back; start 0 removes it
        too."""
        for sequence in self.sequences.of(slot):
            if not llama_cpp.llama_memory_seq_rm(self._live_memory, sequence, start, -1):
                raise DecodeFailed(
                    f"Slot {slot} cannot be trimmed to {start} tokens: this model's memory cannot."
                )

    def share(self, source: int, slot: int, start: int, end: int) -> None:
        """Let `slot` also hold cells start .. end-1 of `source`, and its state, which is copied on change."""
        if self.copies_whole:
            start = end = -1
        for sequence in self.sequences.of(slot):
            llama_cpp.llama_memory_seq_cp(self._live_memory, source, sequence, start, end)

    def share_state(self, source: int, slot: int) -> None:
        self.share(source, slot, _NO_POSITION, _NO_POSITION + 1)

    def saved_bytes(self, slot: int, content: SlotContent) -> int:
        return int(llama_cpp.llama_state_seq_get_size_ext(self.handle, slot, content))

    def save(self, slot: int, data: Bytes, content: SlotContent) -> None:
        """Copy the content into `data`. A slot whose state is copied must have no cells of windows."""
        copy = llama_cpp.llama_state_seq_get_data_ext
        self._transfer(copy, slot, data, content, failure="Saved {} bytes instead of {}")

    def restore(self, slot: int, data: Bytes, content: SlotContent) -> None:
        """Replace the content. Cells need as many free ones."""
        write = llama_cpp.llama_state_seq_set_data_ext
        self._transfer(write, slot, data, content, failure="Restored {} of {} bytes")

    def _transfer(
        self, function: Callable[..., int], slot: int, data: Bytes, content: SlotContent, *, failure: str
    ) -> None:
        assert data.flags.c_contiguous
        log = native_log().cleared()
        pointer = ctypes.cast(data.ctypes.data, ctypes.POINTER(ctypes.c_uint8))
        count = function(self.handle, pointer, len(data), slot, content)
        if count != len(data):
            raise DecodeFailed(f"{failure.format(count, len(data))}: {log.cause() or 'no reason'}.")

    def num_positions(self, slot: int) -> int:
        return int(llama_cpp.llama_memory_seq_pos_max(self._live_memory, slot)) + 1

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(self._live_memory, False)

    @property
    def _live_memory(self) -> object:
        assert self._handle is not None, "the context is closed"
        return self._memory


def _view(pointer: Any, rows: int, width: int) -> npt.NDArray[np.float32]:
    values = (ctypes.c_float * (rows * width)).from_address(ctypes.addressof(pointer.contents))
    return np.ctypeslib.as_array(values).reshape(rows, width)


def common_params(*, flash_attention: bool) -> llama_cpp.llama_context_params:
    params = llama_cpp.llama_context_default_params()
    params.kv_unified = True
    params.flash_attn_type = (
        llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        if flash_attention
        else llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
    )
    params.swa_full = True
    params.offload_kqv = params.op_offload = False
    params.no_perf = True
    return params


def _params(options: ContextOptions) -> llama_cpp.llama_context_params:
    num_sequences = options.num_slots + options.num_guarded
    assert num_sequences <= SLOTS_MAX
    assert num_sequences <= options.outputs
    params = common_params(flash_attention=options.flash_attention)
    params.n_ctx = options.kv_cells
    params.n_batch = params.n_ubatch = options.batch_tokens
    params.n_seq_max = num_sequences
    params.n_rs_seq = options.snapshots
    params.n_outputs_max = options.outputs
    params.n_outputs_max_per_seq = options.outputs
    params.n_threads, params.n_threads_batch = options.threads, options.threads_batch
    params.type_k = params.type_v = options.kv_type.value.number
    params.offload_kqv = options.cells_beside_layers
    return params
