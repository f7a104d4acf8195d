from __future__ import annotations

import hashlib
import re
from datetime import datetime, timezone

import msgspec

from openai_cpu_server.api.generation.call import fingerprint
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.models.registry import AvailableModel, ChosenModel, Preset
from openai_cpu_server.models.served import ServedModel


class OllamaDetails(msgspec.Struct, frozen=True, kw_only=True):
    parent_model: str = ""
    format: str = "gguf"
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    modified_at: str
    """Start of serving."""
    size: int
    digest: str
    """Hash that is equal for equal files and server versions."""
    details: OllamaDetails


class OllamaTags(msgspec.Struct, frozen=True):
    models: list[OllamaModel]


class OllamaRunning(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    model: str
    size: int
    """Memory of the process and of a device."""
    digest: str
    details: OllamaDetails
    expires_at: str
    """Far future, because a model stays until its memory is needed."""
    size_vram: int = 0
    """Includes the draft model's."""
    context_length: int


class OllamaProcesses(msgspec.Struct, frozen=True):
    models: list[OllamaRunning]


class OllamaShown(msgspec.Struct, frozen=True, kw_only=True):
    license: str = ""
    modelfile: str
    parameters: str = ""
    system: str | msgspec.UnsetType = msgspec.UNSET
    template: str
    """Jinja template, unless a preset has one."""
    details: OllamaDetails
    model_info: dict[str, str | int]
    capabilities: list[str]
    modified_at: str


class OllamaVersion(msgspec.Struct, frozen=True):
    version: str


def listed(chosen: ChosenModel) -> OllamaModel:
    """Numbers are 0 until the model has been inspected."""
    info = chosen.model.engine.info
    return OllamaModel(
        name=chosen.name,
        model=chosen.name,
        modified_at=_at(chosen.model.created),
        size=info.file_bytes if info else 0,
        digest=_digest(info, chosen),
        details=_details_of(info, chosen.model),
    )


def listed_file(model: AvailableModel) -> OllamaModel:
    """Describe a model before its first request, with only its size known."""
    return OllamaModel(
        name=model.name,
        model=model.name,
        modified_at=_at(model.changed_s),
        size=model.num_bytes,
        digest=hashlib.sha256(repr(model).encode()).hexdigest(),
        details=_details(model.architecture, "", (model.quantisation or "").upper()),
    )


def running(chosen: ChosenModel, info: ModelInfo) -> OllamaRunning:
    status = chosen.model.engine.status()
    on_device = sum(placed.taken_bytes for placed in (status.placement, status.draft_placement) if placed)
    return OllamaRunning(
        name=chosen.name,
        model=chosen.name,
        size=on_device + (status.engine_rss_bytes or info.file_bytes),
        size_vram=on_device,
        digest=_digest(info, chosen),
        details=_details_of(info, chosen.model),
        expires_at="9999-12-31T23:59:59Z",
        context_length=info.context_limit,
    )


def shown_model(chosen: ChosenModel) -> OllamaShown:
    """Describe a model. Raises EngineUnavailable until it has been inspected."""
    info, model = chosen.model.loaded(), chosen.model
    preset = chosen.preset or Preset(base=chosen.name)
    return OllamaShown(
        modelfile=_modelfile(preset),
        parameters="".join(f"{name:<30} {value}\n" for name, value in _parameters(preset)),
        system=preset.system or msgspec.UNSET,
        template=preset.template or model.template_source or "",
        details=_details_of(info, model),
        model_info=_facts(info),
        capabilities=capabilities(model),
        modified_at=_at(model.created),
    )


def _modelfile(preset: Preset) -> str:
    lines = [f"FROM {preset.base}"]
    lines += [f"PARAMETER {name} {value}" for name, value in _parameters(preset)]
    lines += [f'TEMPLATE """{preset.template}"""'] if preset.template else []
    lines += [f'SYSTEM """{preset.system}"""'] if preset.system else []
    lines += [f"MESSAGE {one.role} {one.content}" for one in preset.messages]
    return "\n".join(lines) + "\n"


def _parameters(preset: Preset) -> list[tuple[str, str | int | float]]:
    limit = [] if preset.max_tokens is None else [("num_predict", preset.max_tokens)]
    return [*sorted(preset.parameters.items()), *limit, *(("stop", f'"{text}"') for text in preset.stop)]


def capabilities(model: ServedModel) -> list[str]:
    """Models with a chat template can call tools."""
    if model.kind is not ModelKind.GENERATES:
        return ["embedding"] if model.kind is ModelKind.EMBEDS else []
    info = model.engine.info
    able = {
        "tools": model.template_source is not None,
        "insert": model.tokenizer.fim is not None,
        "thinking": model.thinking is not None,
        "vision": info is not None and info.sees,
        "audio": info is not None and info.hears,
    }
    return ["completion", *(name for name, is_able in able.items() if is_able)]


def _facts(info: ModelInfo) -> dict[str, str | int]:
    family = info.architecture
    facts: dict[str, str | int] = {
        "general.architecture": family,
        "general.parameter_count": info.num_parameters,
        f"{family}.context_length": info.context_limit,
        f"{family}.vocab_size": info.vocab_size,
    }
    if info.embedding_size:
        facts[f"{family}.embedding_length"] = info.embedding_size
    return facts


def _details_of(info: ModelInfo | None, model: ServedModel) -> OllamaDetails:
    quantisation = re.sub(r"^MOSTLY_", "", (model.quantisation or "").upper())
    if info is None:
        return _details("", "", quantisation)
    billions, millions = info.num_parameters / 1e9, info.num_parameters / 1e6
    return _details(
        info.architecture, f"{billions:.1f}B" if billions >= 1 else f"{millions:.2f}M", quantisation
    )


def _details(family: str, parameter_size: str, quantisation: str) -> OllamaDetails:
    return OllamaDetails(
        family=family,
        families=[family] if family else [],
        parameter_size=parameter_size,
        quantization_level=quantisation,
    )


def _digest(info: ModelInfo | None, chosen: ChosenModel) -> str:
    facts = fingerprint(info, chosen.adapter_key) if info else chosen.name
    if chosen.preset is not None:
        facts += msgspec.json.encode(chosen.preset).decode()
    return hashlib.sha256(facts.encode()).hexdigest()


def _at(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, timezone.utc).isoformat().replace("+00:00", "Z")
