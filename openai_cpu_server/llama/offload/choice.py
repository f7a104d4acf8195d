"""Chooses what of a model goes to a device, and says so."""

from __future__ import annotations

import logging
from typing import NamedTuple

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.offload import Device, Offload, Placement
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader
from openai_cpu_server.llama.model.kv_size import KVType
from openai_cpu_server.llama.offload.devices import NativeSplit, devices, require_places
from openai_cpu_server.llama.offload.split import Fitting, ModelSizes, Split, StepSizes

logger = logging.getLogger(__name__)

_NO_DEVICE = "llama.cpp knows no device here beside the CPU (scripts/serve --gpu builds it with one)"


class Places(NamedTuple):
    """What goes to a device, as llama.cpp is told and as people are."""

    native: NativeSplit
    split: Split | None
    """None: nothing goes to a device."""
    placement: Placement | None
    """None: nothing was asked for."""

    @property
    def cells_beside_layers(self) -> bool:
        return self.split is not None and bool(self.split.offload.kv_on_gpu)

    @property
    def taken_bytes(self) -> int:
        return 0 if self.split is None else sum(self.split.taken)

    @classmethod
    def cpu_alone(cls, why: str | None = None, device: Device | None = None) -> Places:
        """`why`: in place of the device that was asked for."""
        placement = None if why is None else nowhere(why, device)
        return cls(NativeSplit.cpu_alone(), None, placement)


def nowhere(why: str, device: Device | None = None) -> Placement:
    """The placement of a model that the CPU serves alone though a device was asked for."""
    return Placement(
        device=device,
        layers=0,
        num_layers=0,
        cpu_expert_layers=0,
        weights_bytes=0,
        cells_bytes=0,
        compute_bytes=0,
        why=why,
    )


def chosen_places(
    asked: Offload,
    header: GgufHeader,
    options: EngineOptions,
    kv_type: KVType,
    *,
    cells: int,
    free_bytes: int,
    reserved_bytes: int = 0,
) -> Places:
    """What fits of what is asked for. Nothing is loaded, and where nothing is asked for no device is touched.

    `cells`: of the pool; `free_bytes`: of the machine's memory; `reserved_bytes`: what goes to the device
    besides. Raises `StartupError` for what cannot be meant: a pattern or a device that there is not.
    """
    if not asked.wants_device:
        return Places.cpu_alone()
    device = _device(asked)
    if device is None:
        if asked.gpu_layers != "auto":
            logger.warning("%s: the CPU serves", _NO_DEVICE)
        return Places.cpu_alone(_NO_DEVICE)
    require_places([to for _, to in asked.tensor_place])
    sizes = ModelSizes.of(header, kv_type, asked, device.name)
    step = StepSizes.of(sizes, options, cells, free_bytes)
    split = Fitting(sizes, step, asked, device, reserved_bytes=reserved_bytes).first_choice()
    if split.is_cpu_alone:
        return Places.cpu_alone(split.why or f"nothing of it fits on {device.name}", device)
    return Places(NativeSplit(split, device), split, placement_of(split, device))


def placement_of(split: Split, device: Device) -> Placement:
    return Placement(
        device=device,
        layers=split.gpu_layers,
        num_layers=split.num_layers,
        cpu_expert_layers=split.experts_on_cpu,
        weights_bytes=split.taken.weights,
        cells_bytes=split.taken.cells + split.taken.states,
        compute_bytes=split.taken.compute,
        why=split.why,
    )


def _device(asked: Offload) -> Device | None:
    """The first that computes by itself, then one that shares the machine's memory. Raises `StartupError`."""
    found = devices()
    if asked.device is None or not found:
        return min(found, key=lambda device: device.kind == "integrated", default=None)
    named = next((device for device in found if device.name.lower() == asked.device.lower()), None)
    if named is None:
        known = ", ".join(device.name for device in found)
        raise StartupError(f"--device: there is no {asked.device!r} here, but {known}.")
    return named
