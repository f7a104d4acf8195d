"""Placement of a model's parts on a device beside the CPU, such as a GPU."""

from __future__ import annotations

from typing import Literal, Union

import msgspec

ALL_LAYERS = 1 << 16
CPU = "CPU"


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """Placement, by default on the CPU."""

    gpu_layers: Union[int, Literal["auto", "all"]] = 0
    """Last layers on the device, with the output; auto: the fastest split that fits."""
    cpu_moe: int = 0
    """First layers whose experts stay on the CPU, or `ALL_LAYERS`."""
    tensor_place: tuple[tuple[str, str], ...] = ()
    """Pairs of a regular expression for tensor names and a device or `CPU`, before all other options."""
    kv_on_gpu: Union[bool, None] = None
    """True: KV cells and states are with their layer; False: on the CPU. None: as `auto` finds faster."""
    device: Union[str, None] = None
    """Name such as `Vulkan0`, or None for the first device that computes."""
    why_cpu_alone: Union[str, None] = msgspec.field(default=None, name="given_up")

    @property
    def wants_device(self) -> bool:
        return self.gpu_layers != 0 or any(to.upper() != CPU for _, to in self.tensor_place)


ON_CPU = Offload()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    backend: str
    description: str
    kind: Literal["gpu", "integrated", "cpu"]
    """integrated: its memory is the machine's. cpu: a driver that computes on the CPU, for tests."""
    free_bytes: int
    total_bytes: int
    """0 if unknown."""


class DevicePlacement(msgspec.Struct, frozen=True, kw_only=True):
    device: Union[Device, None]
    """Device, or None if the wanted one does not exist."""
    layers: int = 0
    """0 if the CPU computes everything; `why` has the reason."""
    num_layers: int = 0
    cpu_expert_layers: int = 0
    weights_bytes: int = 0
    cells_bytes: int = 0
    compute_bytes: int = 0
    cells_on_cpu: bool = False
    why: Union[str, None] = None

    @classmethod
    def nowhere(cls, why: str, device: Device | None = None) -> DevicePlacement:
        return cls(device=device, why=why)

    @property
    def computes_in_one_go(self) -> bool:
        """True if most of a step cannot be interrupted: a device does not stop between operations."""
        alone = 0 if self.cells_on_cpu else self.layers - self.cpu_expert_layers
        return 2 * alone > self.num_layers

    @property
    def taken_bytes(self) -> int:
        return self.weights_bytes + self.cells_bytes + self.compute_bytes

    @property
    def split(self) -> str | None:
        """Description of the device's part, or None if the CPU computes everything."""
        if self.device is None or not (self.layers or self.weights_bytes):
            return None
        parts = [f"{self.layers} of {self.num_layers} layers on {self.device.name}"]
        parts += [f"experts of {self.cpu_expert_layers} on the CPU"] if self.cpu_expert_layers else []
        parts += ["cells on the CPU"] if self.cells_on_cpu else []
        return ", ".join(parts)

    def __str__(self) -> str:
        if self.device is None or self.split is None:
            return f"all on the CPU: {self.why}" if self.why else "all on the CPU"
        free = self.device.free_bytes
        return f"{self.split} ({self.taken_bytes / 2**20:,.0f} MiB of {free / 2**20:,.0f} that were free)"
