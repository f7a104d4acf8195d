"""Memory beside the weights, and tokens per second predicted from measured steps. Bandwidth alone predicts
nothing, because arithmetic limits a few cores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from openai_cpu_server.cli.inspect.facts import FileFacts
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import CostCurve, WeightLayout, attended_pairs
from openai_cpu_server.contract.offload import Device
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.backend import LlamaBackend
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.measure.calibrate import CurveKey, cost_curve, curves
from openai_cpu_server.llama.measure.layout import stored_layout
from openai_cpu_server.llama.measure.splits import SplitKey, SplitRace
from openai_cpu_server.llama.model.kv_size import (
    DeviceMemory,
    DraftSource,
    HostMemory,
    KVType,
    encoder_memory,
)
from openai_cpu_server.llama.offload.choice import device_for, devices, of_draft_model, split_planner_for
from openai_cpu_server.scheduler.cost_model import CostModel

_LENGTHS = (1_024, 4_096)


class SequencesThatFit(msgspec.Struct, frozen=True):
    """Concurrent sequences of this length, without shared prefixes."""

    tokens: int
    sequences: int


class KvCost(msgspec.Struct, frozen=True):
    type: str
    bytes_per_token: int
    """Includes the token's cell in the draft model's pool."""
    tokens: int
    fits: list[SequencesThatFit]


class MemoryFacts(msgspec.Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    left_bytes: int
    """Memory beside all weights, or 0 if they do not fit."""
    draft_model: str | None
    kv_type: str
    kv_types: list[KvCost]
    """Empty if the memory has no KV cells."""
    pool_tokens: int | None
    """Pool of `serve` for all requests, or None if it would not start."""
    context: int | None
    problem: str | None


def read_memory(
    header: GgufHeader,
    facts: FileFacts,
    options: EngineOptions,
    machine: Machine,
    draft: DraftSource | None = None,
) -> MemoryFacts:
    free, trained = machine.free_memory(), facts.shape.context_trained
    encoder, device_memory = encoder_memory(options), DeviceMemory()
    if options.offload.wants_device and (device := device_for(options.offload)) is not None:
        device_memory = split_planner_for(options, device, free).first_choice().device_memory
    host_memories = {
        kind: HostMemory.of(header, draft, kind, free, encoder=encoder, device_memory=device_memory)
        for kind in KVType
    }
    pool, problem = None, None
    try:
        host_memory = host_memories[KVType.named(options.kv_type)]
        pool = host_memory.pool_cells(options.kv_tokens)
    except StartupError as error:
        problem = str(error)
    return MemoryFacts(
        total_bytes=machine.total_memory(),
        free_bytes=free,
        left_bytes=host_memories[KVType.F16].free_bytes,
        draft_model=str(draft.header.path) if draft is not None else None,
        kv_type=options.kv_type,
        kv_types=kv_costs(host_memories, trained, options.kv_type),
        pool_tokens=pool,
        context=pool if pool is None or trained is None else min(pool, trained),
        problem=problem,
    )


def kv_costs(host_memories: Mapping[KVType, HostMemory], trained: int | None, served: str) -> list[KvCost]:
    """Return the costs of all types, or of the `served` one if a device holds cells."""
    lengths = [length for length in _LENGTHS if trained is None or length < trained]
    lengths += [trained] if trained is not None else []
    return [
        KvCost(
            kind.value.name,
            host_memory.token_bytes,
            tokens,
            [SequencesThatFit(length, tokens // length) for length in lengths],
        )
        for kind, host_memory in host_memories.items()
        if host_memory.cell_bytes > 0 and host_memory.token_bytes > 0
        if not host_memory.device_memory.cell or kind.value.name == served
        for tokens in [host_memory.free_bytes // host_memory.token_bytes]
    ]


class SplitCost(msgspec.Struct, frozen=True):
    split: str
    turn_ms: float | None
    """Time of a chat's turn, or None if the split failed."""


class DeviceFacts(msgspec.Struct, frozen=True):
    device: Device
    gpu_layers: str | int = msgspec.field(name="asked")
    split: str
    """Part of the model that fits there."""
    takes: dict[str, int]
    """Bytes of weights, cells, states and compute buffers."""
    why: str | None
    measured: list[SplitCost]
    """Splits measured by `auto`, which uses the fastest."""
    draft: str | None = None
    """Part of the draft model that goes there."""


def read_devices(options: EngineOptions, cache_dir: Path, machine: Machine) -> list[DeviceFacts]:
    return [_on_device(options, device, cache_dir, machine) for device in devices()]


