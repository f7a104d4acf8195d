"""Construction of a served model from its plan."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec

from openai_cpu_server.config.models import ModelOptions
from openai_cpu_server.config.settings import Settings
from openai_cpu_server.contract.engine import Engine
from openai_cpu_server.contract.messages import EngineOptions
from openai_cpu_server.contract.model_info import ModelInfo, ModelKind
from openai_cpu_server.engine_client.child import HangLimits
from openai_cpu_server.engine_client.client import EngineClient
from openai_cpu_server.engine_client.culprits import CulpritLedger
from openai_cpu_server.engine_client.shared_cores import CoresPartner, SharedCores
from openai_cpu_server.engine_client.subscribers import EngineObserver
from openai_cpu_server.engine_client.supervisor import Supervisor
from openai_cpu_server.errors import StartupError
from openai_cpu_server.llama.gguf.header import GgufHeader, file_type_name, model_files, model_kind
from openai_cpu_server.llama.host import NODES, Machine, cores_of, usable_nodes
from openai_cpu_server.model_source.folder import ModelFolder
from openai_cpu_server.model_source.lazy_hub import hub
from openai_cpu_server.model_source.resolve import hold
from openai_cpu_server.models.defaults import ModelDefaults
from openai_cpu_server.models.grammars import GrammarMark, ModelGrammars
from openai_cpu_server.models.keeper import KeeperEntry, MemoryNeed, ModelKeeper
from openai_cpu_server.models.served import ModelThinking, ServedModel, ServedTemplate, UnreadableModel
from openai_cpu_server.observe.telemetry import ModelTelemetry, Telemetry
from openai_cpu_server.prompt.reasoning import TemplateReasoning
from openai_cpu_server.prompt.tool_formats import TOOL_FORMATS, format_for
from openai_cpu_server.reader.child import ReaderChild
from openai_cpu_server.reader.messages import ModelSource
from openai_cpu_server.reader.model import ReadModel
from openai_cpu_server.reader.pool import ReaderPool
from openai_cpu_server.replicas.nodes import NodeEngines
from openai_cpu_server.server.options import cache_bytes, engine_options, model_defaults, read_text
from openai_cpu_server.server.plans import MemoryShare, ModelPlan, estimate_model, models_folder
from openai_cpu_server.server.prefix_files import PrefixFiles

_MIB = 1024 * 1024


FileStamp = tuple[int, int, int]
"""Inode, mtime, size."""


def file_stamp(path: Path) -> FileStamp | None:
    """Return None for a missing file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def content_digest(files: Sequence[Path]) -> Callable[[], str | None]:
    """Return a function for the SHA-256 of all files, or None if they have changed since this call or cannot
    be read."""
    stamps = {path: file_stamp(path) for path in files}

    def read() -> str | None:
        digest = hashlib.sha256()
        try:
            for path in stamps:
                with path.open("rb") as file:
                    while chunk := file.read(_MIB):
                        digest.update(chunk)
        except OSError:
            return None
        is_same = all(file_stamp(path) == stamp for path, stamp in stamps.items())
        return digest.hexdigest() if is_same else None

    return read


_FRONT = "openai_cpu_server.kernels.front"
_PROCESS = "openai_cpu_server.engine.process"
_KERNEL = "openai_cpu_server.child_processes.kernel"


def supervised(
    settings: Settings,
    options: EngineOptions,
    observer: EngineObserver,
    *,
    begins_asleep: bool,
    foretold: ModelInfo | None = None,
    partner: CoresPartner | None = None,
    cpus: Collection[int] = (),
    node: int | None = None,
) -> Supervisor:
    """`cpus`: () for all of this process. `node`: NUMA node whose memory is preferred."""
    return Supervisor(
        (*_pinned(cpus, node), _PROCESS, settings.log_format),
        options,
        observer=observer,
        hang_limits=HangLimits(
            step_s=settings.hang_seconds or None, load_s=settings.load_hang_seconds or None
        ),
        max_crashes_a_minute=settings.max_crashes_per_minute,
        begins_asleep=begins_asleep,
        foretold=foretold,
        partner=partner,
    )


