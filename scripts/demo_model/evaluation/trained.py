"""Logits of trained weights, by PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from demo_model.checkpoint import load_model


class Trained:
    """A run's weights as they were trained, in 32 bits."""

    def __init__(self, run: Path, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self._model = load_model(run)

    def logits(self, tokens: list[int]) -> NDArray[np.float32]:
        """[tokens, vocabulary]: row i is what follows token i."""
        with torch.inference_mode():
            found = self._model.logits(self._model(torch.tensor([tokens])))[0]
        return np.asarray(found.float().numpy())
