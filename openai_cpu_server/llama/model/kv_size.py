"""Sizes of KV cells and of the pool, and memory limits. Loads no llama.cpp."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import NamedTuple

from openai_cpu_server.contract.media import MOST_SOUND_S
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import TILE_TOKENS
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.encoders import EncoderFacts, ProjectorFacts
from openai_cpu_server.llama.gguf.header import ENCODERS, GgufHeader, model_files, total_bytes
from openai_cpu_server.llama.gguf.heads import (
    HeadKind,
    PredictionHead,
    head_count,
    head_in,
    layer_count,
    only_drafts,
    why_unfit,
)
from openai_cpu_server.llama.gguf.tensors import TENSOR_TYPES

CELLS_GRANULARITY = 256
"""llama.cpp pads the pool to a multiple of this."""
_DEFAULT_CELLS_MAX = 16_384


class KVType(enum.Enum):
    F32 = TENSOR_TYPES[0]
    F16 = TENSOR_TYPES[1]
    BF16 = TENSOR_TYPES[30]
    Q8_0 = TENSOR_TYPES[8]

    @classmethod
    def named(cls, name: str) -> KVType:
        kinds = {kind.value.name: kind for kind in cls}
        if name not in kinds:
            raise StartupError(f"Unknown KV type '{name}'; the types are {', '.join(kinds)}.")
        return kinds[name]

    def row_bytes(self, num_values: int) -> int:
        return -(-num_values // self.value.block_values) * self.value.block_bytes


DRAFT_KV_TYPE = KVType.F16


def bytes_per_cell(header: GgufHeader, kv_type: KVType) -> int:
    """Return an upper bound, because window layers may have heads of another size."""
    return sum(cell_bytes_by_layer(header, kv_type))


def cell_bytes_by_layer(header: GgufHeader, kv_type: KVType) -> list[int]:
    heads = _kv_heads(header)
    key_values, value_values = _head_sizes(header)
    widest = max(heads, default=0) * max(key_values, value_values)
    if widest > header.most_values:
        raise StartupError(f"{header.path} is damaged: it counts {widest:,} keys of a token in one layer.")
    return [
        kv_type.row_bytes(count * key_values) + kv_type.row_bytes(count * value_values) for count in heads
    ]


def _kv_heads(header: GgufHeader) -> list[int]:
    num_all = layer_count(header)
    if header.architecture in ENCODERS:
        return [0] * num_all
    num_layers = max(0, num_all - head_count(header))
    heads = header.arch_ints("attention.head_count", num_layers) or [0] * num_layers
    kv_heads = header.arch_ints("attention.head_count_kv", num_layers) or heads
    own = max(0, num_layers - (header.arch_int("attention.shared_kv_layers") or 0))
    interval = header.arch_int("full_attention_interval") or 1
    cached = [count if layer % interval == 0 else 0 for layer, count in enumerate(kv_heads[:own], 1)]
    return [max(0, count) for count in cached] + [0] * (num_all - len(cached))


class DraftSource(NamedTuple):
    header: GgufHeader
    head: PredictionHead | None = None
    """Head, or None for a small model."""
    is_own: bool = False
    """True if the file is the model's."""

    @property
    def weights(self) -> int:
        return 0 if self.is_own else total_bytes(model_files(self.header))

    @property
    def cell_bytes(self) -> int:
        if self.head is None:
            return bytes_per_cell(self.header, DRAFT_KV_TYPE)
        header, num_layers = self.header, layer_count(self.header)
        heads = header.arch_ints("attention.head_count", num_layers)
        counts = header.arch_ints("attention.head_count_kv", num_layers) or heads or []
        values = sum(_head_sizes(self.header))
        # Each head of a chain has cells for all layers of heads.
        contexts = self.head.num_heads if self.head.kind is HeadKind.CHAINED else 1
        layers = counts[len(counts) - self.head.num_layers :]
        return contexts * sum(DRAFT_KV_TYPE.row_bytes(count * values) for count in layers)


