"""Loss on held-out documents, of each kind and in all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from demo_model.batches import Batch, batch_of
from demo_model.model import Llama
from demo_model.rows import Rows


class Trials:
    """Reads `per_kind` rows of each kind. Only tokens that the model is to write count."""

    def __init__(self, rows: Rows, *, per_kind: int, device: torch.device) -> None:
        self._batches = dict(_chosen(rows, per_kind))
        self._device = device

    def losses(self, model: Llama, *, low: bool) -> dict[str, float]:
        """The loss of each kind in nats per token; `all` is their mean."""
        with torch.inference_mode(), torch.autocast(self._device.type, torch.bfloat16, enabled=low):
            found = {kind: self._loss(model, batch) for kind, batch in self._batches.items()}
        return {"all": sum(found.values()) / max(1, len(found)), **found}

    def _loss(self, model: Llama, batch: Batch) -> float:
        counted = batch.weights > 0
        hidden = model(batch.inputs.to(self._device))[counted.to(self._device)]
        return float(F.cross_entropy(model.logits(hidden).float(), batch.targets[counted].to(self._device)))


def _chosen(rows: Rows, per_kind: int) -> Iterator[tuple[str, Batch]]:
    for number, name in enumerate(rows.kind_names):
        first: NDArray[np.int64] = np.flatnonzero(rows.kinds == number)[:per_kind]
        yield name, batch_of(rows, first, prompt_weight=0.0)
