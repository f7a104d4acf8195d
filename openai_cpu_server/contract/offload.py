"""A device beside the CPU, such as a GPU: what of a model is asked to go there, and what went."""

from __future__ import annotations

from typing import Literal, Union

import msgspec

ALL_LAYERS = 1 << 16
"""More layers than any model has."""
CPU = "CPU"
"""As ggml names it among its devices."""


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for. By default nothing leaves the CPU."""

    gpu_layers: Union[int, Literal["auto", "all"]] = 0
    """So many of the last layers; the output is the last one. auto: the fastest split that fits."""
    cpu_moe: int = 0
    """The experts of the first so many layers stay on the CPU; `ALL_LAYERS`: all experts."""
    tensor_place: tuple[tuple[str, str], ...] = ()
    """Regular expressions, and the device (`CPU` is one) of all tensors in whose names one is found; the
    first decides, before all else."""
    kv_on_gpu: Union[bool, None] = None
    """Whether cells and states are where their layer is; False: on the CPU; None: there, unless `auto` finds
    that the CPU is faster."""
    device: Union[str, None] = None
    """Its name, such as `Vulkan0`; None: the first that computes."""
    given_up: Union[str, None] = None
    """Why nothing goes to a device though it was asked for, as a clause; None: nobody has given it up."""

    @property
    def wants_device(self) -> bool:
        return self.gpu_layers != 0 or any(to.upper() != CPU for _, to in self.tensor_place)


ON_CPU = Offload()


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """As ggml tells it."""

    name: str
    """Such as `Vulkan0`."""
    backend: str
    description: str
    kind: Literal["gpu", "integrated", "cpu"]
    """integrated: its memory is the machine's. cpu: a driver that computes on the CPU, for tests."""
    free_bytes: int
    total_bytes: int
    """0: it does not tell."""


class Placement(msgspec.Struct, frozen=True, kw_only=True):
    """What went to a device, and what it takes there."""

    device: Union[Device, None]
    """Its free memory is that from before. None: one was asked for, and there is none."""
    layers: int
    """0: the CPU does all, and `why` says why."""
    num_layers: int
    """The output is one of them."""
    cpu_expert_layers: int
    """Layers on the device whose experts are on the CPU."""
    weights_bytes: int
    cells_bytes: int
    """States are counted too."""
    compute_bytes: int
    cells_on_cpu: bool = False
    """Cells and states are there, and attention is computed there. An encoder has neither anywhere."""
    why: Union[str, None] = None
    """Why it is less than what was asked for, in a sentence."""

    @classmethod
    def nowhere(cls, why: str, device: Device | None = None) -> Placement:
        """All is on the CPU though a device was asked for."""
        return cls(
            device=device,
            layers=0,
            num_layers=0,
            cpu_expert_layers=0,
            weights_bytes=0,
            cells_bytes=0,
            compute_bytes=0,
            why=why,
        )

    @property
    def computes_in_one_go(self) -> bool:
        """Whether most of a step goes on to its end once it is begun: nothing stops a device, and the CPU
        stops between two operations. It has some in each layer whose experts or cells are there."""
        alone = 0 if self.cells_on_cpu else self.layers - self.cpu_expert_layers
        return 2 * alone > self.num_layers

    @property
    def taken_bytes(self) -> int:
        return self.weights_bytes + self.cells_bytes + self.compute_bytes

    @property
    def split(self) -> str | None:
        """On which device is what, whatever it takes there; None: the CPU does all."""
        if self.device is None or not (self.layers or self.weights_bytes):
            return None
        said = [f"{self.layers} of {self.num_layers} layers on {self.device.name}"]
        said += [f"experts of {self.cpu_expert_layers} on the CPU"] if self.cpu_expert_layers else []
        said += ["cells on the CPU"] if self.cells_on_cpu else []
        return ", ".join(said)

    def __str__(self) -> str:
        if self.device is None or self.split is None:
            return f"all on the CPU: {self.why}" if self.why else "all on the CPU"
        free = self.device.free_bytes
        return f"{self.split} ({self.taken_bytes / 2**20:,.0f} MiB of {free / 2**20:,.0f} that were free)"