def planned_drafts(header: GgufHeader, options: EngineOptions) -> tuple[DraftSource | None, str | None]:
    """Return the source of drafts beside prompt lookup, and why a head is not used.

    Raises `StartupError` for a named source that cannot be used.
    """
    path = options.draft_model_path
    if options.speculation == "off":
        return None, None
    draft = header if path is None else GgufHeader(Path(path))
    if path is not None and not only_drafts(draft):
        return DraftSource(draft), None
    try:
        head = None if path is None and options.head == "none" else head_in(draft)
        why = None if head is None or path is None else why_unfit(head, header)
        if why is not None:
            raise StartupError(f"{draft.path} cannot draft for {header.path.name}: {why}.")
        if head is None and options.head == "own":
            raise StartupError(f"{header.path} has no head to draft with.")
    except StartupError as error:
        if options.head != "auto":
            raise
        return None, str(error)
    return None if head is None else DraftSource(draft, head, is_own=path is None), None


def _head_sizes(header: GgufHeader) -> tuple[int, int]:
    """Latent attention (MLA) keeps no values beside the keys."""
    heads = header.arch_ints("attention.head_count", 1) or [0]
    default = (header.arch_int("embedding_length") or 0) // max(1, heads[0])
    key_values = _largest(header, "attention.key_length", default)
    value_values = _largest(header, "attention.value_length", default)
    is_latent = bool(header.arch_int("attention.key_length_mla"))
    return key_values, 0 if is_latent else value_values


def _largest(header: GgufHeader, name: str, default: int) -> int:
    full = header.arch_int(name) or default
    return max(full, header.arch_int(name + "_swa") or full)


SLOTS_MAX = 256
"""llama.cpp's LLAMA_MAX_SEQ."""
NUM_COPYING = 2
"""One for copies of cells, and one for padding."""
_MOST_ROLLBACK_STATES = 32
_ROLLBACK_SHARE = 8
"""Part of the free memory for rollback states."""


def rollback_states(max_seqs: int, state_bytes: int, free_bytes: int) -> int:
    """Return how many states an interrupted step may roll back to. llama.cpp makes all of them resident at
    the start."""
    most = free_bytes // _ROLLBACK_SHARE // state_bytes if state_bytes else 0
    return min(max_seqs, _MOST_ROLLBACK_STATES, most)


_SMALL_STATE_BYTES = 2**20
_MANY_SNAPSHOTS, _FEW_SNAPSHOTS = 7, 3


def num_snapshots(options: EngineOptions, state_bytes: int, *, has_window: bool, drafts: bool) -> int:
    """Return the number of states per sequence for rollback after a draft. Each token writes a snapshot."""
    if options.speculation == "off" or has_window:
        return 0  # llama.cpp cannot distinguish snapshots from cells of windows when it copies them
    if state_bytes <= _SMALL_STATE_BYTES:
        return _MANY_SNAPSHOTS  # LFM2's of 80 kB cost 0 of 57 ms
    # three of 20 MB (Qwen3.5) make a step 4 % slower and states four times as large
    return _FEW_SNAPSHOTS if drafts else 0


SCORED_OUTPUTS = 64
"""Rows of logits for prompt scoring, beside one per sequence."""


