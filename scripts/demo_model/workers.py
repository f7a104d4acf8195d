"""Gradients of several batches at once: a thread per core, each with its own batch and view of the model.

Threads that share every single matrix product wait for each other thousands of times per step, and for
whatever else the machine is doing. These meet once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from demo_model.batches import Batch
from demo_model.loss import weighted_loss
from demo_model.model import Llama


@dataclass(frozen=True)
class Learnt:
    """Sums over a batch: weighted loss, weights, tokens."""

    loss: float
    weight: float
    tokens: int


class Workers:
    """Threads for the CPU's cores, or one for a GPU. With `low` matrices are multiplied in bfloat16."""

    def __init__(self, model: Llama, *, threads: int, low: bool, device: torch.device) -> None:
        self._model, self._low, self._device = model, low, device
        count = threads if device.type == "cpu" else 1
        self._views = [view_of(model) for _ in range(count)]
        self._local = threading.local()
        self._free = list(self._views)
        self._pool = ThreadPoolExecutor(count, initializer=self._begin)

    def learn(self, batches: Sequence[Batch]) -> list[Learnt]:
        """Put the sum of the batches' gradients into the model's."""
        done = list(self._pool.map(self._learn, batches))
        for view in self._views:
            _add_gradients(self._model, view)
        return done

    def close(self) -> None:
        self._pool.shutdown()

    def _begin(self) -> None:
        if self._device.type == "cpu":
            torch.set_num_threads(1)
        self._local.view = self._free.pop()

    def _learn(self, batch: Batch) -> Learnt:
        view: Llama = self._local.view
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._low):
            hidden = view(batch.inputs.to(self._device))
        loss = weighted_loss(
            hidden.flatten(0, 1).float(),
            view.embedding.weight,
            batch.targets.to(self._device).flatten(),
            batch.weights.to(self._device).flatten(),
            low=self._low,
        )
        loss.backward()
        return Learnt(loss.item(), float(batch.weights.clamp(min=0).sum()), batch.num_tokens)


def view_of(model: Llama) -> Llama:
    """A model with the same weights in the same memory, and gradients of its own."""
    view = Llama(model.shape)
    for own, parameter in zip(view.parameters(), model.parameters(), strict=True):
        own.data = parameter.data
    view.to(next(model.parameters()).device)
    return view


def _add_gradients(model: Llama, view: Llama) -> None:
    for parameter, own in zip(model.parameters(), view.parameters(), strict=True):
        if own.grad is not None:
            parameter.grad = own.grad if parameter.grad is None else parameter.grad.add_(own.grad)
            own.grad = None
