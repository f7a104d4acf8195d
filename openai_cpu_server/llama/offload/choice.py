"""Devices that this build of llama.cpp supports."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.offload import CPU, ON_CPU, Device, DevicePlacement, Offload
from openai_cpu_server.errors import DeviceFailed, StartupError
from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.gguf.header import GgufHeader, model_files, model_kind, total_bytes
from openai_cpu_server.llama.model import kv_size
from openai_cpu_server.llama.offload.split import ModelSizes, Split, SplitPlanner, StepSizes

logger = logging.getLogger(__name__)

T = TypeVar("T")

_PREFERRED = ("gpu", "integrated", "cpu")

NO_DEVICE = "llama.cpp finds no device beside the CPU (scripts/serve --gpu builds it for one)"


def with_device_or_without(load: Callable[[EngineOptions], T], options: EngineOptions) -> T:
    """Use the CPU alone if the device is full or fails."""
    try:
        return load(options)
    except DeviceFailed as error:
        logger.warning("%s Without the device: the CPU serves", error)
        return load(options.on_cpu_alone(str(error).rstrip(".")))


_KINDS: dict[int, Literal["gpu", "integrated"]] = {1: "gpu", 2: "integrated"}
"""`ggml_backend_dev_type`; others are the CPU, its accelerators, and groups."""


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def devices() -> list[Device]:
    ggml = _ggml()
    handles = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    return [_device(handle) for handle in handles if ggml.ggml_backend_dev_type(handle) in _KINDS]


class NativeSplit:
    """llama.cpp reads the lists as long as the model lives."""

    def __init__(self, split: Split | None = None, device: Device | None = None) -> None:
        overrides = split.overrides if split is not None else []
        others = [to for _, to in overrides if to != CPU]
        names = list(dict.fromkeys([device.name, *others])) if device is not None else []
        self._devices = (ctypes.c_void_p * (len(names) + 1))(*map(_handle, names))
        # Layers go to the first: llama.cpp would share them among all by free memory.
        self._shares = (ctypes.c_float * max(1, len(names)))(1.0)
        self._overrides = (_Override * (len(overrides) + 1))(
            *(
                _Override(pattern.encode(), int(_ggml().ggml_backend_dev_buffer_type(_handle(to))))
                for pattern, to in overrides
            )
        )
        self._num_layers = split.gpu_layers if split is not None else 0

    @property
    def uses_device(self) -> bool:
        return bool(self._devices[0])

    def failure(self, message: str) -> StartupError:
        return DeviceFailed(message) if self.uses_device else StartupError(message)

    def apply_to(self, params: llama_cpp.llama_model_params) -> None:
        """Name the devices, because llama.cpp would use every device."""
        params.n_gpu_layers = self._num_layers
        params.devices = ctypes.addressof(self._devices)
        params.tensor_split = self._shares
        if len(self._overrides) > 1:
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)
        # Weights on the CPU stay mapped: a device's own kind of host memory would be a copy of the file.
        params.no_host = self.uses_device


def _handle(name: str) -> int:
    handle: int | None = _ggml().ggml_backend_dev_by_name(name.encode())
    if handle is None:
        names = [CPU, *(device.name for device in devices())]
        raise StartupError(f"This machine has no device {name!r}; it has {', '.join(names)}.")
    return handle


def _device(handle: int) -> Device:
    ggml = _ggml()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ggml.ggml_backend_dev_memory(handle, ctypes.byref(free), ctypes.byref(total))
    registry = ggml.ggml_backend_dev_backend_reg(handle)
    description = _text(ggml.ggml_backend_dev_description(handle))
    return Device(
        name=_text(ggml.ggml_backend_dev_name(handle)),
        backend=_text(ggml.ggml_backend_reg_name(registry)),
        description=description,
        kind="cpu" if "llvmpipe" in description else _KINDS[ggml.ggml_backend_dev_type(handle)],
        free_bytes=free.value,
        total_bytes=total.value,
    )


def _text(value: bytes | None) -> str:
    return (value or b"").decode("utf-8", "replace")


@functools.cache
def _ggml() -> Any:
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    for name, result, arguments in (
        ("dev_count", ctypes.c_size_t, ()),
        ("dev_get", pointer, (ctypes.c_size_t,)),
        ("dev_by_name", pointer, (text,)),
        ("dev_type", ctypes.c_int, (pointer,)),
        ("dev_name", text, (pointer,)),
        ("dev_description", text, (pointer,)),
        ("dev_memory", None, (pointer, pointer, pointer)),
        ("dev_buffer_type", pointer, (pointer,)),
        ("dev_backend_reg", pointer, (pointer,)),
        ("reg_name", text, (pointer,)),
    ):
        function = getattr(libggml, f"ggml_backend_{name}")
        function.restype, function.argtypes = result, arguments
    return libggml


class Places(NamedTuple):
    native: NativeSplit
    split: Split | None
    placement: DevicePlacement | None
    """Report for users, or None if no device was requested."""

    @property
    def cells_beside_layers(self) -> bool:
        return self.split is not None and bool(self.split.offload.kv_on_gpu)

    @property
    def device_memory(self) -> kv_size.DeviceMemory:
        return kv_size.DeviceMemory() if self.split is None else self.split.device_memory

    def most_cells(self, cells: int) -> int:
        return cells if self.split is None else min(cells, self.split.cells)

    @classmethod
    def cpu_alone(cls, why: str | None = None, device: Device | None = None) -> Places:
        """`why`: reason why the requested device is not used, or None."""
        placement = None if why is None else DevicePlacement.nowhere(why, device)
        return cls(NativeSplit(), None, placement)


def chosen_places(options: EngineOptions, free_bytes: int) -> Places:
    offload = options.offload
    if not offload.wants_device:
        return Places.cpu_alone(offload.why_cpu_alone)
    device = device_for(offload)
    if device is None:
        if offload.gpu_layers != "auto":
            logger.warning("%s: the CPU serves", NO_DEVICE)
        return Places.cpu_alone(NO_DEVICE)
    planner = split_planner_for(options, device, free_bytes)
    for sentence in planner.unused_options:
        logger.warning("%s (%s)", sentence, Path(options.model_path).name)
    split = planner.first_choice()
    if split.is_cpu_alone:
        return Places.cpu_alone(split.why or planner.why_cpu_alone, device)
    if split.why is not None:
        logger.warning("%s: %s", split, split.why)
    placement = DevicePlacement(
        device=device,
        layers=split.gpu_layers,
        num_layers=split.num_layers,
        cpu_expert_layers=split.experts_on_cpu,
        weights_bytes=split.device_bytes.weights,
        cells_bytes=split.device_bytes.cells + split.device_bytes.states,
        compute_bytes=split.device_bytes.compute,
        cells_on_cpu=not split.offload.kv_on_gpu,
        why=split.why,
    )
    return Places(NativeSplit(split, device), split, placement)


def of_draft_model(options: EngineOptions, path: Path) -> EngineOptions:
    return msgspec.structs.replace(
        options,
        model_path=str(path),
        draft_model_path=None,
        head="none",
        projector_path=None,
        offload=options.draft_offload,
        draft_offload=ON_CPU,
        kv_type=kv_size.DRAFT_KV_TYPE.value.name,
    )


def split_planner_for(options: EngineOptions, device: Device, free_bytes: int) -> SplitPlanner:
    """The draft model comes first, because it is small and computes more often."""
    name_of = _ggml().ggml_backend_dev_name  # `Vulkan0` for `vulkan0`
    named = tuple((pattern, _text(name_of(_handle(to)))) for pattern, to in options.offload.tensor_place)
    offload = msgspec.structs.replace(options.offload, tensor_place=named)
    header = GgufHeader(Path(options.model_path))
    if model_kind(header) is not ModelKind.GENERATES:
        sizes = ModelSizes.of(header, kv_size.KVType.F16, offload, device.name)
        beside = max(0, free_bytes - total_bytes(model_files(header)))
        step = StepSizes.of_embeddings(header, sizes, options, beside)
        return SplitPlanner(sizes, step, offload, device)
    kv_type = kv_size.KVType.named(options.kv_type)
    draft, _ = kv_size.planned_drafts(header, options)
    both = free_bytes + (device.free_bytes if device.kind == "gpu" else 0)
    host_memory = kv_size.HostMemory.of(header, draft, kv_type, both, encoder=kv_size.encoder_memory(options))
    sizes = ModelSizes.of(header, kv_type, offload, device.name)
    cells = host_memory.pool_cells(options.kv_tokens)
    step = StepSizes.of(sizes, options, cells, host_memory.free_bytes, drafts=draft is not None)
    reserved_bytes = 0
    if draft is not None and draft.head is None and options.draft_offload.wants_device:
        drafts = split_planner_for(of_draft_model(options, draft.header.path), device, free_bytes)
        reserved_bytes = sum(drafts.first_choice().device_bytes)
    return SplitPlanner(sizes, step, offload, device, reserved_bytes=reserved_bytes)


def device_for(offload: Offload) -> Device | None:
    """Prefer a separate GPU to an integrated one."""
    found = devices()
    if offload.device is None or not found:
        return min(found, key=lambda device: _PREFERRED.index(device.kind), default=None)
    named = next((device for device in found if device.name.lower() == offload.device.lower()), None)
    if named is None:
        names = ", ".join(device.name for device in found)
        raise StartupError(f"--device: this machine has no {offload.device!r}; it has {names}.")
    return named
