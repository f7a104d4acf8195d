"""Plans of models to serve: names, files, options and estimated memory."""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.config.adapters import AdapterOption, AdapterSource
from openai_cpu_server.config.folders import expanded_path, user_data_dir
from openai_cpu_server.config.models import ModelOptions, ModelTable
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.encoders import ProjectorFacts
from openai_cpu_server.llama.gguf.header import GgufHeader, description, model_files, model_kind, total_bytes
from openai_cpu_server.llama.gguf.heads import require_model
from openai_cpu_server.llama.gguf.tensors import model_tensors
from openai_cpu_server.llama.host import Machine
from openai_cpu_server.llama.model import kv_size
from openai_cpu_server.model_source.folder import ModelFolder
from openai_cpu_server.model_source.names import HubName
from openai_cpu_server.model_source.resolve import FoundModel, drafting_file, model_to_serve, projector_of
from openai_cpu_server.models.keeper import MemoryNeed
from openai_cpu_server.models.registry import Preset
from openai_cpu_server.models.routing.options import RouterOptions, problem
from openai_cpu_server.models.routing.router import ModelRouter
from openai_cpu_server.reader.model import ReadTokenizer
from openai_cpu_server.storage.private_files import replacing

logger = logging.getLogger(__name__)

NO_TABLE = ModelTable.model_validate({})
_NAME = re.compile(r"(?P<name>[A-Za-z0-9][\w.:/@+-]*)=(?P<source>.+)")


class ModelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Model whose file has been found but not opened."""

    names: tuple[str, ...]
    """Own name, then aliases."""
    path: Path
    options: ModelOptions
    projector: Path | None
    """Encoder of pictures and sounds, or None for text only."""
    keep_alive_s: float | None
    """Idle time until it is unloaded, or None for never."""
    is_pinned: bool
    memory_bytes: int | None
    """Own limit."""
    draft: Path | None = None
    """Drafting file, or None for none or the model's."""
    adapters: tuple[AdapterSource, ...] = ()
    of_table: ModelOptions = NO_TABLE
    waits_for_requests: bool = False
    """True if the default model is not loaded at the start."""

    @property
    def name(self) -> str:
        return self.names[0]


def planned_models(settings: Settings) -> list[ModelPlan]:
    """Return at least one plan, the default first."""
    folder = {} if settings.models_dir is None else ModelFolder(models_folder(settings)).names()
    found = [*_named(settings, folder)]
    waiting = [*_named_elsewhere(settings, folder, [model.name for model, _ in found])]
    if not found and not waiting:
        waiting = _first_of(folder)
    found = [*found, *waiting] or [(model_to_serve(None), NO_TABLE)]
    if settings.served_model_name is not None:
        if len(found) > 1:
            names = ", ".join(model.name for model, _ in found)
            raise StartupError(
                f"--served-model-name is for one model, and there are {len(found)} ({names}): name each "
                "with --model NAME=SPEC"
            )
        ((model, table),) = found
        found = [(msgspec.structs.replace(model, name=settings.served_model_name), table)]
    own_names = [*(model.name for model, _ in found), *_router_tables(settings)]
    _require_distinct(own_names)
    aliases = _aliases(settings.aliases, own_names)
    _require_models_of(settings.adapter, [model.name for model, _ in found])
    plans = [_plan(model, table, aliases, settings) for model, table in found]
    num_first = len(plans) - len(waiting)
    plans[num_first:] = [msgspec.structs.replace(p, waits_for_requests=True) for p in plans[num_first:]]
    if settings.allow_pull:
        taken = {name for plan in plans for name in plan.names}
        pulled = StoredModels.read(stored_models_file()).pulled
        plans += [plan_of_pulled(model, settings) for model in pulled if model.name not in taken]
    routers = router_options(settings, plans)
    _require_distinct(
        [name for names in (*(p.names for p in plans), *(r.names for r in routers)) for name in names]
    )
    may_grow = settings.allow_pull or settings.models_dir is not None
    if (len(plans) > 1 or settings.models_dir is not None) and settings.cache_file not in ("auto", "off"):
        raise StartupError("--cache-file is for one model; with several, give each its own in [models.NAME]")
    if settings.numa and (len(plans) > 1 or settings.memory is not None or may_grow):
        without = "--memory, --allow-pull and --models-dir"
        raise StartupError(f"--numa is for a server with one model, and without {without}")
    if settings.numa and any(plan.options.wants_device for plan in plans):
        raise StartupError("--numa cannot be combined with --gpu-layers and other options of a device")
    return plans