def _on_device(options: EngineOptions, device: Device, cache_dir: Path, machine: Machine) -> DeviceFacts:
    offload = options.offload
    if not offload.wants_device:
        offload = msgspec.structs.replace(offload, gpu_layers="auto")
    options = msgspec.structs.replace(options, offload=offload)
    try:
        planner = split_planner_for(options, device, machine.free_memory())
    except StartupError as error:
        return DeviceFacts(device, offload.gpu_layers, "nothing", {}, str(error), [])
    split, measured = planner.first_choice(), []
    if offload.gpu_layers == "auto":
        race = SplitRace(planner.candidates(), SplitKey.of(options, device), cache_dir)
        split, measured = race.best(), [SplitCost(str(one), ms) for one, ms in race.measured]
    why = "; ".join([*([split.why] if split.why else []), *planner.unused_options]) or None
    draft = None
    if options.draft_model_path is not None and options.draft_offload.wants_device:
        draft_options = of_draft_model(options, Path(options.draft_model_path))
        draft = str(split_planner_for(draft_options, device, machine.free_memory()).first_choice())
    takes = split.device_bytes._asdict()
    return DeviceFacts(device, offload.gpu_layers, str(split), takes, why, measured, draft)


_CONTEXT = 512
"""Tokens to which each decoding sequence attends."""
_SEQUENCES = (1, 2, 4, 8, 16, 32)


class DecodeSpeed(msgspec.Struct, frozen=True):
    sequences: int
    tokens_per_second: float


class SpeedFacts(msgspec.Struct, frozen=True):
    threads: int
    threads_batch: int
    kv_type: str
    weights: WeightLayout
    flash_attention: bool
    kernels: dict[str, str | None]
    """Instruction set by kernel, or None if it was off."""
    is_default: bool
    context: int
    prompt_tokens_per_second: float
    """Speed of a prompt's first step."""
    decode: list[DecodeSpeed]


MeasuredCurve = tuple[CurveKey, CostCurve]


def most_similar_curve(
    model: Path, cache_dir: Path, options: EngineOptions, header: GgufHeader, machine: Machine
) -> MeasuredCurve | None:
    """Return the stored curve with the most similar options."""
    found = [
        (key, curve)
        for key, curve in curves(cache_dir).of_model(model)
        if key.split is None or options.offload.wants_device
    ]

    served = _served_with(options, header, machine)

    def likeness(measured: MeasuredCurve) -> int:
        return sum(a == b for a, b in zip(_measured_with(measured[0]), served, strict=True))

    return max(found, key=likeness, default=None)


def measure(
    options: EngineOptions, cache_dir: Path, on_progress: Callable[[str, float], None]
) -> MeasuredCurve:
    """Time the steps unless known, and store the curve for `serve`. `on_progress` gets the activity and a
    fraction."""
    backend = LlamaBackend.load(options, lambda fraction: on_progress("loading", fraction))
    try:
        curve = cost_curve(
            backend, options, cache_dir, lambda fraction: on_progress("timing steps", fraction)
        )
        return CurveKey.of(backend.info, options), curve
    finally:
        backend.close()


def predicted(
    measured: MeasuredCurve, options: EngineOptions, header: GgufHeader, machine: Machine
) -> SpeedFacts:
    key, curve = measured
    had = _measured_with(key)
    prompt = curve.step_ms[-1][0]
    model = CostModel(curve)
    sizes = [n for n in _SEQUENCES if n <= min(key.max_seqs, key.max_step_tokens)]
    return SpeedFacts(
        *had,
        kernels=key.kernels,
        is_default=had == _served_with(options, header, machine),
        context=_CONTEXT,
        prompt_tokens_per_second=1000 * prompt / model.predict_ms(prompt, attended_pairs(0, prompt)),
        decode=[DecodeSpeed(n, 1000 * n / model.predict_ms(n, n * _CONTEXT)) for n in sizes],
    )


_Options = tuple[int, int, str, WeightLayout, bool]
"""Threads for one token and for more, KV type, weight layout, flash attention."""


def _measured_with(key: CurveKey) -> _Options:
    return key.threads, key.threads_batch or key.threads, key.kv_type, key.weights, key.flash_attention


def _served_with(options: EngineOptions, header: GgufHeader, machine: Machine) -> _Options:
    threads = options.threads or machine.num_threads()
    weights = stored_layout(options, header)
    return threads, options.threads_batch or threads, options.kv_type, weights, options.flash_attention