class SequencePlan(NamedTuple):
    """Slots of requests, then sequences for copies, rollback and guards."""

    num_slots: int
    num_rollback: int
    num_guarded: int
    snapshots: int
    """States of each sequence for rollback after a draft."""

    @classmethod
    def of(
        cls,
        options: EngineOptions,
        state_bytes: int,
        free_bytes: int,
        *,
        has_window: bool,
        drafts: bool = False,
        can_go_back: bool = True,
        copies_whole: bool = False,
    ) -> SequencePlan:
        """`can_go_back`: llama.cpp can keep snapshots. `copies_whole`: only whole sequences can be copied."""
        snapshots = 0
        if state_bytes and can_go_back:
            snapshots = num_snapshots(options, state_bytes, has_window=has_window, drafts=drafts)
        num_guarded = options.max_seqs if has_window else 0
        left = max(0, SLOTS_MAX - NUM_COPYING - options.max_seqs - num_guarded)
        num_states = rollback_states(options.max_seqs, state_bytes * (1 + snapshots), free_bytes)
        num_rollback = 0 if copies_whole else min(left, num_states)
        return cls(options.max_seqs, num_rollback, num_guarded, snapshots)

    @property
    def scratch_slot(self) -> int:
        return self.num_slots

    @property
    def padding_slot(self) -> int:
        return self.num_slots + 1

    @property
    def rollback_slots(self) -> range:
        first = self.num_slots + NUM_COPYING
        return range(first, first + self.num_rollback)

    @property
    def num_sequences(self) -> int:
        return self.rollback_slots.stop + self.num_guarded

    @property
    def num_states(self) -> int:
        return self.num_sequences * (1 + self.snapshots)

    @property
    def num_outputs(self) -> int:
        """llama.cpp requires a row of logits per sequence."""
        return max(self.num_slots + SCORED_OUTPUTS, self.num_sequences)


def default_states_bytes(state_bytes: int, free_bytes: int) -> int:
    max_seqs = EngineOptions(model_path="").max_seqs
    return state_bytes * (max_seqs + NUM_COPYING + rollback_states(max_seqs, state_bytes, free_bytes))


def pool_cells(requested: int | None, cell_bytes: int, free_bytes: int) -> int:
    """Return at most the cells that half of `free_bytes` holds, unless requested."""
    if requested is not None:
        _require_fit(requested, cell_bytes, free_bytes)
        return requested
    affordable = free_bytes // 2 // max(1, cell_bytes)
    cells = min(affordable, _DEFAULT_CELLS_MAX) // CELLS_GRANULARITY * CELLS_GRANULARITY
    if cells == 0:
        _require_fit(CELLS_GRANULARITY, cell_bytes, free_bytes // 2)
    return cells


def _require_fit(cells: int, cell_bytes: int, free_bytes: int) -> None:
    if cells < 1:
        raise StartupError(f"A KV pool of {cells} tokens is too small.")
    needed = cells * cell_bytes
    if needed > free_bytes:
        raise StartupError(
            f"Not enough memory for the KV pool: {cells} tokens at {cell_bytes} bytes need "
            f"{_megabytes(needed)}, but {_megabytes(free_bytes)} can be had beside the weights; "
            "ask for fewer tokens (--ctx-size) or a smaller KV type (--kv-type)."
        )


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f} MiB"


_BATCH_TOKENS_MIN = 32
LEAST_TOKENS = 512
"""Floor of an encoder's longest input."""
_SHARE_OF_MEMORY = 8
"""Part of the free memory for logits. llama.cpp reserves a row for each token of a step."""
_LOGIT_BYTES = 4


ROW_CACHE_BYTES = 256 * 1024 * 1024
_MOST_PATCHES = 16_384
"""Limit for any picture; libmtmd makes at most 4,096 rows of 4 patches."""
_MOST_FRAMES = 4096
"""Frames that an encoder sees at once; Whisper's takes 1,500."""
_SPECTRUM_BYTES = 2 * 4 * 100 * MOST_SOUND_S
"""One band of the longest sound: 100 frames per second, twice."""


class EncoderMemory(NamedTuple):
    weights: int = 0
    buffers: int = 0
    """Activations, and cached rows."""


_NO_ENCODER = EncoderMemory()