def models_folder(settings: Settings) -> Path:
    assert settings.models_dir is not None, "the option is set"
    folder = expanded_path(settings.models_dir)
    if not folder.is_dir():
        raise StartupError(f"--models-dir: the folder {folder} does not exist")
    return folder.absolute()


def plan_in_folder(name: str, path: Path, settings: Settings) -> ModelPlan:
    """Use the server's options. Blocks."""
    return _plan(FoundModel(name, path), NO_TABLE, {}, settings)


def _named_elsewhere(
    settings: Settings, folder: Mapping[str, Path], names: list[str]
) -> Iterator[tuple[FoundModel, ModelTable]]:
    """Yield models that an alias, a router or an adapter names."""
    meant = [*settings.aliases.values(), *(option.model for option in settings.adapter if option.model)]
    meant += [to for table in settings.models.values() if table.router for to in table.router.routes.values()]
    for name in dict.fromkeys(meant):
        if name in folder and name not in names:
            yield FoundModel(name, folder[name]), NO_TABLE


def _first_of(folder: Mapping[str, Path]) -> list[tuple[FoundModel, ModelTable]]:
    """Choose the first readable model that generates."""
    for name, path in folder.items():
        try:
            header = GgufHeader(path)
            is_able = header.get_str("general.type") in (None, "model") and bool(model_tensors(header))
            if is_able and model_kind(header) is ModelKind.GENERATES:
                return [(FoundModel(name, path), NO_TABLE)]
        except StartupError:
            continue  # a request for it reports the error
    return []


