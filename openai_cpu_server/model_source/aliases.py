"""Aliases of well-known models, from `aliases.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.model_source.names import name_words, parse_hub_name


class AliasedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str | None = None
    """Repository and file at the hub, or None for a package."""
    gigabytes: float
    kind: ModelKind = ModelKind.GENERATES
    cell_bytes: int | None = None
    """KV bytes per token in f16, an upper bound where windows have other heads."""
    state_mib: float = 0
    """State of a sequence of any length, over all layers without cells."""
    tools: str | None = None
    """Format of tool calls, if known."""
    thoughts: str | None = None
    """Format of thoughts, if known."""
    sampling: Mapping[str, int | float] = {}
    """The makers' recommendation, by the contract's names; a comment names its source."""

    @property
    def words(self) -> tuple[str, ...]:
        """Words of its files' names, else of the repository's."""
        if self.source is None:
            return ()
        name = parse_hub_name(self.source)
        return name_words(name.file or name.repo.rpartition("/")[2].removesuffix("-GGUF"))


MODELS_BY_ALIAS = msgspec.toml.decode(
    Path(__file__).with_suffix(".toml").read_bytes(), type=dict[str, AliasedModel]
)
ALIASES = {alias: model.source for alias, model in MODELS_BY_ALIAS.items() if model.source is not None}


def recommended_sampling(path: Path) -> Mapping[str, int | float]:
    """Find the makers' recommendation by the file's name, in any quantisation."""
    found = name_words(path.name)
    return next((model.sampling for model in MODELS_BY_ALIAS.values() if model.words == found), {})


def without_tag(name: str) -> str:
    """Return Ollama's `llama3.2:3b` as the alias `llama-3.2-3b`."""
    bare = name.removesuffix(":latest")
    if bare in MODELS_BY_ALIAS or ":" not in bare:
        return bare if bare in MODELS_BY_ALIAS else name
    alike = [alias for alias in MODELS_BY_ALIAS if _letters(alias) == _letters(bare)]
    return alike[0] if len(alike) == 1 else name


def _letters(name: str) -> str:
    return name.lower().replace("-", "").replace(":", "")
