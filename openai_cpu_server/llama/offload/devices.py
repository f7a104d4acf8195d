"""Devices beside the CPU that this build of llama.cpp supports."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Literal

from openai_cpu_server.contract.offload import CPU, Device
from openai_cpu_server.errors import DeviceFailed, StartupError
from openai_cpu_server.llama.bindings import libggml, llama_cpp
from openai_cpu_server.llama.offload.split import Split

_KINDS: dict[int, Literal["gpu", "integrated"]] = {1: "gpu", 2: "integrated"}
"""`ggml_backend_dev_type`; other values are the CPU, its accelerators, and groups of devices."""


class _Override(ctypes.Structure):
    _fields_ = (("pattern", ctypes.c_char_p), ("buffer_type", ctypes.c_void_p))


def devices() -> list[Device]:
    """Return devices with their free memory; a build for the CPU alone has none."""
    ggml = _ggml()
    handles = [ggml.ggml_backend_dev_get(index) for index in range(ggml.ggml_backend_dev_count())]
    return [_device(handle) for handle in handles if ggml.ggml_backend_dev_type(handle) in _KINDS]


class NativeSplit:
    """Split as `llama_model_params`. Owns lists that llama.cpp reads, so it must live as long as the
    model."""

    def __init__(self, split: Split | None, device: Device | None) -> None:
        """Name the devices. Raises `StartupError` for an absent device."""
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

    @classmethod
    def cpu_alone(cls) -> NativeSplit:
        return cls(None, None)

    @property
    def uses_device(self) -> bool:
        return bool(self._devices[0])

    def failure(self, message: str) -> StartupError:
        return DeviceFailed(message) if self.uses_device else StartupError(message)

    def apply_to(self, params: llama_cpp.llama_model_params) -> None:
        """Name the device or none, because llama.cpp would otherwise use every device."""
        params.n_gpu_layers = self._num_layers
        params.devices = ctypes.addressof(self._devices)
        params.tensor_split = self._shares
        if len(self._overrides) > 1:
            params.tensor_buft_overrides = ctypes.addressof(self._overrides)
        # What stays on the CPU stays mapped: a device's own kind of host memory would be a copy of the file.
        params.no_host = self.uses_device


def as_named(places: Sequence[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Spell the devices of patterns like ggml: `Vulkan0` for `vulkan0`. Raises `StartupError` for an
    unknown one."""
    name_of = _ggml().ggml_backend_dev_name
    return tuple((pattern, _text(name_of(_handle(to)))) for pattern, to in places)


def _handle(name: str) -> int:
    handle: int | None = _ggml().ggml_backend_dev_by_name(name.encode())
    if handle is None:
        names = [CPU, *(device.name for device in devices())]
        raise StartupError(f"There is no device {name!r} here, but {', '.join(names)}.")
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
