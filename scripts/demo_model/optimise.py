"""Muon for the layers' matrices, AdamW for the embeddings and norms, one schedule for both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from demo_model.model import Llama

_WARM_UP = 0.01
_DECAY = 0.3
"""Shares of a run: the rate rises over the first, falls to nothing over the last."""


@dataclass(frozen=True)
class Rates:
    matrices: float = 0.02
    vectors: float = 0.004


class Optimiser:
    """Clips and applies the gradients; `state` for checkpoints."""

    def __init__(self, model: Llama, rates: Rates) -> None:
        matrices = [parameter for parameter in model.layers.parameters() if parameter.ndim == 2]
        known = {id(parameter) for parameter in matrices}
        vectors = [parameter for parameter in model.parameters() if id(parameter) not in known]
        self._parameters = list(model.parameters())
        self._muon = torch.optim.Muon(matrices, lr=rates.matrices, weight_decay=0.02, momentum=0.95)
        self._adam = torch.optim.AdamW(vectors, lr=rates.vectors, betas=(0.9, 0.98), weight_decay=0.0)
        self._rates = ((self._muon, rates.matrices), (self._adam, rates.vectors))

    def step(self, progress: float) -> None:
        """Apply the gradients. `progress` is how much of the run is done, 0 to 1."""
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        for optimiser, rate in self._rates:
            for group in optimiser.param_groups:
                group["lr"] = rate * share_of_rate(progress)
            optimiser.step()
            optimiser.zero_grad()

    def scale_gradients(self, factor: float) -> None:
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        torch._foreach_mul_(gradients, factor)

    @property
    def state(self) -> dict[str, dict[str, object]]:
        return {"muon": self._muon.state_dict(), "adam": self._adam.state_dict()}

    def restore(self, state: Mapping[str, dict[str, object]]) -> None:
        self._muon.load_state_dict(state["muon"])
        self._adam.load_state_dict(state["adam"])


def share_of_rate(progress: float) -> float:
    """The share of the rate: it rises, stays, and falls to nothing at the end."""
    rising = 0.05 + 0.95 * progress / _WARM_UP
    falling = (1.0 - progress) / _DECAY
    return max(0.0, min(1.0, rising, falling))