def _pinned(cpus: Collection[int], node: int | None) -> tuple[str, ...]:
    """Return the prefix of a command that loads our kernels before ggml and runs a module on these CPUs."""
    if not cpus:
        return (sys.executable, "-m", _FRONT)
    pin = f"import os, runpy; os.sched_setaffinity(0, {sorted(cpus)})"
    near = f"from {_KERNEL} import settle_on_node; settle_on_node({node}); " if node is not None else ""
    run = f"runpy.run_module({_FRONT!r}, run_name='__main__', alter_sys=True)"
    return (sys.executable, "-c", f"{pin}; {near}{run}")


def on_node(options: EngineOptions, node: int, nodes: Mapping[int, Sequence[int]]) -> EngineOptions:
    """Divide the machine's limits. Each engine reads its own weights, because a mapped file would lie on one
    node."""
    cores = {one: len(cores_of(cpus)) for one, cpus in nodes.items()}
    threads = max(1, cores[node] * Machine().num_threads() // sum(cores.values()))
    return msgspec.structs.replace(
        options,
        threads=options.threads or threads,
        cache_bytes=options.cache_bytes // len(nodes),
        cache_file=options.cache_file and f"{options.cache_file}.node{node}",
        reads_weights=True,
        reports_forecast=True,
    )


logger = logging.getLogger(__name__)


class ModelParts(NamedTuple):
    plan: ModelPlan
    header: GgufHeader
    kind: ModelKind
    read: ReadModel
    options: EngineOptions
    grammars: ModelGrammars
    defaults: ModelDefaults

    @classmethod
    def open(
        cls, settings: Settings, plan: ModelPlan, share: MemoryShare | None, readers: ReaderPool
    ) -> ModelParts:
        """`share`: None for a model that has the machine for itself."""
        header = GgufHeader(plan.path)
        kind = model_kind(header)
        if plan.adapters and kind is not ModelKind.GENERATES:
            raise StartupError(f"{plan.name} does not generate text, so it cannot have adapters")
        path = plan.options.chat_template
        template = None if path is None else read_text(path)
        if template is not None and not template.strip():
            raise StartupError(f"{path} contains no chat template")
        source = ModelSource(
            path=str(plan.path),
            generates=kind is ModelKind.GENERATES,
            chat_template=template,
            tool_format=plan.options.tool_format,
            reasoning_format=plan.options.reasoning_format,
        )
        read = ReadModel(readers, source)
        try:
            chat = read.facts.template
            thinks = chat is not None and chat.reasoning is not None
            defaults = model_defaults(settings, plan, header, thinks=thinks)
            options = engine_options(
                settings, plan, read.tokenizer, readers, cache_bytes=cache_bytes(plan, share)
            )
        except BaseException:
            read.close()
            raise
        if kind is ModelKind.GENERATES and read.facts.template is None:
            logger.warning("the model has no chat template: /v1/chat/completions needs --chat-template FILE")
        is_flexible = plan.options.json_whitespace == "flexible"
        is_open = plan.options.json_additional == "open"
        mark = GrammarMark(settings.profile_dir, plan.path)
        grammars = ModelGrammars(read.make_grammar, mark, is_flexible=is_flexible, is_open=is_open)
        return cls(plan, header, kind, read, options, grammars, defaults)

    def keeping_prefixes(self, files: PrefixFiles) -> ModelParts:
        if self.kind is not ModelKind.GENERATES:
            return self
        return self._replace(options=files.with_file(self.options, self.plan.name))

    def served(self, engine: Engine, may_retry: Callable[[], bool] = lambda: False) -> ServedModel:
        """Let the readers forget the model with the result."""
        facts, options = self.read.facts, self.plan.options
        chat = facts.template
        named = {
            name: ServedTemplate(name, TOOL_FORMATS[each.tool_format], _thinking(options, each.reasoning))
            for name, each in facts.named.items()
        }
        served = ServedModel(
            names=self.plan.names,
            engine=engine,
            tokenizer=self.read.tokenizer,
            prompts=self.read,
            rerank=self.read.rerank,
            tool_format=TOOL_FORMATS[chat.tool_format] if chat else format_for(None),
            template_source=chat.source if chat else None,
            named=named,
            grammars=self.grammars,
            kind=self.kind,
            may_retry=may_retry,
            quantisation=file_type_name(self.header.get_int("general.file_type") or 0),
            thinking=_thinking(options, chat.reasoning if chat else None),
            defaults=self.defaults,
            open_picture=self.read.picture,
            open_sound=self.read.sound,
            read_document=self.read.document,
            render_page=self.read.page,
            write_template=self.read.write_template,
            content_digest=content_digest(model_files(self.header)),
        )
        weakref.finalize(served, self.read.close)  # requests that have chosen it may still tokenise
        held = hold([*model_files(self.header), *([self.plan.projector] if self.plan.projector else [])])
        served.release_files = weakref.finalize(served, lambda: [file.close() for file in held])
        return served


def reader_pool(
    settings: Settings, plans: Iterable[ModelPlan], *, child: ReaderChild | None = None
) -> ReaderPool:
    plans = list(plans)
    opens_media = (
        settings.allow_pull
        or settings.models_dir is not None
        or any(plan.projector is not None for plan in plans)
    )
    if settings.sandbox == "off":
        return ReaderPool(child=child, opens_media=opens_media)
    paths = [path for plan in plans for path in (plan.path, plan.path.resolve())]
    folders = [*(path.parent for path in paths), settings.profile_dir]
    if settings.models_dir is not None:
        root = models_folder(settings)
        linked = {path.resolve().parent for path in ModelFolder(root).names().values()}
        folders += [root, *linked]
    if settings.allow_pull:
        cache = hub.cache_folder()
        cache.mkdir(parents=True, exist_ok=True)  # what is not there at their start they can never read
        folders.append(cache)
    return ReaderPool(folders, child=child, opens_media=opens_media)


def _thinking(options: ModelOptions, reasoning: TemplateReasoning | None) -> ModelThinking | None:
    if reasoning is None:
        return None
    is_on = {"auto": None, "on": True, "off": False}[options.reasoning]
    return ModelThinking(reasoning, is_on=is_on, budget=options.reasoning_budget)


OwnEngine = EngineClient | NodeEngines
"""One process, or one on each NUMA node."""


class LoadedModel(NamedTuple):
    plan: ModelPlan
    served: ServedModel
    engine: OwnEngine
    entry: KeeperEntry
    stamp: FileStamp | None
    """State of its file at construction."""
    is_broken: bool
    """True if its file cannot be read."""


@dataclass
class ModelBuilder:
    settings: Settings
    telemetry: Telemetry
    keeper: ModelKeeper
    readers: ReaderPool
    num_models: int
    is_alone: bool
    """True for an only model, which has the machine for itself."""

    def __post_init__(self) -> None:
        self._prefixes: PrefixFiles | None = None
        self._culprits = CulpritLedger(time.monotonic)
        self._cores = SharedCores(batch_floor=self.settings.batch_floor) if self.num_models > 1 else None

    def build(self, plan: ModelPlan, *, again: bool = False) -> LoadedModel:
        """Build a sleeping model. The only one is loaded at once, unless it replaces another (`again`).

        A model's state reports an unreadable file, but the first build of the only one raises StartupError.
        """
        share = None
        if not self.is_alone:
            share = MemoryShare(self.keeper.budget.limit_bytes, self.num_models, plan.memory_bytes)
        try:
            model = self._built(plan, share, begins_asleep=again)
        except StartupError as error:
            if self.is_alone and not again:
                raise
            return self._broken(plan, str(error))
        if share is not None and (why := self.keeper.why_never(model.entry)) is not None:
            model.engine.residency.fail(why)
        return model

    def _built(self, plan: ModelPlan, share: MemoryShare | None, *, begins_asleep: bool) -> LoadedModel:
        stamp, parts = file_stamp(plan.path), ModelParts.open(self.settings, plan, share, self.readers)
        if plan.options.cache_file == "auto":  # else the user chose where the cache is kept, if anywhere
            self._prefixes = self._prefixes or PrefixFiles.of_user(num_models=self.num_models)
            parts = parts.keeping_prefixes(self._prefixes)
        try:
            estimate = estimate_model(parts.options, parts.read.tokenizer, share)
        except BaseException:
            parts.read.close()
            raise
        options, info = (parts.options, None) if share is None else (estimate.options, estimate.info)
        engine = self._engine(plan.name, options, info, begins_asleep=begins_asleep)
        entry = self._entry(plan, engine, estimate.need)
        entry.reloads_itself = self.num_models == 1
        served = parts.served(engine, may_retry=lambda: self.keeper.may_retry(entry))
        return LoadedModel(plan, served, engine, entry, stamp, is_broken=False)

    def _broken(self, plan: ModelPlan, reason: str) -> LoadedModel:
        engine = self._engine(plan.name, EngineOptions(model_path=str(plan.path)), None, begins_asleep=True)
        engine.residency.fail(reason)
        unreadable = UnreadableModel(reason)
        served = ServedModel(
            names=plan.names,
            engine=engine,
            tokenizer=unreadable,
            prompts=unreadable,
            tool_format=format_for(None),
            grammars=ModelGrammars(unreadable),
        )
        entry = self._entry(plan, engine, MemoryNeed(weights=0, cells=0, buffers=0))
        return LoadedModel(plan, served, engine, entry, file_stamp(plan.path), is_broken=True)

    def _engine(
        self, name: str, options: EngineOptions, foretold: ModelInfo | None, *, begins_asleep: bool = False
    ) -> OwnEngine:
        settings = self.settings
        nodes = usable_nodes(settings.numa_folder or NODES) if settings.numa else {}
        if len(nodes) > 1:
            return self._on_nodes(name, options, nodes, begins_asleep=begins_asleep)
        supervisor = supervised(
            settings,
            options,
            ModelTelemetry(self.telemetry, name),
            begins_asleep=begins_asleep or foretold is not None,
            foretold=foretold,
            partner=self._cores.join(name) if self._cores is not None else None,
        )
        return EngineClient(
            supervisor,
            max_queue=settings.max_queue,
            max_held_bytes=settings.stream_buffer_mb * _MIB,
            culprits=self._culprits,
        )

    def _on_nodes(
        self, name: str, options: EngineOptions, nodes: Mapping[int, Sequence[int]], *, begins_asleep: bool
    ) -> NodeEngines:
        settings, supervisors = self.settings, {}
        for node, cpus in nodes.items():
            own = on_node(options, node, nodes)
            logger.info(
                "NUMA node %d: %d threads on the CPUs %s", node, own.threads, ", ".join(map(str, cpus))
            )
            supervisors[str(node)] = supervised(
                settings,
                own,
                ModelTelemetry(self.telemetry, name),
                begins_asleep=begins_asleep,
                cpus=cpus,
                node=node if settings.numa_folder is None else None,
            )
        return NodeEngines(
            supervisors, max_queue=settings.max_queue, max_held_bytes=settings.stream_buffer_mb * _MIB
        )

    def _entry(self, plan: ModelPlan, engine: OwnEngine, need: MemoryNeed) -> KeeperEntry:
        entry = KeeperEntry(
            plan.name, engine.residency, need, plan.keep_alive_s, plan.is_pinned, plan.memory_bytes
        )
        engine.on_wanted = lambda: self.keeper.want(entry)
        return entry
