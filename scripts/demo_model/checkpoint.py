"""A run on disk: weights, optimiser, position. What it needs beyond that follows from its options' seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from demo_model.model import Llama
from demo_model.optimise import Optimiser
from demo_model.shapes import Shape

_NAME = "checkpoint.pt"


@dataclass
class Position:
    """How far a run is. Batches are drawn from generators seeded by (seed, position): no other state."""

    step: int = 0
    batch: int = 0
    tokens: int = 0
    seconds: float = 0.0
    """Spent training, over all its parts."""


def save(folder: Path, model: Llama, optimiser: Optimiser, position: Position) -> None:
    """Whole or not at all, whenever the process is killed."""
    partial = folder / f".{_NAME}.partial"
    state = {
        "shape": asdict(model.shape),
        "model": model.state_dict(),
        "optimiser": optimiser.state,
        "position": asdict(position),
    }
    torch.save(state, partial)
    partial.replace(folder / _NAME)


def restore(folder: Path, model: Llama, optimiser: Optimiser) -> Position:
    """Load the checkpoint, or begin if there is none. Raises ValueError for one of another shape."""
    path = folder / _NAME
    if not path.exists():
        return Position()
    state = torch.load(path, map_location="cpu", weights_only=True)
    if Shape(**state["shape"]) != model.shape:
        raise ValueError(f"{path} is of another model: {state['shape']}")
    model.load_state_dict(state["model"])
    optimiser.restore(state["optimiser"])
    return Position(**state["position"])


def load_model(path: Path) -> Llama:
    """The model alone; `path` is the checkpoint or the run's folder."""
    state = torch.load(path / _NAME if path.is_dir() else path, map_location="cpu", weights_only=True)
    model = Llama(Shape(**state["shape"]))
    model.load_state_dict(state["model"])
    return model.eval()