def encoder_memory(options: EngineOptions) -> EncoderMemory:
    """Return the bytes of the projector. libmtmd reserves as much for SigLIP (21 and 121 MiB).

    A layer holds its input three times and the widest product once, in f32; without flash attention also all
    scores.
    """
    if options.projector_path is None:
        return _NO_ENCODER
    header = GgufHeader(Path(options.projector_path))
    facts = ProjectorFacts.of(header)
    buffers = ROW_CACHE_BYTES
    if (seeing := facts.seeing) is not None:
        size, patch = _bounded(seeing.image_size), _bounded(seeing.patch_size)
        is_square = header.get_int("clip.vision.spatial_merge_size") is None
        patches = min((size // max(1, patch)) ** 2, _MOST_PATCHES) if is_square else _MOST_PATCHES
        buffers += _activations(seeing, patches, options)
    if (hearing := facts.hearing) is not None:
        buffers += _activations(hearing, _MOST_FRAMES, options)
        buffers += _SPECTRUM_BYTES * _bounded(hearing.num_bands)
    return EncoderMemory(total_bytes([header.path]), buffers)


def _activations(encoder: EncoderFacts, places: int, options: EngineOptions) -> int:
    scores = 0 if options.flash_attention else places * _bounded(encoder.heads)
    return 4 * places * (_bounded(encoder.ffn) + 3 * _bounded(encoder.width) + scores)


def _bounded(number: int | None) -> int:
    return min(max(number or 0, 0), _MOST_PATCHES)


class DeviceMemory(NamedTuple):
    weights: int = 0
    cell: int = 0
    states: int = 0


_NO_DEVICE_MEMORY = DeviceMemory()


class HostMemory(NamedTuple):
    free_bytes: int
    cell_bytes: int
    draft_cell_bytes: int
    """Bytes per cell of what drafts, or 0."""
    device_memory: DeviceMemory = _NO_DEVICE_MEMORY

    @classmethod
    def of(
        cls,
        header: GgufHeader,
        draft: DraftSource | None,
        kv_type: KVType,
        free_bytes: int,
        *,
        encoder: EncoderMemory = _NO_ENCODER,
        device_memory: DeviceMemory = _NO_DEVICE_MEMORY,
    ) -> HostMemory:
        """Subtract the weights from the free memory. Mapped ones count, because without them steps would wait
        for the disk."""
        weights = total_bytes(model_files(header)) + sum(encoder) - device_memory.weights
        weights += 0 if draft is None else draft.weights
        draft_cell = 0 if draft is None else draft.cell_bytes
        cell = bytes_per_cell(header, kv_type)
        return cls(max(0, free_bytes - weights), cell, draft_cell, device_memory)

    def beside_states(self, num_bytes: int) -> HostMemory:
        num_bytes = max(0, num_bytes - self.device_memory.states)
        if num_bytes > self.free_bytes:
            raise StartupError(
                f"Not enough memory for the states of sequences: they need {_megabytes(num_bytes)}, but "
                f"{_megabytes(self.free_bytes)} can be had beside the weights; ask for fewer sequences "
                "(--max-seqs)."
            )
        return self._replace(free_bytes=self.free_bytes - num_bytes)

    @property
    def token_bytes(self) -> int:
        return max(0, self.cell_bytes - self.device_memory.cell) + self.draft_cell_bytes

    def pool_cells(self, requested: int | None) -> int:
        return pool_cells(requested, self.token_bytes, self.free_bytes)


def batch_tokens(options: EngineOptions) -> int:
    tokens = max(options.prefill_tokens, options.max_seqs + TILE_TOKENS, _BATCH_TOKENS_MIN)
    return -(-tokens // TILE_TOKENS) * TILE_TOKENS


_LEAST_STEP_TOKENS = 256


def longest_input(options: EngineOptions, trained: int, vocab_size: int, free_bytes: int) -> int:
    """Return the limit by training (0 if unknown), `--ctx-size` or memory."""
    if options.kv_tokens is not None:
        if options.kv_tokens < 1:
            raise StartupError(f"--ctx-size must be at least 1, not {options.kv_tokens}.")
        return min(trained or options.kv_tokens, options.kv_tokens)
    return min(trained or LEAST_TOKENS, tokens_that_fit(free_bytes, vocab_size))


def embedding_tokens(longest: int) -> int:
    return max(longest, _LEAST_STEP_TOKENS)


def tokens_that_fit(free_bytes: int, vocab_size: int) -> int:
    return max(LEAST_TOKENS, free_bytes // _SHARE_OF_MEMORY // (vocab_size * _LOGIT_BYTES))
