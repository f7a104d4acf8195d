"""Description of a model in `/v1/models`, which other APIs show too."""

from __future__ import annotations

import msgspec

from openai_cpu_server.api.state import response_of
from openai_cpu_server.contract.model_info import ModelKind
from openai_cpu_server.contract.request import Sampling
from openai_cpu_server.models.defaults import with_values
from openai_cpu_server.models.registry import ChosenModel, Preset
from openai_cpu_server.models.served import ServedModel


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    context_length: int
    """Limit for prompt and output together."""
    context_trained: int
    parameters: int
    size_bytes: int
    vocab_size: int
    architecture: str
    description: str
    quantisation: str | None
    """Statement of the file, such as `q4_k_m`."""


class DefaultSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Values that apply where a request of OpenAI's or Anthropic's API names none."""

    temperature: float
    top_p: float
    top_k: int
    """0 for all tokens."""
    min_p: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    max_output_tokens: int | None
    """Output limit, or None for the rest of the context."""


class Modalities(msgspec.Struct, frozen=True):
    input_modalities: tuple[str, ...]
    output_modalities: tuple[str, ...] = ("text",)


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "openai-cpu-server"
    parent: str | None
    """Model itself, if this is an adapter or an alias."""
    kind: str
    """`generates`, `embeds`, `reranks`, or `routes` (chooses another model for each request)."""
    state: str
    """`ready`, `loading`, `asleep` (loaded by a request), `failed`, or another state of `/health`."""
    reason: str | None
    memory_bytes: int | None
    """Resident memory of the process, or None without one."""
    meta: ModelMeta | None
    """Unknown (None) for a router, while the only model is loading, or if the file cannot be read."""
    sampling: DefaultSampling | None = None
    """Default parameters, or None if it does not generate or its file has not been read."""
    architecture: Modalities = Modalities(("text",))
    routes: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """Routers only: model by route."""


def model_card(chosen: ChosenModel) -> ModelCard:
    model, status = chosen.model, chosen.model.engine.status()
    info = model.engine.info
    return ModelCard(
        id=chosen.name,
        created=model.created,
        parent=None if chosen.adapter is None and chosen.preset is None else model.name,
        kind=model.kind.value,
        state=status.state.value,
        reason=status.reason,
        memory_bytes=status.engine_rss_bytes or None,
        meta=response_of(
            ModelMeta,
            info,
            context_length=info.context_limit,
            parameters=info.num_parameters,
            size_bytes=info.file_bytes,
            quantisation=model.quantisation,
        )
        if info
        else None,
        sampling=_default_sampling(chosen) if model.kind is ModelKind.GENERATES else None,
        architecture=Modalities(input_modalities(model)),
    )


def _default_sampling(chosen: ChosenModel) -> DefaultSampling:
    defaults, preset = chosen.model.defaults, chosen.preset or Preset(base=chosen.name)
    sampling = with_values(Sampling(seed=0), {**defaults.over(None), **preset.parameters})
    return response_of(
        DefaultSampling,
        sampling,
        top_k=sampling.top_k or 0,
        max_output_tokens=preset.max_tokens or defaults.max_output_tokens,
    )


def input_modalities(model: ServedModel) -> tuple[str, ...]:
    info = model.engine.info
    if info is None:
        return ("text",)
    return ("text", *(["image"] if info.sees else []), *(["audio"] if info.hears else []))
