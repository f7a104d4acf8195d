"""Shapes of real models, with a vocabulary of 32,000, and tiny models of today's architectures. Facts are in
models.json, by GGUF keys; rows are multiples of 256, so that every block type fits."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

Facts = dict[str, Any]
"""Metadata by GGUF keys; `*.` stands for the architecture."""


class Memory(enum.Enum):
    FULL = "full"
    WINDOW = "window"
    STATE = "state"
    HYBRID = "hybrid"
    HYBRID_WINDOW = "hybrid-window"

    @property
    def has_state(self) -> bool:
        return self in (Memory.STATE, Memory.HYBRID, Memory.HYBRID_WINDOW)

    @property
    def has_window(self) -> bool:
        return self in (Memory.WINDOW, Memory.HYBRID_WINDOW)


@dataclass(frozen=True)
class Architecture:
    """llama.cpp's architecture; llama.cpp itself reports the tensors."""

    name: str
    llama_name: str
    memory: Memory
    own_facts: Facts
    """Facts before `*.` is replaced."""
    embedding_std: float = 1.0
    """Gemma multiplies embeddings by the root of their width, which would outweigh all layers."""
    query_key_norm: float = 1.6
    """Makes attention prefer some tokens. Less suffices without a division by the root of a head's width."""
    tied: bool = False
    alike: bool = False
    """True if all layers have the same tensors."""
    has_biases: bool = True
    """True if it has the biases and other tensors that llama.cpp can do without."""
    like: str = ""
    """Similar real model, or its speciality."""

    @property
    def vocab(self) -> int:
        vocab: int = self.own_facts["*.vocab_size"]
        return vocab

    @property
    def layers(self) -> int:
        layers: int = self.own_facts["*.block_count"]
        return layers

    @property
    def has_heads(self) -> bool:
        return "*.nextn_predict_layers" in self.own_facts

    @property
    def has_experts(self) -> bool:
        return "*.expert_count" in self.own_facts

    @property
    def facts(self) -> Facts:
        return {key.replace("*", self.llama_name): value for key, value in self.own_facts.items()}


_MODELS = json.loads(Path(__file__).with_name("models.json").read_text("utf-8"))


def _read(kind: str, common: Facts) -> dict[str, Architecture]:
    found = {}
    for name, fields in _MODELS[kind].items():
        memory, facts = Memory(fields.pop("memory")), {**common, **fields.pop("facts")}
        found[name] = Architecture(name=name, memory=memory, own_facts=facts, **fields)
    return found


def _with_heads() -> dict[str, Architecture]:
    found = {}
    for name, fields in _MODELS["heads"].items():
        base = ARCHITECTURES[fields.pop("of")]
        facts, memory = {**base.own_facts, **fields.pop("facts")}, Memory(fields.pop("memory", base.memory))
        found[name] = replace(base, name=name, memory=memory, own_facts=facts, **{"like": "", **fields})
    return found


_OF_TINY: Facts = _MODELS["facts_of_tiny_models"]
SHAPES = _read("shapes", {})
ARCHITECTURES = _read("tiny", _OF_TINY)
HEADS = _with_heads()
"""Models with heads that predict further tokens, and an assistant in its own file."""
VOCAB: int = _OF_TINY["*.vocab_size"]
WINDOW: int = ARCHITECTURES["tiny-gemma3"].own_facts["*.attention.sliding_window"]


def spelt(name: str, names: Iterable[str]) -> str:
    """Return the name that differs only in dots and hyphens, as `qwen35`, or else the name itself."""

    def bare(text: str) -> str:
        return text.replace(".", "").replace("-", "")

    return next((each for each in names if bare(each) == bare(name)), name)