class PulledModel(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    source: str
    """`hf:OWNER/REPO/FILE`."""
    path: str
    projector: str | None = None


class StoredModels(msgspec.Struct, frozen=True, kw_only=True):
    """Pulled models and derived names, for the next start."""

    pulled: tuple[PulledModel, ...] = ()
    presets: dict[str, Preset] = {}

    @classmethod
    def read(cls, path: Path) -> StoredModels:
        """Skip models without files. A missing file is empty."""
        try:
            models = msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return cls()
        except (OSError, msgspec.MsgspecError) as error:
            raise StartupError(
                f"cannot read {path}, in which --allow-pull records its models: {error}"
            ) from None
        gone = [model for model in models.pulled if not Path(model.path).is_file()]
        for model in gone:
            logger.warning("%s is no longer served: %s was removed", model.name, model.path)
        return msgspec.structs.replace(models, pulled=tuple(one for one in models.pulled if one not in gone))

    def write(self, path: Path) -> None:
        """Write atomically. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(self), indent=2))


def stored_models_file() -> Path:
    return user_data_dir() / "models.json"


def plan_of_pulled(model: PulledModel, settings: Settings) -> ModelPlan:
    """Use the server's options for files that exist."""
    return ModelPlan(
        names=(model.name,),
        path=Path(model.path),
        options=NO_TABLE.over(settings),
        projector=None if model.projector is None or settings.mmproj == "off" else Path(model.projector),
        draft=_draft(Path(model.path), settings),
        keep_alive_s=settings.idle_unload,
        is_pinned=False,
        memory_bytes=None,
    )


def _draft(model: Path, options: ModelOptions, hub: HubName | None = None) -> Path | None:
    return None if options.speculation == "off" else drafting_file(model, options.draft_model, hub)


def planned_routers(
    settings: Settings, plans: Sequence[ModelPlan], kinds: Mapping[str, ModelKind | None]
) -> list[ModelRouter]:
    """`kinds`: None for unreadable files. Raises StartupError for a router that leads nowhere."""
    options = router_options(settings, plans)
    if (message := problem(options, kinds)) is not None:
        raise StartupError(message)
    return [ModelRouter(each) for each in options]


def router_options(settings: Settings, plans: Sequence[ModelPlan]) -> list[RouterOptions]:
    tables = _router_tables(settings)
    aliases = _aliases(settings.aliases, [*(plan.name for plan in plans), *tables])
    return [
        table.router.options(_names(name, table, aliases)) for name, table in tables.items() if table.router
    ]


def _router_tables(settings: Settings) -> dict[str, ModelTable]:
    return {name: table for name, table in settings.models.items() if table.router is not None}


def _found(source: str, folder: Mapping[str, Path]) -> FoundModel:
    """Prefer `--models-dir`."""
    return FoundModel(source, folder[source]) if source in folder else model_to_serve(source)


def _named(settings: Settings, folder: Mapping[str, Path]) -> Iterator[tuple[FoundModel, ModelTable]]:
    """Yield models of `--model`, `[NAME=]SOURCE`, and of the tables. A file name may contain `=`."""
    for value in settings.model:
        match = _NAME.fullmatch(value)
        if (
            match is None
            or value in folder
            or value.startswith(("hf:", "https://", "http://"))
            or Path(value).is_file()
        ):
            yield _found(value, folder), NO_TABLE
        else:
            yield msgspec.structs.replace(_found(match["source"], folder), name=match["name"]), NO_TABLE
    for name, table in settings.models.items():
        if table.router is None:
            yield msgspec.structs.replace(_found(table.source or name, folder), name=name), table


def _plan(model: FoundModel, table: ModelTable, aliases: Mapping[str, str], settings: Settings) -> ModelPlan:
    keep_alive_s = settings.idle_unload if table.keep_alive is None else table.keep_alive
    options = table.over(settings)
    own_adapters = (option.source for option in settings.adapter if option.model in (None, model.name))
    adapters = (*table.adapters, *own_adapters)
    twice = [name for name, count in Counter(adapter.name for adapter in adapters).items() if count > 1]
    if twice:
        raise StartupError(f"the model {model.name} has two adapters named {twice[0]!r}")
    return ModelPlan(
        names=_names(model.name, table, aliases),
        path=model.path,
        options=options,
        projector=projector_of(model.path, options.mmproj, model.hub),
        draft=_draft(model.path, options, model.hub),
        keep_alive_s=None if table.pinned else keep_alive_s,
        is_pinned=table.pinned,
        memory_bytes=None if table.memory is None else table.memory * 1024 * 1024,
        adapters=adapters,
        of_table=table,
    )


def _names(name: str, table: ModelTable, aliases: Mapping[str, str]) -> tuple[str, ...]:
    return (name, *table.aliases, *(alias for alias, meant in aliases.items() if meant == name))


def _require_models_of(adapters: list[AdapterOption], names: list[str]) -> None:
    for option in adapters:
        if option.model is None and len(names) > 1:
            raise StartupError(f"--adapter {option.source.name}: name its model, as in MODEL/NAME=PATH")
        if option.model is not None and option.model not in names:
            raise StartupError(f"--adapter: unknown model {option.model}; the models are {', '.join(names)}")


def _aliases(targets: Mapping[str, str], names: list[str]) -> dict[str, str]:
    meanings = {}
    for alias in targets:
        seen = [alias]
        while (name := targets[seen[-1]]) not in names:
            if name in seen:
                raise StartupError(f"[aliases] {' -> '.join([*seen, name])} is a loop")
            if name not in targets:
                why = f"unknown model {name!r}; the models are {', '.join(names)}"
                raise StartupError(f"[aliases] {alias}: {why}")
            seen.append(name)
        meanings[alias] = name
    return meanings


def _require_distinct(names: list[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise StartupError(f"two models have the name {twice[0]!r}: rename one with --model NAME=SPEC")


_PROCESS_BYTES = 150 * 1024 * 1024
"""Python, llama.cpp, numpy and llguidance without a model."""


class MemoryShare(NamedTuple):
    """Memory for one of several models."""

    budget_bytes: int
    num_models: int
    own_bytes: int | None
    """Own limit."""

    @property
    def cache_bytes(self) -> int:
        """A quarter, as for a model that has the machine for itself."""
        return (self.own_bytes or self.budget_bytes // self.num_models) // 4


class ModelEstimate(NamedTuple):
    options: EngineOptions
    need: MemoryNeed
    info: ModelInfo


def estimate_model(
    options: EngineOptions, vocabulary: ReadTokenizer, share: MemoryShare | None
) -> ModelEstimate:
    """Estimate from the files. `share`: None for an only model."""
    header = GgufHeader(Path(options.model_path))
    require_model(header)
    kind, kv_type = model_kind(header), kv_size.KVType.named(options.kv_type)
    generates = kind is ModelKind.GENERATES
    draft, _ = kv_size.planned_drafts(header, options) if generates else (None, None)
    weights = total_bytes(model_files(header)) + (0 if draft is None else draft.weights)
    encoder = kv_size.encoder_memory(options)
    ffn_width = header.get_int(header.for_architecture("feed_forward_length"))
    # The largest step's activations and logits, in f32: a row has the logits of all tokens, or some copies of
    # the widest activation.
    step_bytes = 4 * kv_size.batch_tokens(options) * (vocabulary.vocab_size + 4 * (ffn_width or 0))
    token_bytes = kv_size.bytes_per_cell(header, kv_type) if generates else 0
    draft_bytes = 0 if draft is None else draft.cell_bytes
    need = MemoryNeed(
        weights=weights + encoder.weights,
        cells=0,
        buffers=_PROCESS_BYTES + step_bytes + encoder.buffers,
        cache=options.cache_bytes if generates else 0,
    )
    cells = _cells(options, token_bytes + draft_bytes, need, share) if generates else 0
    if generates:
        options = msgspec.structs.replace(options, kv_tokens=cells)
    elif options.kv_tokens is None:
        # Fixed now, because the free memory at each load would give another length, and reject requests late.
        free = Machine().free_memory() if share is None else share.own_bytes or share.budget_bytes
        longest = kv_size.tokens_that_fit(free - need.total, vocabulary.vocab_size)
        options = msgspec.structs.replace(options, kv_tokens=longest)
    need = msgspec.structs.replace(need, cells=cells * (token_bytes + draft_bytes))
    return ModelEstimate(options, need, _info(header, kind, options, vocabulary, cells, token_bytes))


def _cells(options: EngineOptions, token_bytes: int, need: MemoryNeed, share: MemoryShare | None) -> int:
    """Divide half of the free memory beside the weights between the models."""
    if (requested := options.kv_tokens) is not None:
        if share is None and not options.offload.wants_device:  # the engine also counts what it has loaded
            kv_size.pool_cells(requested, token_bytes, Machine().free_memory())
        return requested
    if share is None:
        free = Machine().free_memory() - need.weights
    elif share.own_bytes is not None:
        free = 2 * (share.own_bytes - need.total)  # all of it: this is what the model may have
    else:
        free = (share.budget_bytes - need.total) // share.num_models
    try:
        return kv_size.pool_cells(None, token_bytes, max(0, free))
    except StartupError:
        return kv_size.CELLS_GRANULARITY  # the keeper will report that it does not fit, with the arithmetic


def _info(
    header: GgufHeader,
    kind: ModelKind,
    options: EngineOptions,
    vocabulary: ReadTokenizer,
    cells: int,
    token_bytes: int,
) -> ModelInfo:
    """Fill in minima for facts that are unknown, and unread, before loading."""
    trained = header.get_int(header.for_architecture("context_length")) or cells
    parameters = sum(tensor.num_values for tensor in model_tensors(header))
    embeds = kind is not ModelKind.GENERATES
    width = header.get_int(header.for_architecture("embedding_length")) or 0
    path = options.projector_path
    projector = ProjectorFacts.of(GgufHeader(Path(path))) if path is not None else None
    return ModelInfo(
        path=options.model_path,
        description=description(header, parameters),
        architecture=header.architecture,
        num_parameters=parameters,
        file_bytes=total_bytes(model_files(header)),
        vocab_size=vocabulary.vocab_size,
        context_trained=trained,
        kv_tokens=cells,
        kv_bytes_per_token=token_bytes,
        kv_type=options.kv_type,
        max_seqs=options.max_seqs,
        max_step_tokens=kv_size.batch_tokens(options),
        max_step_outputs=options.max_seqs,
        threads=options.threads or Machine().num_threads(),
        end_tokens=vocabulary.end_tokens,
        kind=kind,
        sees=projector is not None and projector.seeing is not None,
        sound_rate=0 if projector is None else projector.sound_rate,
        embedding_size=(1 if kind is ModelKind.RERANKS else width) if embeds else 0,
        max_input_tokens=min(trained, options.kv_tokens or trained) if embeds else 0,
    )
