"""The settings that `tune` found to be the best for a model on this machine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import msgspec

from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.measure.facts import MachineFacts, ModelFacts
from openai_cpu_server.llama.measure.measurements import Measurements

_VERSION = 1


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """Values that `serve` uses for every option that the user did not give."""

    threads: int
    threads_batch: int
    repack: bool
    prefill_tokens: int
    kv_type: str
    flash_attention: bool

    def applied(self, options: EngineOptions, given: Collection[str] = ()) -> EngineOptions:
        """The options with this profile's values, except for those in `given`, which the user named."""
        found = {name: value for name, value in msgspec.structs.asdict(self).items() if name not in given}
        return msgspec.structs.replace(options, **found)


class ProfileKey(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    model: ModelFacts
    machine: MachineFacts

    @classmethod
    def of(cls, model: Path) -> ProfileKey:
        """The key of a model file. Raises `StartupError` if it is no model."""
        return cls(version=_VERSION, model=ModelFacts.of(model), machine=MachineFacts.here())


def load_profile(model: Path, cache_dir: Path) -> Profile | None:
    """The profile of a model; None if it was not tuned on this machine."""
    try:
        key = ProfileKey.of(model)
    except StartupError:
        return None  # whoever loads the model says what is wrong with it
    return Measurements(cache_dir).get(key, Profile)


def save_profile(model: Path, cache_dir: Path, profile: Profile) -> Path | None:
    """Store a profile and return its path; None, and a line in the log, where nothing can be written."""
    key, kept = ProfileKey.of(model), Measurements(cache_dir)
    return kept.path(key) if kept.put(key, profile) else None
