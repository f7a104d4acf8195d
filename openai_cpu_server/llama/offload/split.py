"""Computes which parts of a model fit on a device, from its tensors, cells, states and buffers. Loads no
native code.

llama.cpp counts layers from the end, and the output is the first of them. Embeddings stay on the CPU. The
cells and the state of a layer lie where the layer is, or on the CPU.
"""

from __future__ import annotations

import enum
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import ALL_LAYERS, CPU, Device, Offload
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import ENCODERS, GgufHeader
from openai_cpu_server.llama.gguf.tensors import Tensor, model_tensors
from openai_cpu_server.llama.model.kv_size import (
    SLOTS_MAX,
    Elsewhere,
    KVType,
    SequencePlan,
    batch_tokens,
    cell_bytes_by_layer,
    embedding_tokens,
    longest_input,
)

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Same as `--cpu-moe` of llama.cpp (LLM_FFN_EXPS_REGEX), without shared experts."""
_OF_EXPERTS = re.compile(_EXPERTS)
_EMBEDDINGS, _OUTPUT = "token_embd.weight", "output.weight"
_LOOKED_UP = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_FLOAT = 4
_CELLS_AND_STATES = frozenset(("falcon-h1",))
"""Architectures whose layers all have both."""


class LayerBytes(NamedTuple):
    dense: int = 0
    experts: int = 0
    cell: int = 0
    """Bytes per token."""
    state: int = 0
    """Bytes per sequence."""


class ModelSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a model; `layers` and `output_bytes` do not count tensors placed by a pattern."""

    layers: tuple[LayerBytes, ...]
    output_bytes: int
    placed_bytes: int
    """Placed by patterns on this device."""
    beside_bytes: int
    """Placed by patterns on other devices."""
    idle_patterns: tuple[str, ...]
    """Patterns that place no tensor."""
    total_bytes: int
    """Bytes of all weights."""
    step_floats: int
    """Most numbers per token of a step at a time."""
    vocab_size: int
    width: int
    """Numbers of a token between two layers."""
    heads: int
    has_windows: bool

    @classmethod
    def of(cls, header: GgufHeader, kv_type: KVType, asked: Offload, device: str) -> ModelSizes:
        """Read the sizes. Raises `StartupError` for a damaged file or an invalid pattern."""
        tensors, patterns = model_tensors(header), placing(asked)
        by_pattern: dict[int | None, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            decides = (n for n, (pattern, _) in enumerate(patterns) if pattern.search(tensor.name))
            by_pattern[next(decides, None)].append(tensor)
        placed: dict[str, int] = defaultdict(int)
        for number, (_, to) in enumerate(patterns):
            placed[to] += _total(by_pattern[number])
        free, cells = by_pattern[None], cell_bytes_by_layer(header, kv_type)
        layers = [[each for each in free if layer_of(each.name) == n] for n in range(len(cells))]
        states = _states(header, cells)
        return cls(
            layers=tuple(
                LayerBytes(*_weights(held), cell, state)
                for held, cell, state in zip(layers, cells, states, strict=True)
            ),
            output_bytes=_output(free, is_tied=all(tensor.name != _OUTPUT for tensor in tensors)),
            placed_bytes=placed[device],
            beside_bytes=sum(size for to, size in placed.items() if to not in (device, CPU)),
            idle_patterns=tuple(p.pattern for n, (p, _) in enumerate(patterns) if not by_pattern[n]),
            total_bytes=_total(tensors),
            step_floats=_step_floats(header),
            vocab_size=_vocabulary(tensors),
            width=_size(header, "embedding_length"),
            heads=_size(header, "attention.head_count"),
            has_windows=bool(header.get_int(header.for_architecture("attention.sliding_window"))),
        )

    @property
    def state_bytes(self) -> int:
        """Bytes per sequence, in all layers."""
        return sum(layer.state for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        return any(layer.experts for layer in self.layers)

    @property
    def num_layers(self) -> int:
        """Layers including the output."""
        return len(self.layers) + 1


def placing(asked: Offload) -> list[tuple[re.Pattern[str], str]]:
    """Compile `--tensor-place`, whose first match decides. Raises `StartupError`."""
    try:
        return [(re.compile(pattern), to) for pattern, to in asked.tensor_place]
    except re.error as error:
        raise StartupError(f"--tensor-place: {error.pattern!r} is no regular expression: {error}.") from None


def layer_of(name: str) -> int | None:
    found = _LAYER.search(name)
    return int(found[1]) if found is not None else None


def experts_pattern(num_layers: int) -> str:
    """Pattern of the first layers' experts."""
    return rf"blk\.({'|'.join(map(str, range(num_layers)))}){_EXPERTS}"


def _weights(tensors: Sequence[Tensor]) -> tuple[int, int]:
    experts = _total([tensor for tensor in tensors if _OF_EXPERTS.search(tensor.name)])
    return _total(tensors) - experts, experts


def _output(tensors: Sequence[Tensor], *, is_tied: bool) -> int:
    """Embeddings count once more if they are the output."""
    outside = [tensor for tensor in tensors if layer_of(tensor.name) is None]
    held = [tensor for tensor in outside if not tensor.name.startswith(_LOOKED_UP)]
    return _total(held) + (_total([t for t in outside if t.name == _EMBEDDINGS]) if is_tied else 0)


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _vocabulary(tensors: Sequence[Tensor]) -> int:
    return next((tensor.shape[-1] for tensor in tensors if tensor.name == _EMBEDDINGS), 0)


def _size(header: GgufHeader, name: str) -> int:
    key = header.for_architecture
    layers = header.get_int(key("block_count")) or 1
    return max(header.get_ints(key(name), layers) or [0])


def _step_floats(header: GgufHeader) -> int:
    """Products of a feed-forward and some rows of the model's width, or those of attention. Within 4 % of
    ggml's reservation for shapes of llama, qwen3moe, gpt-oss, qwen3.5 and lfm2
    (tests/llama/test_split.py)."""
    width, heads = _size(header, "embedding_length"), _size(header, "attention.head_count")
    used = _size(header, "expert_used_count")
    wide = max(_size(header, "feed_forward_length"), used * _size(header, "expert_feed_forward_length"))
    head = max(_size(header, "attention.key_length"), width // max(1, heads))
    return max(3 * wide, 2 * wide + used * width, 4 * heads * head) + 9 * width // 2


def _states(header: GgufHeader, cells: Sequence[int]) -> list[int]:
    """Same bytes as in llama.cpp (n_embd_r and n_embd_s of llama-hparams.cpp)."""
    values = _state_values(header)
    if header.architecture in _CELLS_AND_STATES:
        return [_FLOAT * values] * len(cells)
    return [0 if cell else _FLOAT * values for cell in cells]


def _state_values(header: GgufHeader) -> int:
    width, heads = _size(header, "embedding_length"), _size(header, "attention.head_count")
    if (head := _size(header, "wkv.head_size")) > 0:
        return width * head + width * (_size(header, "token_shift_count") or 2)
    if (remembered := _size(header, "shortconv.l_cache")) > 0:
        return width * (remembered - 1)
    kernel = max(0, _size(header, "ssm.conv_kernel") - 1)
    if (head := _size(header, "kda.head_dim")) > 0:
        return heads * head * head + 3 * (kernel or 3) * heads * head
    inner, state = _size(header, "ssm.inner_size"), _size(header, "ssm.state_size")
    return inner * state + kernel * (inner + 2 * _size(header, "ssm.group_count") * state)


class StepSizes(NamedTuple):
    """Dimensions of a model's context and of its steps."""

    cells: int
    tokens: int
    outputs: int
    sequences: int
    states: int
    """States per layer that keeps them."""
    flash_attention: bool
    pools: bool = False
    """True if rows of all tokens are kept."""

    @classmethod
    def of_embeddings(
        cls, header: GgufHeader, sizes: ModelSizes, options: EngineOptions, free_bytes: int
    ) -> StepSizes:
        """Same sizes as in `llama.embedder`; a causal model also computes unused logits of all tokens.

        `free_bytes`: beside the weights.
        """
        trained = header.get_int(header.for_architecture("context_length")) or 0
        tokens = embedding_tokens(longest_input(options, trained, sizes.vocab_size, free_bytes))
        return cls(
            cells=tokens,
            tokens=tokens,
            outputs=0 if header.architecture in ENCODERS else tokens,
            sequences=SLOTS_MAX,
            states=SLOTS_MAX if sizes.state_bytes else 0,
            flash_attention=options.flash_attention,
            pools=True,
        )

    @classmethod
    def of(cls, sizes: ModelSizes, options: EngineOptions, cells: int, free_bytes: int) -> StepSizes:
        """Same sizes as in `llama.loading`. `free_bytes`: limits the states."""
        plan = SequencePlan.of(options, sizes.state_bytes, free_bytes, has_window=sizes.has_windows)
        return cls(
            cells=cells,
            tokens=batch_tokens(options),
            outputs=plan.num_outputs,
            sequences=plan.num_sequences,
            states=plan.num_states if sizes.state_bytes else 0,
            flash_attention=options.flash_attention,
        )


class DeviceBytes(NamedTuple):
    weights: int
    cells: int
    states: int
    compute: int

    def __str__(self) -> str:
        shown = ((name, value) for name, value in self._asdict().items() if value)
        return ", ".join(f"{name} {_gib(value)}" for name, value in shown) or "nothing"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    offload: Offload
    """Request with numbers in place of `auto` and `all`."""
    num_layers: int
    """Layers including the output."""
    experts_on_cpu: int
    """Layers on the device whose experts stay on the CPU."""
    taken: DeviceBytes
    cells: int
    """Cells of the whole pool."""
    elsewhere: Elsewhere
    beside_bytes: int = 0
    """Weights on other devices, whose further needs are not counted."""
    why: str | None = None
    """Sentence why it is less than requested."""

    @property
    def gpu_layers(self) -> int:
        gpu_layers = self.offload.gpu_layers
        assert isinstance(gpu_layers, int)
        return gpu_layers

    @property
    def is_cpu_alone(self) -> bool:
        return self.gpu_layers == 0 and not (self.taken.weights or self.beside_bytes)

    @property
    def overrides(self) -> list[tuple[str, str]]:
        """Patterns and places for llama.cpp; the first match decides."""
        experts = self.offload.cpu_moe
        return [*self.offload.tensor_place, *([(experts_pattern(experts), CPU)] if experts else [])]

    def __str__(self) -> str:
        if self.is_cpu_alone:
            return "the CPU alone"
        parts = [f"{self.gpu_layers} of {self.num_layers} layers"]
        if self.experts_on_cpu:
            parts.append(f"experts of {self.experts_on_cpu} layers on the CPU")
        if not self.offload.kv_on_gpu:
            parts.append("cells on the CPU")
        return ", ".join(parts)


class SplitKind(enum.Enum):
    """Candidates for the fastest split."""

    FULL = "full"
    """Largest part that fits; experts stay on the CPU before layers do."""
    DENSE = "dense"
    NO_CELLS = "no cells"
    """Cells on the CPU leave room for weights."""
    CPU = "cpu"


_LEAST_MARGIN, _MOST_MARGIN, _MARGIN_SHARE = 256 * 2**20, 2**30, 16


def margin_bytes(device: Device) -> int:
    """Return the memory to leave to drivers, backends and other users. llama.cpp's `--fit` leaves 1 GiB."""
    return min(max(_LEAST_MARGIN, device.total_bytes // _MARGIN_SHARE), _MOST_MARGIN)


class Fitting:
    def __init__(
        self, sizes: ModelSizes, step: StepSizes, asked: Offload, device: Device, *, reserved_bytes: int = 0
    ) -> None:
        """`reserved_bytes`: for a projector or a draft model."""
        self._sizes = sizes
        self._step = step
        self._asked = asked
        self._free = max(0, device.free_bytes - reserved_bytes)
        self._budget = max(0, self._free - margin_bytes(device))
        self._device = device

    def first_choice(self) -> Split:
        """Return the requested split, reduced until it fits: first experts stay on the CPU, then layers. A
        device that does not report its memory gets a requested number of layers unchecked, and otherwise
        nothing."""
        layers, experts = self._asked_layers, self._asked_experts
        on_device = self._asked.kv_on_gpu is not False
        wished = self._split(layers, experts, kv_on_gpu=on_device)
        if self._fits(wished) or (not self._device.total_bytes and isinstance(self._asked.gpu_layers, int)):
            return wished
        return msgspec.structs.replace(self._less(wished), why=self._why(wished))

    def candidates(self) -> dict[SplitKind, Split]:
        """Return the first choice, and others that may be faster."""
        first, on_device = self.first_choice(), self._asked.kv_on_gpu is not False
        found = {SplitKind.FULL: first}
        if self._sizes.has_experts:
            found[SplitKind.DENSE] = self._less(
                self._split(self._asked_layers, len(self._sizes.layers), kv_on_gpu=on_device)
            )
        if self._asked.kv_on_gpu is None and first.taken.cells:
            found[SplitKind.NO_CELLS] = self._less(
                self._split(self._asked_layers, self._asked_experts, kv_on_gpu=False)
            )
        found[SplitKind.CPU] = self._split(0, self._asked_experts, kv_on_gpu=False)
        distinct: dict[tuple[int, int, bool | None], SplitKind] = {}
        for kind, one in found.items():
            distinct.setdefault((one.gpu_layers, one.experts_on_cpu, one.offload.kv_on_gpu), kind)
        return {kind: found[kind] for kind in distinct.values()}

    @property
    def idle_wishes(self) -> list[str]:
        """Sentences about requests that do not apply."""
        said = [f"--tensor-place: {pattern!r} places no tensor" for pattern in self._sizes.idle_patterns]
        is_dense = self._asked.cpu_moe and not self._sizes.has_experts
        return [*said, *(["--cpu-moe: the model has no experts"] if is_dense else [])]

    @property
    def why_nothing(self) -> str:
        """Return why the first choice is the CPU alone, for a split without a `why`."""
        if self._asked.gpu_layers == 0:
            return f"no tensor of it is placed on {self._device.name}"
        return f"nothing of it fits on {self._device.name}" if self._device.total_bytes else self._unknown

    def taken(self, gpu_layers: int, cpu_moe: int, *, kv_on_gpu: bool) -> DeviceBytes:
        layers = self._on_device(gpu_layers)
        weights = self._sizes.placed_bytes + (self._sizes.output_bytes if gpu_layers else 0)
        weights += sum(layer.dense for _, layer in layers)
        weights += sum(layer.experts for number, layer in layers if number >= cpu_moe)
        if not weights:
            return DeviceBytes(0, 0, 0, 0)
        cells = self._step.cells * sum(layer.cell for _, layer in layers) if kv_on_gpu else 0
        states = self._step.states * sum(layer.state for _, layer in layers) if kv_on_gpu else 0
        return DeviceBytes(weights, cells, states, self._compute(gpu_layers, kv_on_gpu=kv_on_gpu))

    @property
    def _asked_layers(self) -> int:
        asked = self._asked.gpu_layers
        return min(asked, self._sizes.num_layers) if isinstance(asked, int) else self._sizes.num_layers

    @property
    def _asked_experts(self) -> int:
        asked = self._asked.cpu_moe
        return len(self._sizes.layers) if asked == ALL_LAYERS else min(asked, len(self._sizes.layers))

    def _on_device(self, gpu_layers: int) -> list[tuple[int, LayerBytes]]:
        first = len(self._sizes.layers) - max(0, gpu_layers - 1)
        return [(number, layer) for number, layer in enumerate(self._sizes.layers) if number >= first]

    def _compute(self, gpu_layers: int, *, kv_on_gpu: bool) -> int:
        """ggml reserves activations with the attention mask, or logits; all scores without flash
        attention; states that layers read and write; and copies between CPU and device."""
        step, sizes, layers = self._step, self._sizes, self._on_device(gpu_layers)
        masks = (2 if sizes.has_windows else 1) * step.cells * step.tokens * (_FLOAT // 2)
        if not step.flash_attention:
            masks = 2 * masks + _FLOAT * sizes.heads * step.cells * step.tokens
        activations = _FLOAT * step.tokens * sizes.step_floats
        states = 2 * step.sequences * max((layer.state for _, layer in layers), default=0)
        copies = (0 if kv_on_gpu else activations) + (masks if gpu_layers < sizes.num_layers else 0)
        logits = _FLOAT * step.outputs * (sizes.vocab_size + sizes.width) if gpu_layers else 0
        logits += _FLOAT * step.tokens * 2 * sizes.width if gpu_layers and step.pools else 0
        computes = bool(layers or sizes.placed_bytes)
        return max(computes * (activations + masks + states + copies), logits) * 21 // 20

    def _split(self, gpu_layers: int, cpu_moe: int, *, kv_on_gpu: bool) -> Split:
        held, kv_on_gpu = self._on_device(gpu_layers), kv_on_gpu and gpu_layers > 0
        taken = self.taken(gpu_layers, cpu_moe, kv_on_gpu=kv_on_gpu)
        offload = msgspec.structs.replace(
            self._asked, gpu_layers=gpu_layers, cpu_moe=cpu_moe, kv_on_gpu=kv_on_gpu
        )
        return Split(
            offload=offload,
            num_layers=self._sizes.num_layers,
            experts_on_cpu=sum(layer.experts > 0 for number, layer in held if number < cpu_moe),
            taken=taken,
            cells=self._step.cells,
            elsewhere=self._elsewhere(taken),
            beside_bytes=self._sizes.beside_bytes,
        )

    def _elsewhere(self, taken: DeviceBytes) -> Elsewhere:
        """Embeddings that are also the output are in both memories."""
        if self._device.kind != "gpu":
            return Elsewhere()
        weights = min(taken.weights, self._sizes.total_bytes)
        return Elsewhere(weights, taken.cells // max(1, self._step.cells), taken.states)

    def _fits(self, split: Split) -> bool:
        return sum(split.taken) <= self._budget

    def _less(self, wished: Split) -> Split:
        return next(split for split in self._ever_less(wished) if self._fits(split) or not split.gpu_layers)

    def _ever_less(self, wished: Split) -> Iterator[Split]:
        kv_on_gpu, experts = bool(wished.offload.kv_on_gpu), wished.offload.cpu_moe
        if self._sizes.has_experts:
            for experts in range(wished.offload.cpu_moe, len(self._sizes.layers) + 1):
                yield self._split(wished.gpu_layers, experts, kv_on_gpu=kv_on_gpu)
        for layers in range(wished.gpu_layers, -1, -1):
            yield self._split(layers, experts, kv_on_gpu=kv_on_gpu)

    @property
    def _unknown(self) -> str:
        return f"{self._device.name} does not tell how much memory it has"

    def _why(self, wished: Split) -> str | None:
        """Return None for `auto`, which requests whatever fits."""
        if self._asked.gpu_layers == "auto":
            return None
        if not self._device.total_bytes:
            return self._unknown
        return (
            f"{wished} would take {_gib(sum(wished.taken))} ({wished.taken}), "
            f"and {self._device.name} has {_gib(self._free)} free, "
            f"of which {_gib(margin_bytes(self._device))} stay so"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
