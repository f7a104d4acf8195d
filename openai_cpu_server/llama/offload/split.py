"""Parts of a model that fit on a device. Embeddings stay on the CPU.

llama.cpp counts layers from the end, the output first.
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
from openai_cpu_server.llama.model import kv_size

_LAYER = re.compile(r"(?:^|\.)blk\.(\d+)\.")
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""Experts but shared ones, as for `--cpu-moe` of llama.cpp (LLM_FFN_EXPS_REGEX)."""
_OF_EXPERTS = re.compile(_EXPERTS)
_EMBEDDINGS, _OUTPUT = "token_embd.weight", "output.weight"
_LOOKUP_TABLES = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
_FLOAT_BYTES = 4
_CELLS_AND_STATES = frozenset(("falcon-h1",))
"""Architectures whose layers all have both."""


class LayerBytes(NamedTuple):
    dense: int = 0
    experts: int = 0
    cell: int = 0
    state: int = 0


class ModelSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tensors that match `--tensor-place` do not count in `layers` and `output_bytes`."""

    layers: tuple[LayerBytes, ...]
    output_bytes: int
    pattern_bytes: int
    other_devices_bytes: int
    unused_patterns: tuple[str, ...]
    total_bytes: int
    activation_floats: int
    """Most numbers per token that a step holds at a time."""
    vocab_size: int
    width: int
    heads: int
    has_windows: bool

    @classmethod
    def of(cls, header: GgufHeader, kv_type: kv_size.KVType, offload: Offload, device: str) -> ModelSizes:
        tensors, patterns = model_tensors(header), placing(offload)
        by_pattern: dict[int | None, list[Tensor]] = defaultdict(list)
        for tensor in tensors:
            matches = (n for n, (pattern, _) in enumerate(patterns) if pattern.search(tensor.name))
            by_pattern[next(matches, None)].append(tensor)
        by_device: dict[str, int] = defaultdict(int)
        for number, (_, name) in enumerate(patterns):
            by_device[name] += _total(by_pattern[number])
        by_layer: dict[int | None, list[Tensor]] = defaultdict(list)
        for tensor in by_pattern[None]:
            match = _LAYER.search(tensor.name)
            by_layer[None if match is None else int(match[1])].append(tensor)
        outputs = [tensor for tensor in by_layer[None] if not tensor.name.startswith(_LOOKUP_TABLES)]
        if all(tensor.name != _OUTPUT for tensor in tensors):  # embeddings are the output too
            outputs += [tensor for tensor in by_layer[None] if tensor.name == _EMBEDDINGS]
        embeddings = next((tensor for tensor in tensors if tensor.name == _EMBEDDINGS), None)
        return cls(
            layers=tuple(_layers(header, by_layer, kv_size.cell_bytes_by_layer(header, kv_type))),
            output_bytes=_total(outputs),
            pattern_bytes=by_device[device],
            other_devices_bytes=sum(size for name, size in by_device.items() if name not in (device, CPU)),
            unused_patterns=tuple(p.pattern for n, (p, _) in enumerate(patterns) if not by_pattern[n]),
            total_bytes=_total(tensors),
            activation_floats=_activation_floats(header),
            vocab_size=0 if embeddings is None else embeddings.shape[-1],
            width=_size(header, "embedding_length"),
            heads=_size(header, "attention.head_count"),
            has_windows=bool(header.arch_int("attention.sliding_window")),
        )

    @property
    def state_bytes(self) -> int:
        return sum(layer.state for layer in self.layers)

    @property
    def has_experts(self) -> bool:
        return any(layer.experts for layer in self.layers)

    @property
    def num_layers(self) -> int:
        """Layers including the output."""
        return len(self.layers) + 1


def placing(offload: Offload) -> list[tuple[re.Pattern[str], str]]:
    try:
        return [(re.compile(pattern), to) for pattern, to in offload.tensor_place]
    except re.error as error:
        message = f"--tensor-place: {error.pattern!r} is not a regular expression: {error}."
        raise StartupError(message) from None


def _layers(
    header: GgufHeader, tensors: dict[int | None, list[Tensor]], cells: Sequence[int]
) -> Iterator[LayerBytes]:
    """A layer without cells has a state (n_embd_r and n_embd_s of llama-hparams.cpp)."""
    state_bytes = _FLOAT_BYTES * _state_values(header)
    has_both = header.architecture in _CELLS_AND_STATES
    for number, cell in enumerate(cells):
        experts = _total([tensor for tensor in tensors[number] if _OF_EXPERTS.search(tensor.name)])
        state = 0 if cell and not has_both else state_bytes
        yield LayerBytes(_total(tensors[number]) - experts, experts, cell, state)


def _total(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.num_bytes for tensor in tensors)


def _size(header: GgufHeader, name: str) -> int:
    return max(header.arch_ints(name, header.arch_int("block_count") or 1) or [0])


def _activation_floats(header: GgufHeader) -> int:
    """Products of a feed-forward and some rows, or those of attention. Within 4 % of ggml's reservation
    (tests/llama/test_split.py)."""
    width, heads = _size(header, "embedding_length"), _size(header, "attention.head_count")
    num_experts = _size(header, "expert_used_count")
    expert_width = _size(header, "expert_feed_forward_length")
    inner = max(_size(header, "feed_forward_length"), num_experts * expert_width)
    head = max(_size(header, "attention.key_length"), width // max(1, heads))
    return max(3 * inner, 2 * inner + num_experts * width, 4 * heads * head) + 9 * width // 2


def _state_values(header: GgufHeader) -> int:
    width, heads = _size(header, "embedding_length"), _size(header, "attention.head_count")
    if (head := _size(header, "wkv.head_size")) > 0:
        return width * head + width * (_size(header, "token_shift_count") or 2)
    if (cache_length := _size(header, "shortconv.l_cache")) > 0:
        return width * (cache_length - 1)
    kernel = max(0, _size(header, "ssm.conv_kernel") - 1)
    if (head := _size(header, "kda.head_dim")) > 0:
        return heads * head * head + 3 * (kernel or 3) * heads * head
    inner, state = _size(header, "ssm.inner_size"), _size(header, "ssm.state_size")
    return inner * state + kernel * (inner + 2 * _size(header, "ssm.group_count") * state)


class StepSizes(NamedTuple):
    cells: int
    tokens: int
    outputs: int
    sequences: int
    states: int
    """States per layer that keeps them."""
    flash_attention: bool
    pools: bool = False

    @classmethod
    def of_embeddings(
        cls, header: GgufHeader, sizes: ModelSizes, options: EngineOptions, free_bytes: int
    ) -> StepSizes:
        """Sizes as in `llama.embedder`; a causal model also computes unused logits of all tokens."""
        trained = header.arch_int("context_length") or 0
        tokens = kv_size.embedding_tokens(
            kv_size.longest_input(options, trained, sizes.vocab_size, free_bytes)
        )
        return cls(
            cells=tokens,
            tokens=tokens,
            outputs=0 if header.architecture in ENCODERS else tokens,
            sequences=kv_size.SLOTS_MAX,
            states=kv_size.SLOTS_MAX if sizes.state_bytes else 0,
            flash_attention=options.flash_attention,
            pools=True,
        )

    @classmethod
    def of(
        cls, sizes: ModelSizes, options: EngineOptions, cells: int, free_bytes: int, *, drafts: bool
    ) -> StepSizes:
        """Sizes as in `llama.loading`. `free_bytes`: limits the states."""
        plan = kv_size.SequencePlan.of(
            options, sizes.state_bytes, free_bytes, has_window=sizes.has_windows, drafts=drafts
        )
        return cls(
            cells=cells,
            tokens=kv_size.batch_tokens(options),
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
        parts = (f"{name} {_gib(value)}" for name, value in self._asdict().items() if value)
        return ", ".join(parts) or "nothing"


class Split(msgspec.Struct, frozen=True, kw_only=True):
    offload: Offload
    """Numbers replace `auto` and `all`."""
    num_layers: int
    """Layers including the output."""
    experts_on_cpu: int
    device_bytes: DeviceBytes
    cells: int
    device_memory: kv_size.DeviceMemory
    other_devices_bytes: int = 0
    """Weights there, whose further needs are not counted."""
    why: str | None = None
    """Sentence why it is less than requested."""

    @property
    def gpu_layers(self) -> int:
        gpu_layers = self.offload.gpu_layers
        assert isinstance(gpu_layers, int)
        return gpu_layers

    @property
    def is_cpu_alone(self) -> bool:
        return self.gpu_layers == 0 and not (self.device_bytes.weights or self.other_devices_bytes)

    @property
    def overrides(self) -> list[tuple[str, str]]:
        layers = "|".join(map(str, range(self.offload.cpu_moe)))
        return [*self.offload.tensor_place, *([(rf"blk\.({layers}){_EXPERTS}", CPU)] if layers else [])]

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
    FULL = "full"
    """Largest part that fits; experts stay on the CPU before layers do."""
    DENSE = "dense"
    NO_CELLS = "no cells"
    """Cells on the CPU leave room for weights."""
    CPU = "cpu"


_LEAST_MARGIN, _MOST_MARGIN, _MARGIN_SHARE = 256 * 2**20, 2**30, 16


def margin_bytes(device: Device) -> int:
    """Memory for drivers and other users. llama.cpp's `--fit` leaves 1 GiB."""
    return min(max(_LEAST_MARGIN, device.total_bytes // _MARGIN_SHARE), _MOST_MARGIN)


class SplitPlanner:
    def __init__(
        self, sizes: ModelSizes, step: StepSizes, offload: Offload, device: Device, *, reserved_bytes: int = 0
    ) -> None:
        self._sizes = sizes
        self._step = step
        self._offload = offload
        self._device = device
        self._free_bytes = max(0, device.free_bytes - reserved_bytes)
        self._budget_bytes = max(0, self._free_bytes - margin_bytes(device))
        layers, experts, num_layers = offload.gpu_layers, offload.cpu_moe, len(sizes.layers)
        self._most_layers = min(layers, num_layers + 1) if isinstance(layers, int) else num_layers + 1
        self._least_cpu_moe = num_layers if experts == ALL_LAYERS else min(experts, num_layers)
        self._kv_on_gpu = offload.kv_on_gpu is not False

    def first_choice(self) -> Split:
        """Reduce the requested split until it fits: first experts stay on the CPU, then layers.

        If the device's memory is unknown, only a requested number of layers goes there.
        """
        request = self._split(self._most_layers, self._least_cpu_moe, kv_on_gpu=self._kv_on_gpu)
        is_unchecked = not self._device.total_bytes and isinstance(self._offload.gpu_layers, int)
        if is_unchecked or self._fits(request):
            return request
        return msgspec.structs.replace(self._largest_that_fits(request), why=self._why_less(request))

    def candidates(self) -> dict[SplitKind, Split]:
        first, layers, cpu_moe = self.first_choice(), self._most_layers, self._least_cpu_moe
        splits = {SplitKind.FULL: first}
        if self._sizes.has_experts:
            dense = self._split(layers, len(self._sizes.layers), kv_on_gpu=self._kv_on_gpu)
            splits[SplitKind.DENSE] = self._largest_that_fits(dense)
        if self._offload.kv_on_gpu is None and first.device_bytes.cells:
            no_cells = self._split(layers, cpu_moe, kv_on_gpu=False)
            splits[SplitKind.NO_CELLS] = self._largest_that_fits(no_cells)
        splits[SplitKind.CPU] = self._split(0, cpu_moe, kv_on_gpu=False)
        distinct: dict[tuple[int, int, bool | None], SplitKind] = {}
        for kind, split in splits.items():
            distinct.setdefault((split.gpu_layers, split.experts_on_cpu, split.offload.kv_on_gpu), kind)
        return {kind: splits[kind] for kind in distinct.values()}

    @property
    def unused_options(self) -> list[str]:
        sentences = [
            f"--tensor-place: {pattern!r} matches no tensor" for pattern in self._sizes.unused_patterns
        ]
        if self._offload.cpu_moe and not self._sizes.has_experts:
            sentences.append("--cpu-moe: the model has no experts")
        return sentences

    @property
    def why_cpu_alone(self) -> str:
        if self._offload.gpu_layers == 0:
            return f"no tensor of it is placed on {self._device.name}"
        if not self._device.total_bytes:
            return self._unknown_memory
        return f"nothing of it fits on {self._device.name}"

    def _on_device(self, gpu_layers: int) -> list[tuple[int, LayerBytes]]:
        first = len(self._sizes.layers) - max(0, gpu_layers - 1)
        return [(number, layer) for number, layer in enumerate(self._sizes.layers) if number >= first]

    def _device_bytes(self, gpu_layers: int, cpu_moe: int, *, kv_on_gpu: bool) -> DeviceBytes:
        layers = self._on_device(gpu_layers)
        weights = self._sizes.pattern_bytes + (self._sizes.output_bytes if gpu_layers else 0)
        weights += sum(layer.dense for _, layer in layers)
        weights += sum(layer.experts for number, layer in layers if number >= cpu_moe)
        if not weights:
            return DeviceBytes(0, 0, 0, 0)
        cells = self._step.cells * sum(layer.cell for _, layer in layers) if kv_on_gpu else 0
        states = self._step.states * sum(layer.state for _, layer in layers) if kv_on_gpu else 0
        return DeviceBytes(weights, cells, states, self._compute_bytes(gpu_layers, kv_on_gpu=kv_on_gpu))

    def _compute_bytes(self, gpu_layers: int, *, kv_on_gpu: bool) -> int:
        """ggml reserves activations with the attention mask, or logits.

        It also reserves all scores without flash attention, states that layers read and write, and copies
        between devices.
        """
        step, sizes, layers = self._step, self._sizes, self._on_device(gpu_layers)
        masks = (2 if sizes.has_windows else 1) * step.cells * step.tokens * (_FLOAT_BYTES // 2)
        if not step.flash_attention:
            masks = 2 * masks + _FLOAT_BYTES * sizes.heads * step.cells * step.tokens
        activations = _FLOAT_BYTES * step.tokens * sizes.activation_floats
        states = 2 * step.sequences * max((layer.state for _, layer in layers), default=0)
        copies = (0 if kv_on_gpu else activations) + (masks if gpu_layers < sizes.num_layers else 0)
        logits = _FLOAT_BYTES * step.outputs * (sizes.vocab_size + sizes.width) if gpu_layers else 0
        logits += _FLOAT_BYTES * step.tokens * 2 * sizes.width if gpu_layers and step.pools else 0
        computes = bool(layers or sizes.pattern_bytes)
        return max(computes * (activations + masks + states + copies), logits) * 21 // 20

    def _split(self, gpu_layers: int, cpu_moe: int, *, kv_on_gpu: bool) -> Split:
        kv_on_gpu = kv_on_gpu and gpu_layers > 0
        device_bytes = self._device_bytes(gpu_layers, cpu_moe, kv_on_gpu=kv_on_gpu)
        device_memory = kv_size.DeviceMemory()
        if self._device.kind == "gpu":
            # Embeddings that are also the output are in both memories.
            weights = min(device_bytes.weights, self._sizes.total_bytes)
            cell = device_bytes.cells // max(1, self._step.cells)
            device_memory = kv_size.DeviceMemory(weights, cell, device_bytes.states)
        layers = self._on_device(gpu_layers)
        return Split(
            offload=msgspec.structs.replace(
                self._offload, gpu_layers=gpu_layers, cpu_moe=cpu_moe, kv_on_gpu=kv_on_gpu
            ),
            num_layers=self._sizes.num_layers,
            experts_on_cpu=sum(layer.experts > 0 for number, layer in layers if number < cpu_moe),
            device_bytes=device_bytes,
            cells=self._step.cells,
            device_memory=device_memory,
            other_devices_bytes=self._sizes.other_devices_bytes,
        )

    def _fits(self, split: Split) -> bool:
        return sum(split.device_bytes) <= self._budget_bytes

    def _largest_that_fits(self, request: Split) -> Split:
        smaller = self._smaller_splits(request)
        return next(split for split in smaller if self._fits(split) or not split.gpu_layers)

    def _smaller_splits(self, request: Split) -> Iterator[Split]:
        kv_on_gpu, cpu_moe = bool(request.offload.kv_on_gpu), request.offload.cpu_moe
        if self._sizes.has_experts:
            for cpu_moe in range(request.offload.cpu_moe, len(self._sizes.layers) + 1):
                yield self._split(request.gpu_layers, cpu_moe, kv_on_gpu=kv_on_gpu)
        for layers in range(request.gpu_layers, -1, -1):
            yield self._split(layers, cpu_moe, kv_on_gpu=kv_on_gpu)

    @property
    def _unknown_memory(self) -> str:
        return f"{self._device.name} does not report how much memory it has"

    def _why_less(self, request: Split) -> str | None:
        if self._offload.gpu_layers == "auto":  # which requests whatever fits
            return None
        if not self._device.total_bytes:
            return self._unknown_memory
        return (
            f"{request} would take {_gib(sum(request.device_bytes))} ({request.device_bytes}), "
            f"and {self._device.name} has {_gib(self._free_bytes)} free, "
            f"of which {_gib(margin_bytes(self._device))} stay so"
        )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.0f} MiB"
